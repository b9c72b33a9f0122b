"""The type that torch takes where an operation names none, in a program in float64."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence


@contextmanager
def default_float(kinds: Sequence[torch.dtype]) -> Generator[None]:
    """Within, float64 is torch's default where a result is float64: `zeros(3)` of a wide program
    names no type, and in any other program nothing that gives float64 asks for the default."""
    before = torch.get_default_dtype()
    if all(one != torch.float64 for one in kinds):
        yield
        return
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
