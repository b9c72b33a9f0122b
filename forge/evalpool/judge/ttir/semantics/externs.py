"""Functions of libdevice (`__nv_*`) and of inline assembly, exact, the approximate ones too.

Elementary functions are numpy's, and what it lacks is torch's. All others need a card: gamma
and Bessel functions, floats that are not rounded to the nearest, halves of words, AMD's libraries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from forge.evalpool.judge.ttir.semantics import arithmetic
from forge.evalpool.judge.ttir.semantics.arithmetic import (
    count_leading_zeros,
    count_ones,
    fma,
    multiply_high,
    multiply_high_signed,
    rsqrt,
    saturated,
)
from forge.evalpool.judge.ttir.values import (
    Array,
    Attributes,
    Operands,
    Operation,
    Unsupported,
    dtype_of,
    scalar_of,
    unsigned,
)

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.tree import Signature

Function = Callable[..., "Array"]


def round_half_away(array: Array) -> Array:
    """Nearest integer; halves go away from zero."""
    whole = np.trunc(array)
    return whole + np.copysign(np.abs(array - whole) >= 0.5, array)


def _norm(*values: Array) -> Array:
    """Euclidean length, without overflow of the squares of float32."""
    return np.sqrt(sum(value.astype(np.float64) ** 2 for value in values)).astype(values[0].dtype)


def _scale(value: Array, power: Array) -> Array:
    return np.ldexp(value, power)


def _reciprocal(function: Function) -> Function:
    def call(*values: Array) -> Array:
        return 1 / function(*(value.astype(np.float64) for value in values))

    return call


def _remainder(left: Array, right: Array) -> Array:
    """IEEE remainder: the quotient is rounded to nearest even."""
    a, b = np.abs(left), np.abs(right)
    rest, is_odd = np.fmod(a, b), np.fmod(a, 2 * b) >= b
    over = (rest * 2 > b) | ((rest * 2 == b) & is_odd)
    return np.where(np.isinf(b) & np.isfinite(a), left, np.copysign(1, left) * (rest - over * b))


def _to_power(value: Array, exponent: Array) -> Array:
    """Also `pow` of a float and an integer, which Triton names `powi`."""
    return np.power(value.astype(np.float64), exponent.astype(np.float64))


def _of_pi(function: Function) -> Function:
    def call(value: Array) -> Array:
        return function(np.pi * np.fmod(value.astype(np.float64), 2))

    return call


def _positive_difference(left: Array, right: Array) -> Array:
    return np.maximum(left - right, 0)


def _saturate(value: Array) -> Array:
    """The value moved into [0, 1]; NaN becomes 0."""
    return np.fmin(np.fmax(value, 0), 1)


def _ten_to(value: Array) -> Array:
    return np.power(10.0, value.astype(np.float64))


NUMPY = (
    "sqrt cbrt exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh ceil floor trunc "
    "rint copysign fmod nextafter"
)
"""Functions that numpy has by the same name."""
INVERSE = "asin acos atan atan2 asinh acosh atanh"

ELEMENTARY: Mapping[str, Function] = {
    **{name: getattr(np, name) for name in NUMPY.split()},
    **{name: getattr(np, f"arc{name[1:]}") for name in INVERSE.split()},
    **{
        name: getattr(arithmetic, name)
        for name in ("erf", "erfc", "erfinv", "normcdf", "normcdfinv")
    },
    "rsqrt": rsqrt,
    "fabs": np.abs,
    "nearbyint": np.rint,
    "round": round_half_away,
    "pow": np.power,
    "div": np.divide,
    "remainder": _remainder,
    "fdim": _positive_difference,
    **dict.fromkeys(("hypot", "norm3d", "norm4d"), _norm),
    **dict.fromkeys(("rhypot", "rnorm3d", "rnorm4d"), _reciprocal(_norm)),
    "rcbrt": _reciprocal(np.cbrt),
    "powi": _to_power,
    "pown": _to_power,
    "sinpi": _of_pi(np.sin),
    "cospi": _of_pi(np.cos),
    "saturate": _saturate,
    "exp10": _ten_to,
    "ldexp": _scale,
    "scalbn": _scale,
    "fma": fma,
}
"""Functions of libdevice by their name in double precision."""


def _of_unsigned(function: Function) -> Function:
    def call(*arrays: Array) -> Array:
        result = function(*(unsigned(array) for array in arrays))
        return result.view(np.dtype(f"i{result.dtype.itemsize}"))

    return call


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
    "clz": _of_unsigned(count_leading_zeros),
    "clzll": _of_unsigned(count_leading_zeros),
    "popc": _of_unsigned(count_ones),
    "popcll": _of_unsigned(count_ones),
    "mulhi": multiply_high_signed,
    "mul64hi": multiply_high_signed,
    "umulhi": _of_unsigned(multiply_high),
    "umul64hi": _of_unsigned(multiply_high),
}

BITS: Mapping[str, Function] = {
    "float_as_int": _viewed(np.int32),
    "float_as_uint": _viewed(np.int32),
    "int_as_float": _viewed(np.float32),
    "uint_as_float": _viewed(np.float32),
    "double_as_longlong": _viewed(np.int64),
    "longlong_as_double": _viewed(np.float64),
    "signbit": np.signbit,
    "isinf": np.isinf,
    "isnan": np.isnan,
    "isfinite": np.isfinite,
    "finite": np.isfinite,
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
    name = "div" if name == "fast_fdividef" else name.removeprefix("fast_")
    for table in (INTEGERS, ELEMENTARY, BITS):
        for spelled in (name, name[:-1]):
            if spelled in table and (spelled == name or name[-1] in "fd"):
                return table[spelled]
    return None


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


def extern_elementwise(operands: Operands, kinds: Signature, attributes: Attributes) -> list[Array]:
    """A function of a device library.

    Raises:
        Unsupported: with the symbol, where it is not known.
    """
    symbol: str = attributes["symbol"]
    function = lookup(symbol)
    if function is None:
        raise Unsupported(f"the library function {symbol} needs a card")
    wanted = dtype_of(scalar_of(kinds.results[0]))
    result = np.asarray(function(*operands))
    if result.dtype.kind == "u":
        result = result.view(np.dtype(f"i{result.dtype.itemsize}"))
    return [result.astype(wanted, copy=False)]


INSTRUCTIONS: Mapping[str, Function] = {
    "cos": np.cos,
    "ex2": np.exp2,
    "lg2": np.log2,
    "rcp": np.reciprocal,
    "rsqrt": _reciprocal(np.sqrt),
    "sin": np.sin,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
}
"""Functions of PTX by the name of their approximate instruction."""


def inline_asm(operands: Operands, kinds: Signature, attributes: Attributes) -> list[Array]:
    """The result of a template of the closed list. Raises Unsupported for other types."""
    names = [scalar_of(kind).name for kind in (*kinds.operands, *kinds.results)]
    if names != ["f32", "f32"]:
        raise Unsupported(f"assembly on {' '.join(names)}")
    name = str(attributes["asm_string"]).split(".")[0].strip()
    return [INSTRUCTIONS[name](operands[0].astype(np.float64)).astype(np.float32)]


EXTERNS: Mapping[str, Operation] = {
    "tt.extern_elementwise": extern_elementwise,
    "tt.elementwise_inline_asm": inline_asm,
}
