"""Host code names what decides nothing but by its arguments, and keeps nothing but caches."""

import functools
import inspect

import pytest
import torch
import triton.language
from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.jit import JITFunction

from forge.config.schema import ProblemsTable
from forge.data.generator import answer, generate_problems
from forge.evalpool.judge.trial import host_names
from forge.evalpool.judge.trial.host_code import HostCode, host_code
from tests.evalpool.benches import HEAD as PLAIN_HEAD
from tests.evalpool.benches import RELU_KERNEL
from tests.evalpool.capture.corpus import CORPUS

HEAD = """
import math
from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def kernel(x, w, y, n, stride, BLOCK: tl.constexpr, FAST: tl.constexpr = False):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)

"""
MODEL = """
NUMBERS = []
made = 0


def helper(x, seen=[]):
    {helper}
    return x


class Other(nn.Module):
    shared = {{}}

    def __init__(self):
        super().__init__()
        self.data_of_mine, self.calls = [0], None

    def forward(self, x):
        return x


class ModelNew(nn.Module):
    num_made = 0

    def __init__(self):
        super().__init__()
        self.weight, self.n, self.seen = nn.Parameter(torch.ones(8)), 0, None
        self.log, self.other, self.numbers, self.fun = [], Other(), [0], lambda x: x
        self.a = self.b = self.c = None
        self.register_buffer("steps", torch.zeros(()))
        {init}

    def forward(self, x, z=None, alpha=0.5):
        y, cheap, fast = torch.empty_like(x), False, True
        {line}
        kernel[(4,)](x, x, y, x.numel(), x.stride(0), BLOCK=64, FAST=cheap)
        return y
"""


def read(
    line: str = "pass", *, init: str = "pass", helper: str = "pass", before: str = ""
) -> HostCode:
    """The findings about a model with these lines."""
    code = MODEL.format(
        line=line.replace("\n", "\n        "),
        init=init.replace("\n", "\n        "),
        helper=helper.replace("\n", "\n    "),
    )
    return host_code(HEAD + before + code, entry_point="ModelNew")


USUAL = """
from dataclasses import dataclass
from functools import lru_cache, partial
from types import SimpleNamespace

try:
    from triton.language.extra import libdevice
except ImportError:
    from triton.language.extra.cuda import libdevice

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cuda.matmul.allow_tf32 = True


@dataclass(frozen=True)
class Config:
    block: int = 64


@lru_cache(maxsize=None)
def sizes(n: int, block: int) -> Tuple[int, int]:
    return triton.cdiv(n, block), 1 << (n - 1).bit_length()


def checked(x: torch.Tensor, w: Optional[torch.Tensor] = None, *, block: int = 64):
    assert x.is_cuda, f"expected a CUDA tensor, got {x.device} of {type(x).__name__}"
    assert x.dtype in {torch.float32, torch.float16}
    return x if w is None else w


@triton.autotune(configs=[triton.Config({"BLOCK": b}) for b in (64, 128) if b >= 64], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def tuned(x, y, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    tl.store(y + tl.arange(0, BLOCK), libdevice.tanh(tl.load(x)))


class Net(nn.Module):
    def __init__(self, width=8, sizes=[1, 3], config=None):
        super(Net, self).__init__()
        self.width, self.config, self.act = width, Config(128), partial(F.gelu, approximate="tanh")
        self.layers, self.more = self._make_layer(2), SimpleNamespace(scale=2.0)

    def _make_layer(self, count):
        layers = []
        for _ in range(count):
            layers.append(nn.Linear(self.width, self.width))
        return nn.Sequential(*layers)

    def forward(self, x):
        return self.act(self.layers(x)) * self.more.scale
"""


@pytest.mark.parametrize(
    "lines",
    [
        "if torch.is_grad_enabled() and x.requires_grad: return self.other(x)\nreturn x",
        "tuned[lambda meta: (triton.cdiv(x.numel(), meta['BLOCK']),)](x, y, sizes(8, 4)[0])",
        "x, *rest = checked(x, block=Net().config.block), 1\nx = x.view(*x.shape[:-1], -1)",
        "for i in [b for b in (0, 1) if b]: y = y + getattr(self.other, f'weight_ih_l{i}').t()",
        "with torch.cuda.device(x.device): x = Net()(x).transpose(0, -1)",
    ],
)
def test_usual_host_code_is_judged(lines: str) -> None:
    """In the style of published answers, of Triton's tutorials and of libraries of layers."""
    assert read(lines, init="self.net = Net()", before=USUAL).fault == ""


