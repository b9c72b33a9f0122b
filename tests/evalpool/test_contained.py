"""Which references leave their process as it was, and which may not."""

import pytest

from forge.config.schema import ProblemsTable
from forge.data.generator import generate_problems
from forge.evalpool.judge.trial.references import is_contained
from tests.evalpool.benches import RELU, make_problem

LEAVES = (
    "torch.relu = torch.sigmoid",
    "torch.set_default_dtype(torch.float64)",
    "torch.set_grad_enabled(False)",
    "torch.backends.cudnn.benchmark = True",
    "torch.cuda.set_device(0)",
    "torch.autograd.set_detect_anomaly(True)",
    "torch.nn.Module.forward = None",
    "torch.nn.modules.module.register_module_forward_hook(print)",
    "torch.Tensor.__add__ = None",
    "setattr(torch, 're' + 'lu', None)",
    "import os; os.environ['X'] = '1'",
    "import random; random.seed(0)",
    "exec('import os')",
    "def f():\n    global __builtins__\n    __builtins__ = {}",
    "torch.use_deterministic_algorithms(True)",
    "torch.compile(torch.relu)",
    "(",
    "L = torch.nn.Linear\nL.forward = None",
    "for layer in (torch.nn.Linear, torch.nn.Conv2d):\n    layer.reset_parameters = None",
    "def skip(layer):\n    layer.reset_parameters = None\nskip(torch.nn.Linear)",
    "def skip(layer):\n    setattr(layer, 'forward', None)\nskip(torch.nn.Linear)",
    "def skip(layer):\n    del layer.forward\nskip(torch.nn.Linear)",
    "getattr(torch.nn, 'Linear').forward = None",
    "self = torch.nn.Linear\nself.forward = None",
    "getattr(torch, '\\x73et_num_threads')(1)",
    "torch.ｓet_num_threads(1)",
    "torch.autocast_increment_nesting()",
    "torch.nn.attention.activate_flash_attention_impl('FA4')",
    "import triton",
    "put = setattr\nput(torch, 'relu', None)",
    "list(map(setattr, [torch], ['relu'], [None]))",
    "getattr(torch, '__dict__')['relu'] = None",
    "def held():\n    with torch.inference_mode():\n        yield\nHELD = held()\nnext(HELD)",
)


@pytest.mark.parametrize("line", LEAVES)
def test_what_may_outlive_a_draw_is_seen(line: str) -> None:
    assert not is_contained(make_problem(f"{RELU}\n{line}\n"))
    assert not is_contained(make_problem(f"import torch\n{line}\n{RELU}"))
    made = "def get_inputs():\n    " + line.replace("\n", "\n    ")
    assert not is_contained(make_problem(RELU.replace("def get_inputs():", made)))


def test_problems_of_our_own_are_contained() -> None:
    table = ProblemsTable(num_problems=100, sft_by_level=[10, 10, 10, 10])
    assert all(is_contained(problem) for problem in generate_problems(table, seed=0))


def test_buffers_modules_and_state_of_ones_own_are_nobodys_business() -> None:
    source = """
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

SIZE = 64

class Model(nn.Module):
    def __init__(self, dim):
        super(Model, self).__init__()
        self.dim = dim  # named alone: torch.set_num_threads
        self.linear = nn.Linear(dim, dim)
        self.register_buffer("scale", torch.ones(dim) / math.sqrt(dim))
        self.linear.weight.data.mul_(2)

    def forward(self, x):
        x = x.clone()
        x[:, 0] = 0
        return F.gelu(torch.clamp(self.linear(x), min=0) * self.scale)

def get_inputs():
    torch.manual_seed(3)
    return [torch.rand(4, SIZE)]

def get_init_inputs():
    return [SIZE]
"""
    assert is_contained(make_problem(source))
