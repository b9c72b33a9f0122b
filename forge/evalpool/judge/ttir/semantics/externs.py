"""Functions of libdevice (`__nv_*`).

Elementary functions are numpy's, and what it lacks is in `special`. Gamma and Bessel functions,
floats rounded in a direction other than to the nearest, and AMD's device libraries need a card.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from forge.evalpool.judge.ttir.semantics import special
from forge.evalpool.judge.ttir.semantics.approximate import FUNCTIONS as APPROXIMATE
from forge.evalpool.judge.ttir.semantics.approximate import approximated
from forge.evalpool.judge.ttir.semantics.casts import saturated
from forge.evalpool.judge.ttir.semantics.floats import FUNCTIONS, fma, round_half_away
from forge.evalpool.judge.ttir.semantics.formats import scalar_of, unsigned
from forge.evalpool.judge.ttir.semantics.integers import (
    count_leading_zeros,
    count_ones,
    count_trailing_zeros,
    multiply_high,
    multiply_high_signed,
)
from forge.evalpool.judge.ttir.values import Array, Operation, Unsupported, dtype_of

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.tree import Attribute, Signature

Function = Callable[..., "Array"]


def _norm(*values: Array) -> Array:
    """Euclidean length, without overflow of the squares of float32."""
    return np.sqrt(sum(value.astype(np.float64) ** 2 for value in values)).astype(values[0].dtype)


def _exponent(value: Array) -> Array:
    """Exponent of the leading bit, as a float; -inf for 0, inf for infinities, NaN for NaN."""
    exponent = np.frexp(value)[1] - 1.0
    special_value = np.where(value == 0, -np.inf, np.abs(value))
    return np.where((value == 0) | ~np.isfinite(value), special_value, exponent).astype(value.dtype)


def _integer_exponent(value: Array) -> Array:
    """`ilogb`: the smallest integer for 0 and NaN, the largest for infinities."""
    exponent = np.frexp(value)[1] - 1
    low, high = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    exponent = np.where((value == 0) | np.isnan(value), low, exponent)
    return np.where(np.isinf(value), high, exponent)


def _remainder(left: Array, right: Array) -> Array:
    """IEEE remainder: the quotient is rounded to nearest even."""
    a, b = np.abs(left), np.abs(right)
    rest = np.fmod(a, b)
    is_odd = np.fmod(a, 2 * b) >= b
    over = (rest * 2 > b) | ((rest * 2 == b) & is_odd)
    return np.where(np.isinf(b) & np.isfinite(a), left, np.copysign(1, left) * (rest - over * b))


def _saturate(value: Array) -> Array:
    """The value moved into [0, 1]; NaN becomes 0."""
    return np.fmin(np.fmax(value, value.dtype.type(0)), value.dtype.type(1))


def _sine_pi(value: Array) -> Array:
    rest = np.fmod(value.astype(np.float64), 2)
    quarters = np.rint(rest * 2)
    angle = (rest - quarters / 2) * np.pi
    turn = quarters.astype(np.int64) % 4
    sine, cosine = np.sin(angle), np.cos(angle)
    found = np.choose(turn, [sine, cosine, -sine, -cosine])
    return np.where(np.isfinite(value), found, np.nan)


def _cosine_pi(value: Array) -> Array:
    rest = np.fmod(value.astype(np.float64), 2)
    return np.where(np.isfinite(value), _sine_pi(rest + 0.5), np.nan)


def _scale(value: Array, power: Array) -> Array:
    return np.ldexp(value, power)


def _to_power(value: Array, exponent: Array) -> Array:
    return np.power(value.astype(np.float64), exponent.astype(np.float64))


def _positive_difference(left: Array, right: Array) -> Array:
    return np.where(left <= right, 0 * (left - right), left - right)


def _reciprocal(function: Function) -> Function:
    def call(*values: Array) -> Array:
        return 1 / function(*(value.astype(np.float64) for value in values))

    return call


def _ten_to(value: Array) -> Array:
    return np.power(10.0, value.astype(np.float64))


ELEMENTARY: Mapping[str, Function] = {
    **{
        name.removeprefix("math."): function
        for name, function in FUNCTIONS.items()
        if name.startswith("math.") and name != "math.powf"
    },
    "fabs": np.abs,
    "ceil": np.ceil,
    "floor": np.floor,
    "trunc": np.trunc,
    "rint": np.rint,
    "nearbyint": np.rint,
    "round": round_half_away,
    "copysign": np.copysign,
    "pow": np.power,
    "fmod": np.fmod,
    "remainder": _remainder,
    "fdim": _positive_difference,
    "hypot": _norm,
    "norm3d": _norm,
    "norm4d": _norm,
    "rhypot": _reciprocal(_norm),
    "rnorm3d": _reciprocal(_norm),
    "rnorm4d": _reciprocal(_norm),
    "rcbrt": _reciprocal(np.cbrt),
    "nextafter": np.nextafter,
    "exp10": _ten_to,
    "logb": _exponent,
    "sinpi": _sine_pi,
    "cospi": _cosine_pi,
    "ldexp": _scale,
    "scalbn": _scale,
    "powi": _to_power,
    "pown": _to_power,
    "fma": fma,
    "saturate": _saturate,
    "erfinv": special.erfinv,
    "normcdf": special.normcdf,
    "normcdfinv": special.normcdfinv,
}
"""Functions of libdevice by their name in double precision."""

FAST: Mapping[str, Function] = {
    "fast_cosf": np.cos,
    "fast_sinf": np.sin,
    "fast_tanf": np.tan,
    "fast_tanhf": np.tanh,
    "fast_expf": np.exp,
    "fast_exp10f": _ten_to,
    "fast_logf": np.log,
    "fast_log2f": np.log2,
    "fast_log10f": np.log10,
    "fast_powf": np.power,
    "fast_fdividef": np.divide,
}
"""Approximate functions, computed exactly; `approximate` has their errors."""


def _average(left: Array, right: Array) -> Array:
    """Mean without overflow, rounded down."""
    return (left & right) + ((left ^ right) >> left.dtype.type(1))


def _average_up(left: Array, right: Array) -> Array:
    return (left | right) - ((left ^ right) >> left.dtype.type(1))


def _of_unsigned(function: Function) -> Function:
    def call(*arrays: Array) -> Array:
        result = function(*(unsigned(array) for array in arrays))
        return result.view(np.dtype(f"i{result.dtype.itemsize}"))

    return call


def _product_24(left: Array, right: Array) -> Array:
    """Low bits of the product of the low 24 bits, with their signs."""
    return ((left << 8) >> 8) * ((right << 8) >> 8)


def _product_24_unsigned(left: Array, right: Array) -> Array:
    return (left & 0xFFFFFF) * (right & 0xFFFFFF)


def reversed_bits(array: Array) -> Array:
    """Unsigned integers with their bits in the opposite order."""
    octets = np.ascontiguousarray(array[..., None]).view(np.uint8)
    bits = np.unpackbits(octets, axis=-1, bitorder="little")[..., ::-1]
    packed = np.ascontiguousarray(np.packbits(bits, axis=-1, bitorder="little"))
    return packed.view(array.dtype)[..., 0]


def byte_perm(low: Array, high: Array, selector: Array) -> Array:
    """PTX's `prmt`: each nibble of the selector chooses a byte of both words, bit 3 its sign."""
    low, high, selector = (unsigned(array) for array in (low, high, selector))
    wide = low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)
    result = np.zeros(np.broadcast_shapes(wide.shape, selector.shape), np.uint32)
    for place in range(4):
        nibble = (selector >> np.uint32(4 * place)) & np.uint32(15)
        chosen = (wide >> (nibble & np.uint32(7)).astype(np.uint64) * np.uint64(8)).astype(np.uint8)
        sign = np.where(chosen & 128, np.uint8(255), np.uint8(0))
        chosen = np.where(nibble & 8, sign, chosen)
        result |= chosen.astype(np.uint32) << np.uint32(8 * place)
    return result.view(np.int32)


