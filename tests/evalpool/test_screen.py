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
    ],
)
def test_what_cheats_need_is_refused_with_its_line(line: str, reason: str) -> None:
    screening = screen(HONEST + line, entry_point="ModelNew")
    assert screening.reason == reason
    assert screening.detail.startswith(f"line {HONEST.count(chr(10)) + 1}: {line}")


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
