"""References whose outputs differ from run to run, or are never finite: none can be judged.

Called by draws.py, once for each draw.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.numbers.called import Unjudgeable, call, dtype_name, is_equal
from forge.evalpool.judge.numbers.finite import is_any_finite, widened
from forge.evalpool.judge.numbers.tolerance import tolerance
from forge.records.examination import Flag

if TYPE_CHECKING:
    from forge.evalpool.judge.numbers.input_set import InputSet


def require_same(model: Any, made: InputSet, *, precision: str, is_cpu: bool) -> None:
    """Raises Unjudgeable where a second run gives other outputs: dropout, random numbers. On a GPU
    the order of atomic additions may differ: there it must agree within the tolerance."""
    again = call(model, made.inputs).results(made.changed)
    for output, repeated in zip(made.outputs, again, strict=True):
        first, second = widened(output), widened(repeated)
        if first.is_floating_point() and first.numel() and not is_any_finite(first):
            raise Unjudgeable("no value of the reference is finite: any answer would do")
        if is_equal(first, second):
            continue
        a, b = first.nan_to_num(), second.nan_to_num()
        close = tolerance(dtype_name(output), precision)
        rms = a.double().square().mean().sqrt()
        if is_cpu or float((a - b).abs().max()) > close * float(rms):
            text = "nondeterministic: two runs on the same inputs differ"
            raise Unjudgeable(text, flag=Flag.NONDETERMINISTIC)