@pytest.mark.parametrize("name", CORPUS)
def test_host_code_of_the_captures_corpus_is_judged(name: str) -> None:
    asked, code = CORPUS[name]
    found = host_code(code, entry_point=asked.get("entry_point", "ModelNew"))
    assert bool(found.fault) == (name == "launch_options"), found.fault  # it asks a kernel


def test_the_tests_model_is_judged() -> None:
    found = read()
    assert (found.fault, found.is_shareable, found.modes) == ("", True, ())


NAMES = [
    "os.environ", "sys.argv", "time.time()", "threading.active_count()", "gc.isenabled()",
    "random.random()", "inspect.stack()", "__import__('os')", "globals()", "locals()", "vars(self)",
    "dir(x)", "id(x)", "hash('a')", "open('f')", "exec('')", "eval('1')", "__name__",
    "torch.initial_seed()", "torch.get_num_threads()", "torch.is_autocast_enabled()",
    "torch.backends.cudnn.benchmark", "torch.backends.cuda.matmul.allow_tf32",
    "torch.get_default_dtype()", "torch.is_anomaly_enabled()", "torch.compiler.is_compiling()",
    "torch.cuda.memory_allocated()", "torch.cuda.device_count()", "torch.cuda.current_stream()",
    "torch.distributed.is_initialized()", "torch.autograd._profiler_enabled()", "torch.__version__",
    "torch.nn.modules.module._global_forward_hooks", "torch.random.initial_seed()", "torch.hub",
    "torch.get_rng_state()", "torch.utils.data.get_worker_info()",
    "torch.Generator()",
    "torch.nn.functional.importlib", "F.torch.initial_seed()", "torch", "getattr(torch, 'hub')",
    "triton.__version__", "triton.runtime.driver", "tl.core.os", "math.__loader__", "triton.knobs",
    "x.grad", "x.grad_fn", "x.is_leaf", "x._version", "x._base", "x.names", "x.is_inference()",
    "x.untyped_storage()", "x._backward_hooks", "x.is_pinned()", "x.__class__", "x.get_device()",
    "self._forward_hooks", "self._is_replica", "self.__dict__", "self.__class__",
    "super().__repr__()",
    "getattr(self, '_forward_hooks')", "getattr(x, 'grad')", "hasattr(self, '_is_replica')",
    "getattr(self, x)", "getattr(self, f'{x}')", "isinstance(x, nn.Parameter)",
    "Other.__subclasses__()",
    "kernel.cache", "kernel.fn", "kernel.warmup", "self.fun.__globals__", "helper.__code__",
    "(lambda: 0).__closure__", "sizes.cache_info()", "list({'a', 'b'})[0]", "[*zip(x)][0].gi_frame",
    "'{0.__class__}'.format(x) == ''", "[y := 1]",
]  # fmt: skip
FACTS = [
    "x.is_contiguous()", "x.stride(0) != 64", "x.storage_offset() > 0", "x.data_ptr() % 16 == 0",
    "x.device.index != 0", "x.device != torch.device('cuda:0')", "torch.cuda.current_device() != 0",
    "type(x) is torch.Tensor", "'grad' in f'{x}'", "len(str(x)) > 9", "'grad' in '%s' % x",
    "repr(x)",
    "bool(x.is_contiguous())", "int(x.is_contiguous())", "x.is_contiguous() and fast",
    "not x.is_contiguous()", "{1: 2}.get(x.stride(0))", "[1, 2][x.stride(0) // 65]",
    "True if x.is_contiguous() else False", "any(x.is_contiguous() for _ in range(1))",
    "len([1 for _ in range(x.stride(0) - 64)]) > 0", "torch.empty(x.stride(0)).shape[0] > 64",
    "(lambda s: s > 64)(x.stride(0))", "max(x.stride()) > 64", "x.stride() == (64, 1)",
    "x.requires_grad", "self.weight.requires_grad", "torch.is_grad_enabled() or x.requires_grad",
    "''.join([f'{x}']) == ''", "list(map(str, [x]))[0] == ''",
    "[*map(lambda v: v.stride(0), [x])][0] > 64",
    "min([1, 2], key=lambda v: abs(v - x.stride(0))) > 1",
    "torch.zeros(1).dtype != torch.float32", "torch.eye(2).is_cuda", "torch.finfo().bits > 32",
    "torch.full((1,), 1j).dtype == torch.complex64", "torch.ones(2, dtype=None).itemsize > 4",
    "torch.zeros(1).sum().element_size() > 4", "(torch.arange(3) / 2).dtype == torch.float64",
    "torch.result_type(x, torch.ones(1)) == torch.float64", "torch.empty(1).device.type == 'cpu'",
    "torch.tensor(0.1).item() == 0.1", "bool(torch.tensor(1 / 3) == 1 / 3)", "SPARE.itemsize > 4",
    "torch.Tensor.element_size(torch.Tensor([1.0])) > 4", "zeros(1).dtype != torch.float32",
    "self.spare.dtype != torch.float32", "torch.zeros(2).view(torch.uint8).shape[0] > 8",
    "nn.Linear(1, 1).weight.dtype != torch.float32", "[torch.zeros][0](1).dtype != torch.float32",
    "torch.empty_like(torch.zeros(1)).dtype != torch.float32",
    "(torch.ones(2, 2) @ torch.ones(2, 2)).element_size() == 2",
    "torch.mm(*[torch.ones(2, 2, dtype=torch.float32, device='cpu')] * 2).dtype == torch.float16",
    "torch.exp(x[0].half()).dtype == torch.float32", "(x[0].half() ** 2).dtype == torch.float32",
    "torch.exp(x[0].half()).to(x.device).dtype == torch.float32",
    "torch.zeros(1, dtype=torch.exp(x[0].half()).dtype).itemsize > 2",
    "torch.cuda.get_device_properties(0).pci_bus_id == 3", "PROPERTIES.uuid == ''",
    "getattr(torch.cuda.get_device_properties(0), 'pci_device_id', 0) == 3",
    "do_bench(lambda: x.clone()) > 50", "triton.testing.do_bench(lambda: x.clone()) > 50",
    "is_grad_enabled()", "torch.Tensor.is_contiguous(x)", "WORDS[-3] == 'a'", "self.words[3] == ''",
    "x is z", "x.contiguous() is x", "any(one is z for one in (x, 1))", "[x][0] is z",
    "(lambda a, b: a is b)(x, z)", "len([1 for one in (x,) if one is not z]) > 0",
    "torch.result_type(0.5, 1) == torch.float64", "torch.result_type(x, 1.5).itemsize > 4",
    "torch.finfo(torch.result_type(alpha, alpha)).bits > 32", "(x * alpha).dtype == torch.float32",
    "torch.promote_types(torch.result_type(0.5, 1), torch.half) == torch.float32",
    "torch.empty(1, dtype=torch.result_type(0.5, 1), device='cuda').element_size() > 4",
    "hasattr(x, 'tag')", "getattr(x.view(-1), 'tag', 0) == 1", "torch.set_grad_enabled(False)",
    "torch.manual_seed(0)", "[*map(torch.manual_seed, [0])]",
    "x.stride.__self__", "getattr(x, 'stride')(0) > 64", "[x.stride][0](0) > 64",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES + FACTS)
