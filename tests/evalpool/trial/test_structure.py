"""Texts of kernels: those that do not fit their program are refused, and none is kept for long."""

from __future__ import annotations

import gc
import time
import tracemalloc
from dataclasses import replace

import pytest

from forge.config.schema import ProblemsTable
from forge.data.generator import answer, generate_problems
from forge.evalpool.judge.program.dataflow import Access
from forge.evalpool.judge.program.policy import ProblemFacts
from forge.evalpool.judge.trial import structure
from forge.evalpool.judge.trial.shareable import (
    ATTRIBUTES,
    BUILTINS,
    PATHS,
    is_plain,
    keeps_nothing,
    parsed,
)
from forge.evalpool.judge.trial.source import check_source
from forge.evalpool.judge.trial.structure import MAX_KEPT_CHARACTERS, MAX_KERNELS
from forge.evalpool.judge.trial.trial import Decided, Finding
from forge.records.reason import Reason, Status
from tests.evalpool.benches import HEAD, RELU_KERNEL
from tests.evalpool.program.programs import addition

# pyright: strict


TTIR = """\
module {
  tt.func public @add(%x: !tt.ptr<f32>, %y: !tt.ptr<f32>, %n: i32) {
    %0 = tt.load %x : !tt.ptr<f32>
    tt.store %y, %0 : !tt.ptr<f32>
    tt.return
  }
}
"""


def finding(status: Status, reason: Reason | str, detail: str = "") -> Finding:
    """The finding of no candidate in particular."""
    return Finding(status=status, reason=Reason(reason), detail=detail)


def check(ttir: str) -> None:
    """Check a program of one launch whose kernel has this text."""
    program = addition()
    (kernel,) = program.kernels
    changed = replace(program, kernels=(replace(kernel, ttir=ttir),))
    structure.require_structure(changed, ProblemFacts(num_bytes=256), code="", finding=finding)


@pytest.mark.parametrize(
    ("changed", "to"), [("@add", "@sub"), (", %n: i32", "")], ids=["name", "arguments"]
)
def test_a_text_without_the_kernel_s_function_is_no_triton(changed: str, to: str) -> None:
    with pytest.raises(Decided) as refused:
        check(TTIR.replace(changed, to))
    assert refused.value.finding.reason == Reason.NOT_TRITON


def test_a_text_of_many_kernels_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of 4 MB takes seconds, and a program may have 2,000 kernels."""
    texts: list[str] = []

    def read(ttir: str, name: str) -> structure.Text:
        texts.append(ttir)
        return (Access.READ, Access.WRITE, Access.NONE), frozenset()

    monkeypatch.setattr(structure, "_read_text", read)
    program = addition()
    long = TTIR + " " * MAX_KEPT_CHARACTERS
    kernels = (replace(program.kernels[0], ttir=long),) * 2000
    facts = ProblemFacts(num_bytes=256)
    structure.require_structure(replace(program, kernels=kernels), facts, code="", finding=finding)
    assert texts == [long]


@pytest.mark.parametrize(
    ("count", "characters", "kept"),
    [
        (4 * MAX_KERNELS, 20_000, 1.5 * MAX_KERNELS * 20_000),
        (16, MAX_KEPT_CHARACTERS + 1, MAX_KEPT_CHARACTERS),
    ],
    ids=["usual texts", "long texts"],
)
def test_the_texts_of_seen_kernels_are_forgotten(count: int, characters: int, kept: float) -> None:
    check(TTIR)
    tracemalloc.start()
    try:
        for number in range(1, count):
            check(f"// {number}\n{TTIR}".ljust(characters))
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < kept
    finally:
        tracemalloc.stop()


def test_all_kernels_of_a_program_together_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a second or two of the judge's own time, of which a program has 2,000."""
    monkeypatch.setattr(structure, "MAX_READ_S", -1.0)
    with pytest.raises(Decided) as caught:
        check(TTIR)
    assert caught.value.finding.reason is Reason.UNSUPPORTED


MODEL = "class ModelNew:\n    pass\n"
NUM_LEVELS = 19


def nested_finally() -> str:
    """Clauses one in the other, each of which Python's compiler writes twice."""
    lines = [f"{' ' * (level // 2)}{('try: pass', 'finally:')[level % 2]}" for level in range(38)]
    return "\n".join([*lines, " " * NUM_LEVELS + "x = 1", MODEL])


def test_a_source_takes_as_long_as_it_is() -> None:
    began = time.thread_time()
    assert check_source(nested_finally(), entry_point="ModelNew") is None
    assert time.thread_time() - began < 0.5


def test_what_only_the_compiler_finds_is_an_error_of_syntax() -> None:
    found = check_source(f"{MODEL}\nreturn 1\n", entry_point="ModelNew")
    assert found is not None
    assert found.reason is Reason.SYNTAX_ERROR


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


def refusal(code: str) -> str | None:
    found = parsed(code)
    return found if isinstance(found, str) else None


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


COUNTING = (
    "self.n += 1",
    "self.n = self.n + 1",
    "a, self.n = 1, self.n + 1",
    "l = self.l; l[0] = l[0] + 1",
    "l = self.l; l += [1]",
    "for self.n in range(self.n, self.n + 2): pass",
    "self.l.append(1)",
    "self.c.add_(1)",
    "torch.add(self.c, 1, out=self.c)",
)
NOT_COUNTING = (
    "y = torch.empty_like(x)",
    "for i in zip((1, 2), (3, 4)): y = i",
    "assert self.n < 1",
)


@pytest.mark.parametrize("line", [*COUNTING, *NOT_COUNTING])
def test_a_host_that_may_count_its_calls_is_known(line: str) -> None:
    tree = parsed(f"{HEAD}{CLASS}{line}\n        return x\n")
    assert not isinstance(tree, str)
    assert keeps_nothing(tree) == (line in NOT_COUNTING)


def test_an_iterator_of_the_constructor_may_count() -> None:
    iterator = (
        "class ModelNew(torch.nn.Module):\n    def __init__(self):\n        self.l = zip((1, 2))\n"
    )
    tree = parsed(f"{HEAD}{iterator}")
    assert not isinstance(tree, str)
    assert not keeps_nothing(tree)