def _first_set(array: Array) -> Array:
    """Position of the lowest set bit, from 1; 0 for 0."""
    return np.where(array == 0, array.dtype.type(0), count_trailing_zeros(array) + 1)


def _distance(left: Array, right: Array, added: Array) -> Array:
    return np.where(left > right, left - right, right - left) + added


def _high_word(array: Array) -> Array:
    return (array.view(np.int64) >> 32).astype(np.int32)


def _low_word(array: Array) -> Array:
    return array.view(np.int64).astype(np.int32)


def _from_words(high: Array, low: Array) -> Array:
    bits = (high.astype(np.int64) << 32) | low.view(np.uint32).astype(np.int64)
    return bits.view(np.float64)


def _reciprocal_high(array: Array) -> Array:
    """The reciprocal with the low word cleared."""
    return _from_words(_high_word(1 / array), np.zeros(array.shape, np.int32))


def _viewed(dtype: type[np.generic]) -> Function:
    def call(array: Array) -> Array:
        return array.view(dtype)

    return call


def _whole(rounded: Function, bits: int, *, is_unsigned: bool = False) -> Function:
    """Floats as integers, rounded by a function first."""

    def call(array: Array) -> Array:
        return saturated(rounded(array), bits, is_unsigned=is_unsigned)

    return call