def test_what_tells_of_the_process_or_the_caller_decides_nothing(name: str) -> None:
    imports = "import os, sys, time, threading, gc, random, inspect\n"
    sized = "from functools import lru_cache\n@lru_cache\ndef sizes(n):\n    return n\n"
    init = "self.spare, self.words = torch.zeros(1), repr(self.other)"
    found = read(f"cheap = {name}", init=init, before=imports + sized + TOP)
    assert found.fault.startswith("cannot be judged: ")
    assert found.line > 0
    assert read("pass", init=init, before=imports + sized + TOP).fault == ""


@pytest.mark.parametrize(
    ("called", "instead"),
    [("torch.relu", "tl.maximum"), ("F.silu", "tl.sigmoid"), ("torch.special.i0", "tl.i0")],
)
def test_a_kernel_that_calls_torch_is_told_what_to_write(called: str, instead: str) -> None:
    code = HEAD.replace("tl.load(x + i, mask=i < n)", f"{called}(tl.load(x + i, mask=i < n))")
    found = host_code(
        code + MODEL.format(line="pass", init="pass", helper="pass"), entry_point="ModelNew"
    )
    assert found.fault.startswith("cannot be judged: a kernel calls functions of tl")
    assert instead in found.fault


def test_an_address_is_answered_by_the_tensor() -> None:
    found = read("kernel[(4,)](x.data_ptr(), x, y, 8, 1, BLOCK=64)")
    assert "pass the tensor itself" in found.fault


TOP = """
from torch import is_grad_enabled, zeros
from triton.testing import do_bench
SPARE, PROPERTIES, WORDS = torch.ones(2), torch.cuda.get_device_properties(0), repr(kernel)
"""


