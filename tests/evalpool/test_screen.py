"""What the source alone may not say."""

from __future__ import annotations

import pytest

from forge.evalpool.judge.screen import screen

HONEST = """
from __future__ import annotations
import math
from dataclasses import dataclass
import torch, triton
import torch.nn.functional as F
import triton.language as tl

@triton.jit
def k(x, n, B: tl.constexpr):
    pass

@dataclass
class Options:
    block: int = 64

class ModelNew(torch.nn.Module):
    def __init__(self, size=3):
        super().__init__()
        self._size = size
    def forward(self, x):
        try:
            block = getattr(Options(), "block")
        except AttributeError:
            block = 32
        k[(1,)](x, x.numel(), B=block)
        return F.pad(x, (0, 0)).contiguous()

if __name__ == "__main__":
    pass
"""


def test_what_kernels_need_is_fine() -> None:
    assert screen(HONEST, entry_point="ModelNew").reason == "ok"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("import os", "forbidden_import"),
        ("import forge.data", "forbidden_import"),
        ("from torch import _C", "forbidden_import"),
        ("import torch.utils.cpp_extension", "forbidden_import"),
        ("from triton.runtime import jit", "forbidden_import"),
        ("from . import x", "forbidden_import"),
        ("f = torch.compile", "forbidden_attribute"),
        ("f = torch.ops.aten", "forbidden_attribute"),
        ("f = torch._C", "forbidden_attribute"),
        ("f = (1).__class__.__subclasses__", "forbidden_attribute"),
        ("f = torch.ones(1).numpy()", "forbidden_attribute"),
        ("f = eval('1')", "forbidden_name"),
        ("f = open('x')", "forbidden_name"),
        ("f = __builtins__", "forbidden_name"),
        ("f = getattr(torch, 'o' + 'ps')", "forbidden_call"),
        ("f = getattr(torch, '_C')", "forbidden_call"),
        # The same under another name, or by another way.
        ("import torch as t; f = t.compile", "forbidden_attribute"),
        ("from torch import nn; f = nn.utils", "forbidden_attribute"),
        ("f = torch.nn.functional.torch", "forbidden_attribute"),
        ("t = torch", "forbidden_name"),
        ("for t in (torch,): t.compile", "forbidden_name"),
        ("from torch import *", "forbidden_import"),
        ("f = torch.builtins.exec", "forbidden_attribute"),
        ("f = torch.os.system", "forbidden_attribute"),
        ("f = torch.sys.modules", "forbidden_attribute"),
        ("f = F.importlib.import_module", "forbidden_attribute"),
        ("f = ModelNew().x.threading", "forbidden_attribute"),
        ("from torch import sys", "forbidden_import"),
        ("g = getattr; g(torch, '_C')", "forbidden_name"),
        ("f = functools.reduce(getattr, ['nn'], F)", "forbidden_name"),
        ("f = getattr(torch, 'compile')", "forbidden_call"),
        ("setattr(tl, 'exp', None)", "forbidden_call"),
        ("tl.exp = None", "forbidden_attribute"),
        ("import typing; typing.get_type_hints(k)", "forbidden_attribute"),
        ("from typing import get_type_hints", "forbidden_import"),
        ("import numpy as np; f = np.asarray(x)", "forbidden_attribute"),
        ("f = vars(F)", "forbidden_name"),
    ],
)
def test_what_cheats_need_is_refused_with_its_line(line: str, reason: str) -> None:
    screening = screen(HONEST + line, entry_point="ModelNew")
    assert screening.reason == reason
    assert screening.detail.startswith(f"line {HONEST.count(chr(10)) + 1}: {line}")


@pytest.mark.parametrize(
    "code",
    [
        "def f(input, vars): return [input for _ in vars(input)]",
        "def f(x): return torch.select(x, 0, 1).copy_(x) if hasattr(tl, 'exp2') else x",
        "def f(x): return getattr(torch, 'float16'), x.load([0]), F.relu(x), math.pi",
        "class A:\n    def __init__(self): self.types, self.compile = 1, 2",
        "torch.backends.cuda.matmul.allow_tf32 = True",
        "import numpy as np; f = np.sqrt(2) * np.prod([2, 3])",
        "from torch import Tensor, nn; f = isinstance(nn.Linear, Tensor)",
    ],
)
def test_what_only_looks_like_a_cheat_is_fine(code: str) -> None:
    screening = screen(f"{HONEST}\n{code}\n", entry_point="ModelNew")
    assert screening.reason == "ok", screening.detail


@pytest.mark.parametrize(
    "code",
    [
        "def f(vars): return 1\ndef g(): return vars(F)",
        "def f():\n    if 0: vars = 1\n    def g(): global vars; return vars(F)",
        "class A:\n    if 0: vars = 1\n    d = vars(F)",
        "if 0: vars = 1\nd = vars(F)",
        "match F:\n    case object(torch=t): t.compile",
    ],
)
def test_a_name_bound_elsewhere_still_means_the_builtin(code: str) -> None:
    assert screen(f"{HONEST}\n{code}\n", entry_point="ModelNew").reason.startswith("forbidden_")


def test_a_syntax_error_is_told_with_its_line() -> None:
    screening = screen("import torch\ndef f(:\n", entry_point="ModelNew")
    assert screening.reason == "syntax_error"
    assert screening.is_compile_error
    assert screening.detail == "line 2: def f(:\nSyntaxError: invalid syntax"


def test_the_class_and_a_kernel_must_be_there() -> None:
    assert screen("x = 1", entry_point="ModelNew").reason == "no_entry_point"
    assert screen("class ModelNew: pass", entry_point="ModelNew").reason == "no_kernel"


@pytest.mark.parametrize(
    "code", ["\0", "(" * 5000, "x" * 100_000, "\ud800", "if 1:\n\tx\n        y"]
)
def test_never_raises(code: str) -> None:
    assert not screen(code, entry_point="ModelNew").is_ok
