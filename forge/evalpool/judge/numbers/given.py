"""Inputs as a problem gives them, on its device and in its precision.

Called by the oracle and by wide/sets.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from forge.evalpool.judge.numbers.called import on_device
from forge.evalpool.judge.numbers.file_inputs import make_inputs

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Terms of the computation of a problem."""

    precision: str
    rounding: str = ""
    """The coarsest precision that the reference rounds to, which tolerances follow; empty for the
    problem's."""
    device: str
    """`cpu` or `cuda`."""
    is_tf32: bool
    """True if there are fp32 matrix products, on a GPU, that may use TF32."""
    max_bytes: int
    """Limit for all sets together: fewer sets are made where one is large, but two."""
    is_plain: bool
    """True for inputs as the problem gives them alone: as another protocol asks for, and where any
    others ended an oracle, as a failed assertion on a GPU does."""

    @property
    def tolerated(self) -> str:
        """The precision that tolerances follow."""
        return self.rounding or self.precision


def draw_inputs(module: Any, terms: Terms) -> list[Any]:
    """Inputs as the problem gives them."""
    made = on_device(terms.device, lambda: make_inputs(module))
    return [cast(placed(value, terms), terms.precision) for value in made]


def placed(value: Any, terms: Terms) -> Any:
    """The same with every tensor on the device."""
    if isinstance(value, torch.Tensor):
        return value.to(terms.device)
    if isinstance(value, list | tuple):
        return type(value)(placed(item, terms) for item in value)
    if isinstance(value, dict):
        return {key: placed(item, terms) for key, item in value.items()}
    return value


def cast(value: Any, precision: str) -> Any:
    """Model or input tensor to the problem's precision; fp32 leaves what the problem made."""
    if precision == "fp32":
        return value
    if isinstance(value, torch.nn.Module):
        return value.to(DTYPES[precision])
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.to(DTYPES[precision])
    return value
