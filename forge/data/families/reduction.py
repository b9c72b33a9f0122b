"""Family `reduction`: a chain, then sum, mean, maximum or minimum of each row."""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING

from forge.data.families.ops import Chain, apply, is_sound, is_sound_in_half
from forge.data.families.rows import RowFamily, RowVariant

if TYPE_CHECKING:
    from collections.abc import Callable

_LINES = {
    variant: RowVariant(
        result=f"torch.{torch}({{c}}, dim=1)",
        after=(f"x = tl.where(mask, {{c}}, {neutral})", f"x = {triton}"),
    )
    for variant, torch, neutral, triton in (
        ("sum", "sum", "0.0", "tl.sum(x, axis=0)"),
        ("mean", "mean", "0.0", "tl.sum(x, axis=0) / {n}"),
        ("max", "amax", 'float("-inf")', "tl.max(x, axis=0)"),
        ("min", "amin", 'float("inf")', "tl.min(x, axis=0)"),
    )
}
"""Masked elements get the value that is neutral for the reduction."""
_PYTHON: dict[str, Callable[[list[float]], float]] = {
    "sum": sum,
    "mean": lambda values: sum(values) / len(values),
    "max": max,
    "min": min,
}


_NUM_ROWS, _NUM_COLS = 12, 60
_RNG = Random(0)
_ROWS = [[_RNG.gauss(0.0, 1.0) for _ in range(_NUM_COLS)] for _ in range(_NUM_ROWS)]
_MIN_SPREAD = 0.04
"""Smallest standard deviation over rows, relative to max(root mean square, 0.5)."""


_ROUNDED = {"softplus", "logsigmoid"}
"""Small values of log(1 + exp(-|x|)) have the rounding error of the 1; extrema may be small."""


_WIDE = tuple(-5.0 + 0.0101 * i for i in range(1000))
"""Points over the range of long rows; without opposite pairs, so equal values mean a plateau."""


class Reduction(RowFamily):
    """A family whose chains must suit the reduction."""

    def accepts(self, variant: str, chain: Chain) -> bool:
        """True for a sound chain whose reduction varies and depends on each step.

        The maximum of a bounded chain hardly differs between rows, and not at all between long
        ones; ReLU does not change a maximum above zero. Also false if rounding could fail an honest
        kernel.
        """
        is_extremum = variant in ("max", "min")
        if not is_sound(chain) or (is_extremum and _ROUNDED & set(chain)):
            return False
        reduce = _PYTHON[variant]
        out = [reduce([apply(chain, x) for x in row]) for row in _ROWS]
        mean = sum(out) / len(out)
        rms = math.sqrt(sum(v * v for v in out) / len(out))
        spread = math.sqrt(sum((v - mean) ** 2 for v in out) / len(out))
        varies = spread > _MIN_SPREAD * max(rms, 0.5)
        return varies and not (is_extremum and (_is_flat(chain, reduce) or _is_idle(chain, reduce)))

    def accepts_half(self, variant: str, chain: Chain) -> bool:
        """True for a sum or mean: an extremum of a chain that crosses zero is all rounding where
        eager mode rounds each step."""
        return variant in ("sum", "mean") and is_sound_in_half(chain)


def _is_flat(chain: Chain, extremum: Callable[[list[float]], float]) -> bool:
    """True if the chain has a plateau at its extremum, so that all long rows give one value."""
    values = [apply(chain, x) for x in _WIDE]
    return values.count(extremum(values)) > 1


def _is_idle(chain: Chain, extremum: Callable[[list[float]], float]) -> bool:
    """True if a row's extremum is the same without one of the steps."""
    row = _ROWS[0]
    whole = extremum([apply(chain, x) for x in row])
    fewer = (chain[:i] + chain[i + 1 :] for i in range(len(chain)))
    return any(extremum([apply(one, x) for x in row]) == whole for one in fewer)


REDUCTION = Reduction(name="reduction", variants=tuple(_LINES), lines=_LINES, reduces=True)