@pytest.mark.parametrize(
    ("line", "card"),
    [
        ("x = torch.zeros(8, device=x.device)\nx[torch.arange(8) < 4] = 1\nn = x.shape[0] > 4", ""),
        ("w = torch.zeros(8, dtype=x.dtype, device=x.device)\ncheap = w.dtype == torch.half", ""),
        ("x = F.linear(x, self.weight)\ncheap = x.dtype == torch.half", ""),
        ("x = self.other(x)\ncheap = x.dtype == torch.half and self.weight.dtype == x.dtype", ""),
        ("n = torch.tensor(x.shape).prod().item()\ncheap = n > 4", ""),
        ("cheap = PROPERTIES.multi_processor_count < 80", "multi_processor_count"),
        ("cheap = torch.cuda.get_device_capability()[0] < 8", "get_device_capability"),
    ],
)
def test_types_that_the_caller_decides_and_the_card_may_decide(line: str, card: str) -> None:
    found = read(line, before=TOP)
    assert (found.fault, ", ".join(found.card)) == ("", card)


def test_a_kernel_compares_no_type_that_the_process_gives() -> None:
    asks = "@triton.jit\ndef odd(y):\n    if y.dtype.element_ty == tl.float64:\n        pass\n"
    assert read("odd[(1,)](x)", before=asks).fault == ""
    assert "dtype" in read("odd[(1,)](torch.empty(4, device=x.device))", before=asks).fault


STATE = [
    "self.n = self.n + 1\ncheap = self.n > 200",
    "self.n += 1\ncheap = self.n > 200",
    "self.n, cheap = self.n + 1, self.n > 200",
    "self.log.append(1)\ncheap = len(self.log) > 200",
    "log = self.log\nlog.append(1)\ncheap = len(log) > 200",
    "log = self.log\nlog += [1]\ncheap = len(log) > 200",
    "self.numbers[0] += 1\ncheap = self.numbers[0] > 200",
    "for one in [self.numbers]: one[0] += 1\ncheap = self.numbers[0] > 200",
    "(one,) = (self.numbers,)\none[0] = one[0] + 1\ncheap = one[0] > 200",
    "self.other.data_of_mine[0] += 1\ncheap = self.other.data_of_mine[0] > 200",
    "self.other.calls = 1",
    "ModelNew.num_made += 1\ncheap = ModelNew.num_made > 200",
    "Other.shared[len(Other.shared)] = 1\ncheap = len(Other.shared) > 200",
    "NUMBERS.append(1)\ncheap = len(NUMBERS) > 200",
    "NUMBERS[len(NUMBERS):] = [1]",
    "global made\nmade += 1\ncheap = made > 200",
    "setattr(self, 'n', getattr(self, 'n') + 1)",
    "self.seen, cheap = x.shape[0], self.seen != x.shape[0]",
    "cheap = self.a is not None\nself.a = True",
    "if self.a is None: self.a = True\nelif self.b is None: self.b = True\nelse: cheap = True",
    "if self.b is not None: cheap = True\nif self.a is None: self.a = self.b = True",
    "if self.a is None:\n    self.a, cheap = 1, False\nelse: cheap = True",
    "old = self.a\nself.a = 0\nself.b = old",
    "old = self.a\nself.a = 0\ncheap = old",
    "cheap = True\nif self.a is None:\n    self.a, cheap = 1, False",
    "while self.a is None: self.a = 1",
    "cheap = self.a if self.a is not None else False\nself.a = True",
    "del self.log[0]",
    "self.register_buffer('more', x)",
    "self.train(not self.training)",
    "self.requires_grad_(False)",
    "self.training = False",
    "self.layout = x.stride(0)",
    "def count(): nonlocal cheap\ncount()",
    "try: x.fill_(1)\nexcept RuntimeError: cheap = True",
    "self.weight.hidden = 1",
    "kernel.seen = 1",
    "model = self\ncheap = model.a is not None\nself.a = True",
    "model = [self][0]\ncheap = model.a is not None\nself.a = True",
    "def ask(model): return model.a is not None\ncheap = ask(self)\nself.a = True",
    "self = x\ncheap = self.stride(0) > 64",
    "def ask(self): return self.is_contiguous()\ncheap = ask(x)",
    "ask = lambda self: self._base is None\ncheap = ask(x)",
    "def range(one): return [one]\nfor one in range(x): cheap = 'grad' in f'{one}'",
    "def getattr(a, b, c): return c.stride(0)\ncheap = getattr(self, 'w', x) > 64",
    "add = self.log.append\nadd(1)\ncheap = len(self.log) > 200",
    "x = [*map(self.log.append, [1])]\ncheap = len(self.log) > 200",
    "getattr(self.log, 'append')(1)\ncheap = len(self.log) > 200",
    "change = self.train\nchange(False)",
    "nn.Module.train(self.other, False)",
    "change = nn.Module.train\nchange(self.other, False)",
    "x = [*map(list.append, [self.log], [1])]\ncheap = len(self.log) > 200",
    "if self.a is None: self.a = [0]\nself.a[0] += 1\ncheap = self.a[0] > 200",
    "if self.a is None: self.a = [0]\nlog = self.a\nlog[0] = log[0] + 1\ncheap = log[0] > 200",
    "yield x",
]


