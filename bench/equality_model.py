"""The errors that a card may make, propagated by evaluating a program several times.

`bench.equality` compares a card's outputs with the evaluator's. Both are right within the freedom
that floating point leaves: contraction to fused multiply-adds, approximate divisions, roots and
exponentials, the order of sums and of atomics. Each operation whose result is rounded gets a random
error of the size that the card may make there, and a program runs NUM_SAMPLES times with other
errors: `equality_compare.py` says what may differ. Sums and products of numbers with few digits
have no error, so integers and copies are compared exactly, unless an integer depends on an error
itself (a quantised value).

Not modelled: operations of torch between the launches, and overflow in another order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from forge.evalpool.judge.ttir.semantics.approximate import FUNCTIONS, INSTRUCTIONS
from forge.evalpool.judge.ttir.semantics.elements import to_float
from forge.evalpool.judge.ttir.semantics.floats import FUNCTIONS as ROUNDED
from forge.evalpool.judge.ttir.types import Scalar, element_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

NUM_SAMPLES = 6
UNIT = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
"""Unit in the last place of 1. Rounding alone errs by half of it: less would be rounded away."""
FEW_BITS = {"f64": 26, "f32": 12, "f16": 5, "bf16": 4}
"""Half of a type's digits: products of numbers with so few are exact, and sums of such mostly."""
EXACT = frozenset({"arith.addf", "arith.subf", "arith.mulf"})
"""Operations that are exact for such numbers, in any order."""
APPROXIMATE = {
    "arith.divf": 2.0, "tt.approx_divf": 2.0, "math.sqrt": 2.0, "math.rsqrt": 2.0,
    "math.exp": 3.0, "math.exp2": 2.0, "tt.extern_elementwise": 4.0,
    "tt.elementwise_inline_asm": 4.0,
}  # fmt: skip
"""Units in the last place (PTX ISA, section 9.7.3; CUDA programming guide, "Mathematical
functions"); other functions whose result is rounded have OTHER."""
OTHER = 4.0
FURTHER = ("math.fma", "math.fpowi", "math.sincos")
"""Rounded functions that are not in `floats.FUNCTIONS`."""
EXACT_SYMBOLS = frozenset(
    {
        *("fabs", "fmin", "fmax", "floor", "ceil", "trunc", "rint", "nearbyint", "round"),
        *("copysign", "saturate", "isnan", "isinf", "finite", "signbit"),
    }
)
"""Functions of libdevice whose result is exact, without the type's letter."""
TANH_APPROX = 2.0**-10.5
PRODUCT, NARROW_PRODUCT = 2.0**-22, 2.0**-12
"""Error of a product of blocks over the sum of its terms' magnitudes; tensor cores add products of
8-bit floats with 14 bits."""
TF32 = 2.0**-10


