# pyright: strict
"""Numbers among the arguments of a call, which are no tensors: `get_inputs()` gives `[x, 0.5]`.

Called by draws.py, on a CPU, where each set has a capture of its own if its arguments differ.
"""

from __future__ import annotations

import math
import random
from typing import Any

PARTS = 64
"""A number becomes so many parts of itself, less up to half of them: of the same sign, within
[0, 1] if it was, and as exact."""


def has_scalars(inputs: list[Any]) -> bool:
    """True if an argument is a float that can be another one."""
    return any(map(_is_scalar, inputs))


def with_other_scalars(inputs: list[Any]) -> list[Any]:
    """The same arguments with other floats; integers are sizes, axes or counts."""
    return [
        one * random.randrange(PARTS // 2, PARTS) / PARTS if _is_scalar(one) else one
        for one in inputs
    ]


def _is_scalar(value: Any) -> bool:
    return type(value) is float and math.isfinite(value) and value != 0