@pytest.mark.parametrize("lines", STATE)
def test_what_a_call_keeps_is_a_cache(lines: str) -> None:
    assert read(lines).fault.startswith("cannot be judged: ")


@pytest.mark.parametrize(
    "lines",
    [
        "if self.a is None: self.a = self.weight.t().contiguous()\ny = self.a",
        "if self.a is None or self.a.shape != x.shape: self.a = torch.empty_like(x)\nx = self.a",
        "if not hasattr(self, 'p'):\n    w = self.weight * 2\n    self.p = w\ny = self.p",
        "if self.a is not None: w = self.a\nelse:\n    w = self.weight * 2\n    self.a = w\nx = w",
        "self.a = x.shape[0]\ncheap = self.a == 4",
        "self.steps += 1\nself.steps.add_(1)\nself.steps[...] = 0",
        "rows = []\nfor i in range(4): rows.append(x[i])\ny[0] = rows[0]\ny[1:] += 1",
        "if not x.is_contiguous(): x = x.contiguous()",
        "x = x if x.is_contiguous() else x.contiguous()",
        "assert x.stride(-1) == 1, f'{x.stride()}'",
        "if x.device != self.weight.device: self.weight.data = self.weight.data.to(x.device)",
        "if x.stride(0) < x.stride(1): raise ValueError(type(x).__name__)",
        "n = self.n\nn += 1\ncheap = n > 4",
        "cheap = fast and x.shape[0] in (4, 8) and x.device.type == 'cuda'",
        "a, b = (torch.empty((), device=x.device) for _ in range(2))",
        "w = {f'b{i}': i for i in range(3)}[f'b{1}']",
        "x = helper(x)",
        "if self.a is None: self.a = {}\nif 1 not in self.a: self.a[1] = [2]\ny = self.a[1]",
        "for (i,) in enumerate(()): pass\nfor i, (a, b) in enumerate(()): cheap = a == b",
    ],
)
def test_caches_and_what_puts_a_tensor_right_are_judged(lines: str) -> None:
    assert read(lines).fault == ""


ONE = "t = torch.zeros(1, device='cuda', dtype=torch.half)\n"
MISSES = [
    "if self.a is None: self.a = alpha",
    "if not self.a: self.a = alpha",
    "if not hasattr(self, 'p'): self.p = alpha",
    "if self.a is None: self.a = isinstance(alpha, int)",
    "if self.a is None: self.a = x[0, 0].item()",
    "if self.a is None: self.a = (lambda v: v * 2)(alpha)",
    "if self.a is None: self.a = [*map(lambda v: v * 2, [alpha])]",
    "if self.a is None: self.a = 2.0 if self.training else 0.5",
    "y = mode(self.other)",
    "if self.a is None: self.a = torch.zeros(x.shape[0], dtype=x.dtype, device=x.device)",
    "if self.a is None or self.a.device != x.device: self.a = torch.empty_like(x)",
    "if alpha > 0:\n    if self.a is None: self.a = 1\nelif self.a is None: self.a = 2\ny = self.a",
    "c = 1\nif x.shape[0] > 4: c = 2\nif self.a is None: self.a = c",
    "c = 0\nfor _ in range(x.shape[0]): c += 1\nif self.a is None: self.a = c",
    "c = 0\nwhile c < x.shape[0]: c += 1\nif self.a is None: self.a = c",
    "if self.a is None: self.a = len([1 for _ in range(x.shape[0])])",
    ONE + "t.fill_(alpha)\nif self.a is None: self.a = t",
    ONE + "v = t.view(1)\nv[0] = alpha\nif self.a is None: self.a = t",
    ONE + "kernel[(1,)](x, x, t, alpha, 1, BLOCK=1)\nif self.a is None: self.a = t",
    ONE + "torch.add(t, alpha, out=t)\nif self.a is None: self.a = t",
    ONE + "def put(v): v.fill_(alpha)\nput(t)\nif self.a is None: self.a = t",
    "t = []\nt.append(alpha)\nif self.a is None: self.a = t",
    "if 1 not in KEYED: KEYED[1] = alpha\ny = KEYED[1]",
    "if x.dtype not in KEYED: KEYED[x.dtype] = alpha\ny = KEYED[x.dtype]",
    "key = int(alpha * 4)\nif key not in KEYED: KEYED[key] = alpha\ny = KEYED[key]",
    "n, m = x.shape\nif n not in KEYED: KEYED[n] = m\ny = KEYED[n]",
    "n = x.dtype\nkey = (n, 1)\nn = alpha\nif key not in KEYED: KEYED[key] = n\ny = KEYED[key]",
    "if (1, alpha) not in KEYED: KEYED[1, alpha], KEYED[1] = 1, alpha\ny = KEYED[1, alpha]",
    "if self.a is None or self.b != alpha: self.a, self.b = alpha, int(alpha)\ny = self.a",
    "if self.b != alpha and x.shape[0] > 4: self.a, self.b = alpha, alpha\ny = self.a",
    "if self.a is None or self.a < alpha: self.a = alpha\ny = self.a",
    "if self.a is None: self.a = 0.5\ny = self.a\nself.a = alpha",
    "if self.a is None: self.a = 0.5\ny = self.a\nif alpha > 3: self.a = 2.0",
    "if self.a is None and alpha > 3: self.a = 1.0\ny = self.a",
    "self.b = alpha\nif self.a is None: self.a = self.b",
    "if self.b != alpha: self.b = alpha\nif self.a is None: self.a = self.b",
]


