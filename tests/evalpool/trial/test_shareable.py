"""A plain source can change nothing in the process that captures it; what could is not plain."""

from __future__ import annotations

import pytest

from forge.config.schema import ProblemsTable
from forge.data.generator import answer, generate_problems
from forge.evalpool.judge.trial.shareable import ATTRIBUTES, BUILTINS, PATHS, is_plain, refusal
from tests.evalpool.benches import HEAD, RELU_KERNEL

CLASS = "class ModelNew(torch.nn.Module):\n    def forward(self, x):\n        "
AT_THE_TOP = [
    "import os",
    "import torch.nn",
    "import math as tl",
    "import torch as tl",
    "from os import path as F",
    "from torch import load",
    "from triton.language import *",
    "from . import torch",
    "tl = torch",
    "torch = 1",
    "for tl in [1]: pass",
    "m = torch",
    "x = torch.nn",
    "torch.float32 = 1",
    "tl.sum = 1",
    "x = torch.load('f')",
    "x = tl.core",
    "x = triton.runtime",
    "x = triton.jit(len)",
    "x = torch.Tensor.shape",
    "if True: pass",
    "class A: pass",
    "class A(torch.nn.Module, metaclass=M): pass",
    "class A(torch.nn.Module):\n    x = 1",
    "class A(torch.nn.Module):\n    def __call__(self): pass",
    "class A(torch.nn.Module):\n    def __init_subclass__(self): pass",
    "class A(torch.nn.Module):\n    def f(): pass",
    "class A(torch.nn.Module):\n    def f(self=torch): pass",
    "class A(torch.nn.Module):\n    def f(x, self): pass",
    "class A(torch.nn.Module):\n    @property\n    def f(self): pass",
    "class A(torch.nn.Module):\n    def f(self):\n        self = torch.zeros(1)",
    "class torch(torch.nn.Module): pass",
    "class A(torch.nn.Module):\n    def to(self): self.expand = 1\nx = A.to(torch.Tensor)",
    "class A(torch.nn.Module):\n    def put(self): self.x = 1\n    def f(self, g=put): g(tl.sum)",
    "class A(torch.nn.Module):\n    def put(self): self.x = 1\n    def f(self, g: put = 1): pass",
    "class A(torch.nn.Module):\n    def put(self): self.x = 1\n    def f(self, *, g=[put]): pass",
    "def f(self): self.x = 1",
    "f = lambda self: self.x",
    "def f(*self): return self.x",
    "def f():\n    global tl",
    "def f():\n    import os",
    "def f():\n    def g(): pass",
    "def f():\n    with x: pass",
    "def f():\n    try: pass\n    except: pass",
    "def f():\n    yield 1",
    "def f():\n    del x",
    "def len(x): return x",
    "async def f(): pass",
    "@triton.autotune(configs=[], key=[])\n@triton.jit\ndef k(x): pass",
    "@torch.no_grad()\ndef f(x): pass",
    "@triton.jit\ndef k(x, a=K): pass",
    "x: int = 1",
    "__name__ = 1",
    "print = 1",
    "x = (y := 1)",
    "x = b'1'",
]
IN_FORWARD = [
    "eval('1')",
    "getattr(x, 'y')",
    "open('f')",
    "print(x)",
    "type(x)",
    "setattr(x, 'y', 1)",
    "x.y = 1",
    "x.shape = 1",
    "x[0].y = 1",
    "ModelNew.y = 1",
    "ModelNew.forward(torch, x)",
    "self.forward.x",
    "self.__class__",
    "self.__dict__",
    "self._modules",
    "self.x.__class__ = 1",
    "super().forward(x)",
    "super(ModelNew, x).forward",
    "super().__setattr__('a', 1)",
    "super()",
    "super",
    "x.register_hook(len)",
    "x.item()",
    "x.data = x",
    "kernel.run(x)",
    "kernel.warmup(x, grid=(1,))",
    "kernel.pre_run_hooks.append(len)",
    "kernel.src = ''",
    "kernel[(1,)](**{'grid': 1})",
    "'{0.x}'.format(x)",
    "''.join([])",
    "torch.manual_seed(1)",
    "torch.nn.functional.grid_sample",
    "torch.nn.init.zeros_(x)",
    "torch.ops.aten.add(x, x)",
    "torch.set_default_dtype(torch.float16)",
    "torch.backends.cuda.matmul.allow_tf32",
    "torch.cuda.synchronize()",
    "(torch)",
    "[torch][0]",
    "len(torch)",
    "(lambda t: t)(tl)",
    "(lambda torch: torch)(x)",
    "[1 for torch in x]",
    "[1 for self in x]",
    "tl.inline_asm_elementwise('', '', [], tl.int32, False, 1)",
    "tl.static_print(x)",
    "tl.extra.cuda.libdevice",
    "__import__('os')",
    "__builtins__",
    "x.__getattribute__('a')",
]


def test_generated_answers_are_plain() -> None:
    problems = generate_problems(ProblemsTable(sft_by_level=[5, 5, 5, 5]), seed=3)[:30]
    refused = {one.problem_id: refusal(answer(one)) for one in problems}
    assert not {name: words for name, words in refused.items() if words is not None}
    assert is_plain(RELU_KERNEL)


@pytest.mark.parametrize("line", AT_THE_TOP)
def test_a_source_that_could_reach_more_than_its_own_is_not_plain(line: str) -> None:
    assert is_plain(HEAD + CLASS + "return x\n")
    assert refusal(f"{HEAD}{line}\n{CLASS}return x\n") not in (None, "SyntaxError")


@pytest.mark.parametrize("line", IN_FORWARD)
def test_a_method_that_could_reach_more_than_its_own_is_not_plain(line: str) -> None:
    assert refusal(f"{HEAD}{CLASS}{line}\n        return x\n") not in (None, "SyntaxError")
    kernel = f"@triton.jit\ndef kernel(x):\n    {line}\n"
    assert not is_plain(f"{HEAD}{kernel}{CLASS}return x\n")


@pytest.mark.parametrize(
    "code",
    [
        f"# coding: utf-7\n{HEAD}{CLASS}return x\n",
        f"\n# -*- coding=rot13 -*-\n{HEAD}{CLASS}return x\n",
        f"{HEAD}{CLASS}return x # \r import os\n",
        f"{HEAD}{CLASS}return x # \f\n",
        f"{HEAD}{CLASS}return x # é\n",
        f"{HEAD}{CLASS}return x\0\n",
        f"{HEAD}{CLASS}return {'(' * 80}x{')' * 80}{'.T' * 80}\n",
        f"{HEAD}{CLASS}return x\n{'#' * 40_000}\n",
        "not Python",
    ],
)
def test_a_text_that_triton_may_read_in_another_way_is_not_plain(code: str) -> None:
    assert not is_plain(code)


def test_no_list_has_a_hidden_name_or_a_module() -> None:
    names = {*ATTRIBUTES, *BUILTINS, *(part for path in PATHS for part in path.split("."))}
    assert not [name for name in names if name.startswith("_")]
    assert not {"torch", "nn", "F", "triton", "tl", "math"} & PATHS
    forbidden = {"load", "save", "jit", "format", "format_map", "apply", "map_", "item", "data"}
    assert not forbidden & ATTRIBUTES
    assert {"torch.load", "torch.save", "triton.jit", "tl.static_print"}.isdisjoint(PATHS)
