"""Compares the outputs of two runs of one call. Called by `confirm` and `leftovers`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forge.evalpool.judge.execute.cpu.tensors import Tensors

TOLERANCE = 1e-3
"""Relative difference of an output between two orders that atomic sums of floats may have."""
FLOATS = {"float64": np.float64, "float32": np.float32, "float16": np.float16}


def has_other_outputs(tensors: Tensors, outputs: list[NDArray[Any]]) -> bool:
    """True if a program's outputs are now different from those of an earlier run."""
    program = tensors.program
    return any(
        _differ(before, tensors.read(number), program.tensors[number].dtype)
        for before, number in zip(outputs, program.outputs, strict=True)
    )


def _differ(before: NDArray[Any], after: NDArray[Any], dtype: str) -> bool:
    """True if two runs' outputs differ by more than the order of a sum explains."""
    if np.array_equal(before, after):
        return False
    if dtype == "bfloat16":
        values = [(one.astype(np.uint32) << 16).view(np.float32) for one in (before, after)]
    elif dtype in FLOATS:
        values = [one.view(FLOATS[dtype]) for one in (before, after)]
    else:
        return True
    with np.errstate(all="ignore"):  # poison may be a signalling NaN
        first, second = (one.astype(np.float64) for one in values)
        scale = float(np.abs(first[np.isfinite(first)]).max(initial=0.0))
        near = np.isclose(first, second, rtol=TOLERANCE, atol=TOLERANCE * scale, equal_nan=True)
    return not bool(near.all())