@pytest.mark.parametrize("lines", MISSES)
def test_a_cache_is_asked_for_all_that_it_depends_on(lines: str) -> None:
    assert "keeps what depends on" in read(lines, before=KEYS).fault


def test_a_functions_key_is_not_its_callers() -> None:
    fill = "def fill(n):\n    if n in KEYED: return KEYED[n]\n    KEYED[n] = n\n    return n\n"
    assert read("n = x.shape[0]\nc = fill(1) + fill(n)", before=KEYS + fill).fault == ""
    lines = "n = x.shape[0]\nfill(1)\ncheap = n in KEYED"
    assert "KEYED[n]" in read(lines, before=KEYS + fill).fault


KEYS = """
import functools
KEYED = {}


@functools.lru_cache
def mode(model):
    return model.training


def ramp(n, seen={}):
    if n not in seen: seen[n] = torch.arange(n)
    return seen[n]
"""


@pytest.mark.parametrize(
    "lines",
    [
        "if alpha not in KEYED: KEYED[alpha] = alpha * 2\ny = KEYED[alpha]",
        "key = (tuple(x.shape), x.device)\nif key not in KEYED: KEYED[key] = x.new_empty(x.shape)",
        "n, m = x.shape\nb = n * m // 4\nif (b, 1) not in KEYED: KEYED[b, 1] = torch.zeros(b)",
        "w = KEYED.get(x.size(1))\nif w is None: w = KEYED[x.size(1)] = torch.arange(x.size(1))",
        "if self.training not in KEYED: KEYED[self.training] = 2.0 if self.training else 0.5",
        "if self.b != (x.shape, x.dtype): self.a, self.b = x.shape[0] * 2, (x.shape, x.dtype)",
        "if not (self.b == alpha): self.a, self.b = alpha * 2, alpha\ny = self.a",
        "if self.b == alpha: pass\nelse: self.a, self.b = alpha * 2, alpha\ny = self.a",
        "n = x.numel() // 4\nif self.a is None or self.a.numel() < n: self.a = torch.empty(n)",
        "n = x.shape[1]\nif self.a is None or n > self.a.shape[0]: self.a = torch.arange(n)",
        "if self.a is None: self.a = self.weight.to(x.device, x.dtype).type_as(x)",
        ONE
        + "if self.a is None:\n    kernel[(1,)](self.weight, t, t, 1, 1, BLOCK=1)\n    self.a = t",
        "cheap = x.dtype is z.dtype or x.dtype is torch.half or alpha is None",
        "dtype = torch.result_type(x, z)\nwith torch.set_grad_enabled(False): y = y.to(dtype)",
        "bias = getattr(self.other, 'bias', None)",
        "t = ramp(x.shape[1])",
    ],
)
def test_a_cache_with_its_key_is_judged(lines: str) -> None:
    assert read(lines, before=KEYS).fault == ""