INTEGERS: Mapping[str, Function] = {
    "abs": np.abs,
    "llabs": np.abs,
    "brev": _of_unsigned(reversed_bits),
    "brevll": _of_unsigned(reversed_bits),
    "clz": _of_unsigned(count_leading_zeros),
    "clzll": _of_unsigned(count_leading_zeros),
    "popc": _of_unsigned(count_ones),
    "popcll": _of_unsigned(count_ones),
    "ffs": _of_unsigned(_first_set),
    "ffsll": _of_unsigned(_first_set),
    "hadd": _average,
    "rhadd": _average_up,
    "uhadd": _of_unsigned(_average),
    "urhadd": _of_unsigned(_average_up),
    "mul24": _product_24,
    "umul24": _of_unsigned(_product_24_unsigned),
    "mulhi": multiply_high_signed,
    "mul64hi": multiply_high_signed,
    "umulhi": _of_unsigned(multiply_high),
    "umul64hi": _of_unsigned(multiply_high),
    "byte_perm": byte_perm,
    "sad": _distance,
    "usad": _of_unsigned(_distance),
}

BITS: Mapping[str, Function] = {
    "float_as_int": _viewed(np.int32),
    "float_as_uint": _viewed(np.int32),
    "int_as_float": _viewed(np.float32),
    "uint_as_float": _viewed(np.float32),
    "double_as_longlong": _viewed(np.int64),
    "longlong_as_double": _viewed(np.float64),
    "double2hiint": _high_word,
    "double2loint": _low_word,
    "hiloint2double": _from_words,
    "rcp64h": _reciprocal_high,
    "signbit": np.signbit,
    "isinf": np.isinf,
    "isnan": np.isnan,
    "isfinite": np.isfinite,
    "finite": np.isfinite,
    "ilogb": _integer_exponent,
    "llrint": _whole(np.rint, 64),
    "llround": _whole(round_half_away, 64),
}

_NEAREST = re.compile(r"[fd]?(?P<operation>add|sub|mul|div|sqrt|fma|rcp|rsqrt)f?_rn")
_CONVERSION = re.compile(
    r"(?P<source>float|double|u?int|u?ll)2(?P<target>float|double|u?int|u?ll)"
    r"(?:_(?P<rounding>r[nzud]))?"
)
NEAREST: Mapping[str, Function] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "sqrt": np.sqrt,
    "fma": fma,
    "rcp": np.reciprocal,
    "rsqrt": _reciprocal(np.sqrt),
}
_WHOLE: Mapping[str, Function] = {
    "rn": np.rint,
    "rz": np.trunc,
    "ru": np.ceil,
    "rd": np.floor,
}


def lookup(symbol: str) -> Function | None:
    """The function of arrays that a symbol names; None where it is not known.

    Its result has the bits of the wanted type, or is a float array that is still to be rounded.
    """
    name = symbol.removeprefix("__nv_")
    if name == symbol:
        return None
    if found := _CONVERSION.fullmatch(name):
        return _conversion(found["source"], found["target"], found["rounding"] or "rn")
    if found := _NEAREST.fullmatch(name):
        return NEAREST[found["operation"]]
    if name in APPROXIMATE:
        return _inexact(name)
    for table in (FAST, INTEGERS, ELEMENTARY, BITS):
        for spelled in (name, name[:-1]):
            if spelled in table and (spelled == name or name[-1] in "fd"):
                return table[spelled]
    return None


def _inexact(name: str) -> Function:
    def call(*operands: Array) -> Array:
        return approximated(APPROXIMATE[name], FAST[name](*operands), list(operands))

    return call


def _conversion(source: str, target: str, rounding: str) -> Function | None:
    """`float2int_rz`, `int2float_rn`, `ull2double_rn`; None for floats that are not the nearest."""
    if source in ("float", "double") and target not in ("float", "double"):
        bits = 64 if target.endswith("ll") else 32
        return _whole(_WHOLE[rounding], bits, is_unsigned=target[0] == "u")
    if rounding != "rn":
        return None
    dtype = np.float32 if target == "float" else np.float64

    def convert(x: Array) -> Array:
        return (unsigned(x) if source[0] == "u" else x).astype(dtype)

    return convert


def extern_elementwise(
    operands: Sequence[Array], signature: Signature, attributes: Mapping[str, Attribute]
) -> list[Array]:
    """A function of a device library.

    Raises:
        Unsupported: with the symbol, where it is not known.
    """
    symbol: str = attributes["symbol"]
    function = lookup(symbol)
    if function is None:
        raise Unsupported(f"the library function {symbol} needs a card")
    wanted = dtype_of(scalar_of(signature.results[0]))
    result = np.asarray(function(*operands))
    if result.dtype.kind == "u":
        result = result.view(np.dtype(f"i{result.dtype.itemsize}"))
    return [result.astype(wanted, copy=False)]


EXTERNS: Mapping[str, Operation] = {"tt.extern_elementwise": extern_elementwise}