@dataclass(slots=True)
class Noise:
    """The errors of the evaluation that is under way; none while `draw` is None."""

    draw: np.random.Generator | None = None

    def within(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Numbers from -1 to 1."""
        assert self.draw is not None
        return self.draw.uniform(-1.0, 1.0, shape)


NOISE = Noise()


def install() -> None:
    """Wraps the evaluator's operations in this process: plans that are made later have errors while
    `NOISE.draw` is set."""
    from forge.evalpool.judge.ttir import semantics
    from forge.evalpool.judge.ttir.control import regions
    from forge.evalpool.judge.ttir.memory import atomics
    from forge.evalpool.judge.ttir.steps import descriptors

    table: Any = semantics.OPERATIONS
    for name, operation in dict(table).items():
        if name == "tt.dot":
            table[name] = _noisy_product(operation)
        elif name in ROUNDED or name in APPROXIMATE or name in FURTHER:
            table[name] = _noisy(name, operation)
    regions.reduce, regions.scan = _noisy_sums(regions.reduce), _noisy_sums(regions.scan)
    atomics.update = descriptors.update = _noisy_update(atomics.update)


def _noisy(name: str, operation: Any) -> Any:
    def apply(operands: Sequence[Any], signature: Any, attributes: Any) -> list[Any]:
        found = operation(operands, signature, attributes)
        if NOISE.draw is None:
            return found
        kinds = signature.results
        return [
            _moved(name, one, operands, kind, attributes)
            for one, kind in zip(found, kinds, strict=True)
        ]

    return apply


def _moved(name: str, result: Any, operands: Sequence[Any], kind: Any, attributes: Any) -> Any:
    """A result with an error, rounded to its type."""
    scalar = element_of(kind)
    if not isinstance(scalar, Scalar) or scalar.name not in UNIT:
        return result
    if _symbol(attributes).removesuffix("f") in EXACT_SYMBOLS:
        return result
    wide = result.astype(np.float64)
    parts = [one.astype(np.float64) for one in operands if one.dtype.kind == "f"]
    if name in EXACT:
        are_few = [_has_few_bits(one, scalar.name) for one in parts]
        size = np.where(np.logical_and(*are_few), 0.0, np.abs(wide) * UNIT[scalar.name])
    else:
        size = np.abs(wide) * UNIT[scalar.name] * APPROXIMATE.get(name, OTHER)
        if name in ("math.exp", "math.exp2"):
            size = size * (1 + np.abs(parts[0]) / 4)
        size = np.maximum(size, _documented(name, wide, parts, attributes))
    found = wide + size * NOISE.within(wide.shape)
    found = np.where(np.isfinite(found), found, wide)
    return to_float(found.astype(np.float32) if scalar.name != "f64" else found, scalar)


def _has_few_bits(values: Any, kind: str) -> Any:
    """True for numbers with at most `FEW_BITS` significant bits, and for zeros."""
    whole = np.frexp(values)[0] * 2.0 ** FEW_BITS[kind]
    return whole == np.trunc(whole)


def _symbol(attributes: Any) -> str:
    """Name of a function of libdevice; empty for any other operation."""
    return str(attributes.get("symbol", "")).removeprefix("__nv_")


def _documented(name: str, exact: Any, operands: list[Any], attributes: Any) -> Any:
    """Bound of an approximate function or instruction, twice: the evaluator errs within it, too."""
    symbol = _symbol(attributes)
    text = str(attributes.get("asm_string", ""))
    bounds = [FUNCTIONS[symbol]] if symbol in FUNCTIONS else []
    bounds += [bound for word, bound in INSTRUCTIONS.items() if f"{word}.approx" in text]
    if "tanh.approx" in text or symbol == "fast_tanhf":
        bounds.append(lambda exact, operands: np.abs(exact) * TANH_APPROX)
    given = list(np.broadcast_arrays(*operands)) if operands else []
    if not bounds or any(one.shape != exact.shape for one in given):
        return 0.0
    return 2 * np.max([bound(exact, given) for bound in bounds], axis=0)


def _noisy_sums(function: Any) -> Any:
    """`reduce` or `scan`: sums of the same numbers in another order."""

    def apply(operands: Sequence[Any], axis: int, *rest: Any) -> list[Any]:
        found = function(operands, axis, *rest)
        (kind,) = {one.dtype for one in operands[:1]}
        if NOISE.draw is None or rest[-1] != "arith.addf":
            return found
        wide = found[0].astype(np.float64)
        terms = np.sqrt(np.square(operands[0].astype(np.float64)).sum(axis=axis + 1, keepdims=True))
        terms = terms if wide.ndim == terms.ndim else terms.squeeze(axis + 1)
        unit = UNIT["f64"] if kind == np.float64 else UNIT["f32"]
        moved = wide + unit * (np.abs(wide) + terms) * NOISE.within(wide.shape)
        return [np.where(np.isfinite(moved), moved, wide).astype(kind)]

    return apply


def _noisy_update(function: Any) -> Any:
    """`atomics.update`: sums of floats in another order."""

    def apply(group: Any, addresses: Any, values: Any, *rest: Any, **options: Any) -> Any:
        if NOISE.draw is not None and rest[-1] == "fadd" and values.dtype.kind == "f":
            unit = UNIT["f64"] if values.dtype == np.float64 else UNIT["f32"]
            moved = values * (1 + unit * NOISE.within(values.shape))
            values = moved.astype(values.dtype)
        return function(group, addresses, values, *rest, **options)

    return apply


def _noisy_product(operation: Any) -> Any:
    def apply(operands: Sequence[Any], signature: Any, attributes: Any) -> list[Any]:
        found = operation(operands, signature, attributes)
        kind = element_of(signature.operands[0])
        if NOISE.draw is None or not isinstance(kind, Scalar) or not kind.is_float:
            return found
        left, right, accumulator = operands
        is_tf32 = kind.name == "f32" and attributes.get("inputPrecision") == "tf32"
        if is_tf32:  # the card may round operands where the evaluator cuts them
            given = [one * (1 + TF32 * NOISE.within(one.shape)) for one in (left, right)]
            moved = [one.astype(np.float32) for one in given]
            found = operation([*moved, accumulator], signature, attributes)
        result = found[0].astype(np.float64)
        zero = np.zeros_like(accumulator, np.float32)
        given = [np.abs(left), np.abs(right), zero]
        terms = operation(given, signature, {**attributes, "inputPrecision": "ieee"})[0]
        share = NARROW_PRODUCT if kind.bits == 8 else PRODUCT if kind.bits < 64 else UNIT["f64"]
        size = share * (terms.astype(np.float64) + np.abs(accumulator))
        moved_result = result + size * NOISE.within(result.shape)
        moved_result = np.where(np.isfinite(moved_result), moved_result, result)
        scalar = element_of(signature.results[0])
        narrow = moved_result if kind.bits == 64 else moved_result.astype(np.float32)
        return [to_float(narrow, scalar)] if isinstance(scalar, Scalar) else found

    return apply


def sampled(work: Callable[[], Any], *, seed: int) -> Any:
    """The result of an evaluation with errors."""
    NOISE.draw = np.random.default_rng(seed)
    try:
        return work()
    finally:
        NOISE.draw = None