BIT = """
class Bit(nn.Module):
    def __init__(self):
        super().__init__()
        self.bit = False

    def flip(self, value):
        self.bit = value

    def forward(self, x):
        return x


TOP = Bit()
"""


@pytest.mark.parametrize(
    "part",
    ["self.part", "TOP", "[one for one in self.children()][0]", "self.get_submodule('part')"],
)
def test_what_a_call_keeps_on_a_part_is_read_by_its_own_methods(part: str) -> None:
    lines = f"cheap = {part}.bit\nself.part.flip(not cheap)"
    assert ".bit" in read(lines, init="self.part = Bit()", before=BIT).fault
    lines = f"cheap = hasattr({part}, 'bit')\nself.part.flip(True)"
    assert ".bit" in read(lines, init="self.part = Bit()", before=BIT).fault
    assert read(f"cheap = {part}.bit", init="self.part = Bit()", before=BIT).fault == ""
    assert read("self.part.flip(True)", init="self.part = Bit()", before=BIT).fault == ""


@pytest.mark.parametrize(
    ("init", "helper", "before"),
    [
        ("ModelNew.num_made += 1", "", ""),
        ("NUMBERS.append(1)", "", ""),
        ("self.it = iter(range(9))", "", ""),
        ("self.it = (i for i in range(9))", "", ""),
        ("self.it = zip(range(9), range(9))", "", ""),
        ("self.fun = lambda x: NUMBERS.append(1)", "", ""),
        ("seen = []\nself.fun = lambda x: seen.append(1)", "", ""),
        ("", "seen.append(1)", ""),
        ("", "seen[0] = 1 + seen[0]", ""),
        ("", "", "class Meta(type):\n    pass\nclass Odd(metaclass=Meta):\n    pass\nOdd()\n"),
        ("", "", "@sys.settrace\ndef hook(): pass\nimport sys\n"),
        ("", "", "def odd(x: exec('')): pass\n"),
        ("", "", "def odd(x=exec('')): pass\n"),
        ("", "", "class Odd:\n    exec('')\n"),
        ("", "", "from torch import *\n"),
        ("self.k = NUMBERS[0]", "", "if __name__ == '__main__':\n    NUMBERS = [1]\n"),
        ("", "", "try:\n    import os\n    FAST = os.environ\nexcept ImportError:\n    pass\n"),
        ("", "", "torch.manual_seed = None\n"),
        ("", "", "len = 3\n"),
    ],
)
def test_no_other_place_keeps_a_count_or_names_more(init: str, helper: str, before: str) -> None:
    found = read("x = helper(x)", init=init or "pass", helper=helper or "pass", before=before)
    assert found.fault.startswith("cannot be judged: ")


@pytest.mark.parametrize(
    "last",
    ["return x.contiguous()", "else:\n        return x.contiguous()", "return x.clone() * 2"],
)
def test_a_function_may_put_a_tensor_right(last: str) -> None:
    code = f"def right(x):\n    if x.is_contiguous():\n        return x\n    {last}\n"
    assert bool(read("x = right(x)", before=code).fault) == ("* 2" in last)


def test_a_module_has_titles() -> None:
    assert read(before="__all__ = ['ModelNew']\n__version__ = '1'\n").fault == ""
    assert "__all__" in read("cheap = __all__", before="__all__ = ['ModelNew']\n").fault
    assert "__file__" in read(before="__file__ = ''\n").fault


def test_a_constant_that_python_cannot_write_hides_nothing() -> None:
    code = f"import os\nBIG = 0x{'f' * 4000}\n"
    assert read("cheap = os.environ", before=code).fault.startswith("cannot be judged: ")


METHODS = [
    "__setstate__(self, state)", "__getattr__(self, name)", "load_state_dict(self, state)",
    "train(self, mode=True)", "to(self, device)", "_apply(self, fn)", "state_dict(self)",
]  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_a_class_defines_no_method_that_torch_calls(method: str) -> None:
    code = HEAD + MODEL.format(line="pass", init="pass", helper="pass")
    found = host_code(code + f"\n    def {method}:\n        pass\n", entry_point="ModelNew")
    assert method.partition("(")[0] in found.fault


@pytest.mark.parametrize(
    "name", ["torch.is_grad_enabled()", "os.getpid()", "tl.core.os", "x.requires_grad", "x._x"]
)
def test_a_kernels_names_are_pythons(name: str) -> None:
    kernel = f"import os\n@triton.jit\ndef odd(x):\n    if {name}:\n        pass\n"
    assert read("odd[(1,)](x)", before=kernel).fault.startswith("cannot be judged: ")


def test_training_and_gradients_are_told_to_the_judge() -> None:
    found = read("if self.training: cheap = True")
    assert (found.fault, found.modes, found.training_line) == ("", ("eval",), 0)
    found = read("if self.training != self.other.training: cheap = True")
    assert found.fault == ""
    assert found.training_line > 0
    found = read("if torch.is_grad_enabled() and x.requires_grad: cheap = True")
    assert (found.fault, found.modes) == ("", ("gradients",))
    two = "if x.requires_grad: cheap = True\nif y.requires_grad: cheap = False"
    assert read(two).fault.startswith("cannot be judged: ")


@pytest.mark.parametrize("method", ["forward", "__call__"])
def test_a_method_that_looks_like_a_kernel_is_followed(method: str) -> None:
    code = f"""
from triton import jit
def jit(f): return f
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.n = self.kept = 0
    def compute(self, x):
        y = torch.empty_like(x)
        kernel[(1,)](x, x, y, x.numel(), 1, BLOCK=1024)
        return y
    @jit
    def {method}(self, x):
        self.n += 1
        if self.n > 3: return self.kept
        self.kept = self.compute(x)
        return self.kept
"""
    assert "self.n" in host_code(HEAD + code, entry_point="ModelNew").fault


def test_what_nothing_names_is_no_host_code() -> None:
    code = "import os\ndef bench():\n    print(os.environ)\nclass Model:\n    def f(self): os.x\n"
    assert read(before=code).fault == ""
    assert read("bench()", before=code).fault.startswith("cannot be judged: host code names os")


HARMLESS = """
add arccosh arcsinh arctanh as_strided_scatter byte char chalf cdouble cfloat corrcoef dequantize
device dim dtype element_size fill_diagonal_ forward extra_repr int is_cuda is_nonzero is_same_size
is_signed is_sparse item itemsize layout logdet long lu lu_solve mark_dirty mark_non_differentiable
nbytes ndim ndimension nelement new_empty new_tensor new_empty_strided pin_memory pinverse
save_for_backward saved_tensors set_materialize_grads shape short size solve stride sum_to_size
tolist type_as bool mH unsafe_chunk unsafe_split unsafe_split_with_sizes arccosh_ arcsinh_ arctanh_
"""


def test_every_attribute_of_torchs_and_tritons_objects_is_known() -> None:
    """New ones of a later version must be looked at: do they tell of the process?"""
    objects = (
        torch.Tensor,
        torch.nn.Module,
        torch.autograd.Function,
        JITFunction,
        Autotuner,
        Heuristics,
    )
    objects += functools.partial, functools.lru_cache(lambda: None)
    found = {name for one in objects for name in dir(one) if name[0] != "_"}
    known = host_names.COMPUTED | host_names.TELLING | host_names.BUILDING | host_names.ASKED
    known |= {f"{name}_" for name in host_names.COMPUTED} | host_names.METHODS
    known |= {*HARMLESS.split()}
    known |= {"smart_apply"}  # which transformers adds to modules, where a test has imported it
    assert sorted(found - known) == []
    modules = {n for n, one in vars(triton.language).items() if inspect.ismodule(one)}
    assert modules <= host_names.INNER


PLAIN = (
    PLAIN_HEAD + "class ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x\n"
)


@pytest.mark.parametrize(
    "code",
    [
        f"# \u00e9\n{PLAIN}",
        f"# coding: latin-1\n{PLAIN}",
        PLAIN.replace("\n", "\r\n"),
        f"import numpy as np\n{PLAIN}",
        f"print(1)\n{PLAIN}",
        f"torch.backends.cudnn.benchmark = True\n{PLAIN}",
        PLAIN + "#" * 40_000,
    ],
)
def test_what_a_process_may_notice_is_captured_in_a_child_of_its_own(code: str) -> None:
    assert host_code(PLAIN, entry_point="ModelNew").is_shareable
    found = host_code(code, entry_point="ModelNew")
    assert (found.fault, found.is_shareable) == ("", False)


def test_generated_answers_share_a_child() -> None:
    problems = generate_problems(ProblemsTable(sft_by_level=[5, 5, 5, 5]), seed=3)[:30]
    found = {o.problem_id: host_code(answer(o), entry_point="ModelNew") for o in problems}
    assert {name for name, one in found.items() if one.fault or not one.is_shareable} == set()
    assert host_code(RELU_KERNEL, entry_point="ModelNew").is_shareable
