"""Operations on elements: `arith.*`, `math.*`, casts, functions of libdevice, inline assembly.

Integers wrap. Where the IR leaves a result undefined, these give what NVIDIA's hardware gives:
shifts beyond the width shift everything out, `x / 0` has all bits set and `x % 0` is x, the
smallest integer divided by -1 is itself.

Sums, products, quotients, square roots and fused multiply-adds are correctly rounded. Elementary
functions are numpy's, within two units in the last place; the hardware's own are approximate too.
Error functions and the normal distribution are torch's, which is looked up when one is called, in a
child that has it: to read a text needs none.

Functions of libdevice (`__nv_*`) and of inline assembly are exact, the approximate ones too. All
that are not here need a card: gamma and Bessel functions, floats that are not rounded to the
nearest, halves of words, AMD's libraries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from forge.evalpool.judge.ttir.tree import Scalar, Signature
from forge.evalpool.judge.ttir.values import (
    FORMATS,
    Array,
    Attributes,
    Operands,
    Operation,
    Unsupported,
    decode,
    dtype_of,
    encode,
    exact_operation,
    float_operation,
    round_to,
    scalar_of,
    signed,
    to_float,
    unsigned,
    widened,
)

# --- integers


Function = Callable[..., "Array"]


def integer_operation(function: Function, *, is_unsigned: bool = False) -> Operation:
    """An elementwise operation on integers; i1 is -1 or 0 where it is signed."""

    def apply(operands: Operands, kinds: Signature, attributes: Attributes) -> list[Array]:
        kind = scalar_of(kinds.results[0])
        if kind.name == "i1":
            operands = [_wide_bit(array, is_unsigned=is_unsigned) for array in operands]
        if is_unsigned:
            operands = [unsigned(array) for array in operands]
        return [signed(function(*operands), kind)]

    return apply


def _wide_bit(array: Array, *, is_unsigned: bool) -> Array:
    wide = array.astype(np.int8)
    return wide if is_unsigned else -wide


def divide(left: Array, right: Array) -> Array:
    """Quotient rounded towards zero."""
    is_signed = left.dtype.kind == "i"
    if right.size == 1 and right.flat[0] > 0:  # numpy has a fast loop for one positive number
        quotient = np.floor_divide(left, right.flat[0])
        if is_signed and (left < 0).any():
            quotient += (quotient * right.flat[0] != left) & (left < 0)
        return quotient
    divisor = np.where(right == 0, right.dtype.type(1), right)
    quotient = np.floor_divide(left, divisor)
    if is_signed:
        quotient += (quotient * divisor != left) & ((left < 0) != (divisor < 0))
    return np.where(right == 0, ~np.zeros((), left.dtype), quotient)


def remainder(left: Array, right: Array) -> Array:
    """Remainder with the sign of the left operand."""
    quotient = divide(left, right)
    rest = left - quotient * right
    return rest if right.all() else np.where(right == 0, left, rest)


def multiply_high(left: Array, right: Array) -> Array:
    """Upper half of the product of unsigned integers of one width."""
    bits = left.dtype.itemsize * 8
    if bits < 64:
        wide = np.dtype(f"u{left.dtype.itemsize * 2}")
        product = left.astype(wide) * right.astype(wide)
        return (product >> wide.type(bits)).astype(left.dtype)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    a, b, c, d = left >> half, left & low, right >> half, right & low
    middle = a * d + (b * d >> half)
    other = b * c + (middle & low)
    return a * c + (middle >> half) + (other >> half)


def multiply_high_signed(left: Array, right: Array) -> Array:
    """Upper half of the product of signed integers, of two's complements: Hacker's Delight, 8-3."""
    high = multiply_high(unsigned(left), unsigned(right)).view(left.dtype)
    return high - np.where(left < 0, right, 0) - np.where(right < 0, left, 0)


COMPARISONS: Mapping[str, np.ufunc] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def cmpi(operands: Operands, kinds: Signature, attributes: Attributes) -> list[Array]:
    """Comparison by a predicate: `eq`, `ne`, or `s` or `u` before `lt`, `le`, `gt`, `ge`."""
    predicate: str = attributes["predicate"]
    if operands[0].dtype == np.bool_ and predicate not in ("eq", "ne"):
        operands = [_wide_bit(array, is_unsigned=predicate[0] == "u") for array in operands]
    if predicate[0] == "u":
        operands = [unsigned(array) for array in operands]
    return [COMPARISONS[predicate[-2:]](*operands)]


def count_leading_zeros(array: Array) -> Array:
    """Number of zero bits above the highest set bit of unsigned integers; the width for 0."""
    bits = array.dtype.itemsize * 8
    filled = array.copy()
    for shift in (1, 2, 4, 8, 16, 32):
        if shift < bits:
            filled |= filled >> filled.dtype.type(shift)
    return bits - np.bitwise_count(filled).astype(array.dtype)


INTEGERS: Mapping[str, Operation] = {
    "arith.addi": integer_operation(np.add),
    "arith.subi": integer_operation(np.subtract),
    "arith.muli": integer_operation(np.multiply),
    "arith.divsi": integer_operation(divide),
    "arith.divui": integer_operation(divide, is_unsigned=True),
    "arith.remsi": integer_operation(remainder),
    "arith.remui": integer_operation(remainder, is_unsigned=True),
    "arith.andi": exact_operation(np.bitwise_and),
    "arith.ori": exact_operation(np.bitwise_or),
    "arith.xori": exact_operation(np.bitwise_xor),
    "arith.shli": integer_operation(np.left_shift),
    "arith.shrsi": integer_operation(np.right_shift),
    "arith.shrui": integer_operation(np.right_shift, is_unsigned=True),
    "arith.maxsi": integer_operation(np.maximum),
    "arith.minsi": integer_operation(np.minimum),
    "arith.maxui": integer_operation(np.maximum, is_unsigned=True),
    "arith.minui": integer_operation(np.minimum, is_unsigned=True),
    "arith.cmpi": cmpi,
    "tt.mulhiui": integer_operation(multiply_high, is_unsigned=True),
    "math.absi": integer_operation(np.abs),
}


# --- functions of torch


def _of_torch(name: str) -> Callable[[Array], Array]:
    def call(array: Array) -> Array:
        torch: Any = import_module("torch")
        given = torch.from_numpy(np.array(array, order="C"))
        return getattr(torch.special, name)(given).numpy()

    return call


TORCH = {"erf": "erf", "erfc": "erfc", "erfinv": "erfinv", "normcdf": "ndtr", "normcdfinv": "ndtri"}
ERRORS = {name: _of_torch(own) for name, own in TORCH.items()}


# --- floats


def cmpf(operands: Operands, kinds: Signature, attributes: Attributes) -> list[Array]:
    """Comparison by a predicate; the ordered ones are false for NaN, the unordered ones true."""
    left, right = operands
    predicate: str = attributes["predicate"]
    shape = np.broadcast_shapes(left.shape, right.shape)
    match predicate:
        case "false" | "true":
            return [np.full(shape, predicate == "true")]
        case "ord":
            return [~(np.isnan(left) | np.isnan(right))]
        case "uno":
            return [np.isnan(left) | np.isnan(right)]
        case "one":
            return [(left < right) | (left > right)]
        case "ueq":
            return [~((left < right) | (left > right))]
        case _ if predicate[0] == "o" or predicate == "une":
            return [COMPARISONS[predicate[1:]](left, right)]
        case _:
            return [~COMPARISONS[_OPPOSITE[predicate[1:]]](left, right)]


_OPPOSITE: Mapping[str, str] = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


def select(operands: Operands, kinds: Signature, attributes: Attributes) -> list[Array]:
    """The second operand where the first is true, else the third; a scalar condition chooses whole
    blocks."""
    condition, left, right = operands
    rank = max(left.ndim, right.ndim)
    condition = condition.reshape(condition.shape + (1,) * (rank - condition.ndim))
    return [np.where(condition, left, right)]


def clampf(operands: Operands, kinds: Signature, attributes: Attributes) -> list[Array]:
    """A value moved into an interval; NaN stays NaN only with `propagateNan = all`."""
    value, low, high = operands
    if attributes.get("propagateNan", "none") == "all":
        return [np.minimum(np.maximum(value, low), high)]
    return [np.fmin(np.fmax(value, low), high)]


def fma(a: Array, b: Array, c: Array) -> Array:
    """`a * b + c` in float64. A float32 is rounded once then, but for one in 2^29."""
    return a.astype(np.float64) * b + c


def rsqrt(array: Array) -> Array:
    """Reciprocal square root, computed in float64 where that rounds to the right float32."""
    if array.dtype == np.float64:
        return 1 / np.sqrt(array)
    return (1 / np.sqrt(array.astype(np.float64))).astype(np.float32)


MATHS = ("sqrt", "exp", "exp2", "log", "log2", "sin", "cos")
FUNCTIONS: Mapping[str, Callable[..., Array]] = {
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "arith.remf": np.fmod,
    "tt.precise_divf": np.divide,
    "tt.approx_divf": np.divide,
    "tt.precise_sqrt": np.sqrt,
    **{f"math.{name}": getattr(np, name) for name in MATHS},
    "math.rsqrt": rsqrt,
    "math.erf": ERRORS["erf"],
    "math.fma": fma,
}
"""Functions whose result is rounded."""

EXACT: Mapping[str, Callable[..., Array]] = {
    "arith.negf": np.negative,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "math.absf": np.abs,
    "math.floor": np.floor,
    "math.ceil": np.ceil,
}
"""Functions whose result is representable."""

FLOATS: Mapping[str, Operation] = {
    **{name: float_operation(function) for name, function in FUNCTIONS.items()},
    **{name: exact_operation(function) for name, function in EXACT.items()},
    "arith.cmpf": cmpf,
    "arith.select": select,
    "tt.clampf": clampf,
}


# --- casts


def cast(function: Callable[[Array, Scalar], Array]) -> Operation:
    """A conversion of elements, which needs the type of its result."""

    def apply(operands: Operands, kinds: Signature, attributes: Attributes) -> list[Array]:
        return [function(operands[0], scalar_of(kinds.results[0]))]

    return apply


def change_float(operands: Operands, kinds: Signature, attributes: Attributes) -> list[Array]:
    """A float in another float type: to nearest even, or towards zero with `rounding = rtz`."""
    kind = scalar_of(kinds.results[0])
    array = widened(operands[0])
    if attributes.get("rounding") != "rtz":
        return [to_float(array, kind)]
    if kind.name not in FORMATS:
        raise Unsupported(f"rounding towards zero to {kind}")
    saturate = kind.name.startswith("f8E4M3")
    rounded = round_to(array, kind.name, toward_zero=True, saturate=saturate)
    return [rounded.astype(dtype_of(kind), copy=False)]


def _narrow(array: Array, kind: Scalar, *, is_unsigned: bool = False) -> Array:
    """A float as an integer, towards zero. Integers of 8 bits and less are the low bits of those of
    16, since PTX has no narrower."""
    bits = max(kind.bits, 16)
    wide = saturated(np.trunc(array), bits, is_unsigned=is_unsigned)
    return truncate(wide.view(np.dtype(f"i{bits // 8}")), kind)


def saturated(whole: Array, bits: int, *, is_unsigned: bool) -> Array:
    """Whole floats as integers, as PTX's `cvt` gives them.

    Numbers beyond the range become the nearest bound. NaN becomes 0; with a source or destination
    of 64 bits it becomes the integer whose highest bit alone is set.
    """
    dtype = np.dtype(f"{'u' if is_unsigned else 'i'}{bits // 8}")
    low, high = (0.0, 2.0**bits) if is_unsigned else (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1))
    inside = (whole >= low) & (whole < high)
    if inside.all():
        return whole.astype(dtype)
    info = np.iinfo(dtype)
    result = np.where(inside, whole, 0).astype(dtype)
    result[whole >= high] = info.max
    if bits == 64 or whole.dtype == np.float64:
        result[np.isnan(whole)] = 1 << (bits - 1) if is_unsigned else info.min
    result[whole < low] = info.min
    return result


def integer_to_float(array: Array, kind: Scalar) -> Array:
    """A signed integer as the nearest float; i1 is 0 or -1. One rounding; two for bf16, which is
    reached through float32 as Triton's lowering does."""
    if array.dtype == np.bool_:
        array = -array.astype(np.int8)
    if kind.name == "f16":
        return array.astype(np.float64).astype(np.float16)
    return to_float(array.astype(np.float64 if kind.name == "f64" else np.float32), kind)


def sign_extend(array: Array, kind: Scalar) -> Array:
    """A wider integer of the same value; i1 is 0 or -1."""
    wide = array.astype(dtype_of(kind))
    return -wide if array.dtype == np.bool_ else wide


def truncate(array: Array, kind: Scalar) -> Array:
    if kind.name == "i1":
        return (array & 1).astype(np.bool_)
    return array.astype(dtype_of(kind), copy=False)


def bitcast(operands: Operands, kinds: Signature, attributes: Attributes) -> list[Array]:
    """The same bits as another type of the same width."""
    source, target = scalar_of(kinds.operands[0]), scalar_of(kinds.results[0])
    if source == target:
        return [operands[0]]
    encoded = np.ascontiguousarray(encode(operands[0], source))
    bits = encoded.view(np.dtype(f"u{source.num_bytes}"))  # 8 for i1
    if target.name in FORMATS and target.name != "f16":
        return [decode(bits, target)]
    return [bits.view(dtype_of(target))]


CASTS: Mapping[str, Operation] = {
    "arith.extf": change_float,
    "arith.truncf": change_float,
    "arith.convertf": change_float,
    "tt.fp_to_fp": change_float,
    "arith.fptosi": cast(_narrow),
    "arith.fptoui": cast(partial(_narrow, is_unsigned=True)),
    "arith.sitofp": cast(integer_to_float),
    "arith.uitofp": cast(lambda array, kind: integer_to_float(unsigned(array), kind)),
    "arith.extsi": cast(sign_extend),
    "arith.extui": cast(lambda array, kind: unsigned(array).astype(dtype_of(kind))),
    "arith.trunci": cast(truncate),
    "arith.index_cast": cast(truncate),
    "arith.bitcast": bitcast,
    "tt.bitcast": bitcast,
}


# --- functions of libraries, and assembly


def round_half_away(array: Array) -> Array:
    """Nearest integer; halves go away from zero."""
    whole = np.trunc(array)
    return whole + np.copysign(np.abs(array - whole) >= 0.5, array)


def _norm(*values: Array) -> Array:
    """Euclidean length, without overflow of the squares of float32."""
    return np.sqrt(sum(value.astype(np.float64) ** 2 for value in values)).astype(values[0].dtype)


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


def _of_unsigned(function: Function) -> Function:
    def call(*arrays: Array) -> Array:
        result = function(*(unsigned(array) for array in arrays))
        return result.view(np.dtype(f"i{result.dtype.itemsize}"))

    return call


def _whole(rounded: Function, bits: int, *, is_unsigned: bool = False) -> Function:
    """Floats as integers, rounded by a function first."""

    def call(array: Array) -> Array:
        return saturated(rounded(array), bits, is_unsigned=is_unsigned)

    return call


NUMPY = (
    "sqrt cbrt exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh ceil floor trunc "
    "rint copysign fmod nextafter ldexp signbit isinf isnan isfinite"
)
"""Functions that numpy has by the same name."""
INVERSE = "asin acos atan atan2 asinh acosh atanh"
_NEAREST: Mapping[str, Function] = {
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide},
    **{"sqrt": np.sqrt, "rcp": np.reciprocal, "rsqrt": _reciprocal(np.sqrt)},
}

SINGLE: Mapping[str, Callable[[Array], Array]] = {
    "sinpi": lambda one: np.sin(np.pi * np.fmod(one.astype(np.float64), 2)),
    "cospi": lambda one: np.cos(np.pi * np.fmod(one.astype(np.float64), 2)),
    "saturate": lambda one: np.fmin(np.fmax(one, 0), 1),  # NaN becomes 0
    "exp10": lambda one: np.power(10.0, one.astype(np.float64)),
    "float_as_int": lambda one: one.view(np.int32),
    "float_as_uint": lambda one: one.view(np.int32),
    "int_as_float": lambda one: one.view(np.float32),
    "uint_as_float": lambda one: one.view(np.float32),
    "double_as_longlong": lambda one: one.view(np.int64),
    "longlong_as_double": lambda one: one.view(np.float64),
}
PAIRS: Mapping[str, Callable[[Array, Array], Array]] = {
    "fdim": lambda left, right: np.maximum(left - right, 0),
    # `pow` of a float and an integer, too, which Triton names `powi`
    **dict.fromkeys(
        ("powi", "pown"), lambda one, to: np.power(one.astype(np.float64), to.astype(np.float64))
    ),
}
LIBRARY: Mapping[str, Function] = {
    **SINGLE,
    **PAIRS,
    **{name: getattr(np, name) for name in NUMPY.split()},
    **{name: getattr(np, f"arc{name[1:]}") for name in INVERSE.split()},
    **{f"{kind}{name}_rn": one for name, one in _NEAREST.items() for kind in "fd"},
    **ERRORS,
    **dict.fromkeys(("fma", "fma_rn", "fmaf_rn"), fma),
    "rsqrt": rsqrt,
    "fabs": np.abs,
    "nearbyint": np.rint,
    "round": round_half_away,
    "pow": np.power,
    **dict.fromkeys(("div", "fdivide"), np.divide),
    "rcp": np.reciprocal,
    "remainder": _remainder,
    **dict.fromkeys(("hypot", "norm3d", "norm4d"), _norm),
    **dict.fromkeys(("rhypot", "rnorm3d", "rnorm4d"), _reciprocal(_norm)),
    "rcbrt": _reciprocal(np.cbrt),
    "scalbn": np.ldexp,
    "finite": np.isfinite,
    "llrint": _whole(np.rint, 64),
    "llround": _whole(round_half_away, 64),
    **dict.fromkeys(("abs", "llabs"), np.abs),
    **dict.fromkeys(("clz", "clzll"), _of_unsigned(count_leading_zeros)),
    **dict.fromkeys(("popc", "popcll"), _of_unsigned(np.bitwise_count)),
    **dict.fromkeys(("mulhi", "mul64hi"), multiply_high_signed),
    **dict.fromkeys(("umulhi", "umul64hi"), _of_unsigned(multiply_high)),
}
"""Functions of libdevice by their name in double precision, without `__nv_` and `fast_`."""
_CONVERSION = re.compile(
    r"(?P<source>float|double|u?int|u?ll)2(?P<target>float|double|u?int|u?ll)"
    r"(?:_(?P<rounding>r[nzud]))?"
)
_WHOLE: Mapping[str, Function] = {"rn": np.rint, "rz": np.trunc, "ru": np.ceil, "rd": np.floor}


def lookup(symbol: str) -> Function | None:
    """The function of arrays that a symbol names; None where it is not known.

    Its result has the bits of the wanted type, or is a float array that is still to be rounded.
    """
    name = symbol.removeprefix("__nv_")
    if name == symbol:
        return None
    if found := _CONVERSION.fullmatch(name):
        return _conversion(found["source"], found["target"], found["rounding"] or "rn")
    name = name.removeprefix("fast_")
    return LIBRARY.get(name) or (LIBRARY.get(name[:-1]) if name.endswith(("f", "d")) else None)


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
    """A function of a device library. Raises Unsupported with the symbol of one that is not
    known."""
    symbol: str = attributes["symbol"]
    function = lookup(symbol)
    if function is None:
        raise Unsupported(f"the library function {symbol} needs a card")
    wanted = dtype_of(scalar_of(kinds.results[0]))
    result = np.asarray(function(*operands))
    if result.dtype.kind == "u":
        result = result.view(np.dtype(f"i{result.dtype.itemsize}"))
    return [result.astype(wanted, copy=False)]


def inline_asm(operands: Operands, kinds: Signature, attributes: Attributes) -> list[Array]:
    """The result of a template of the closed list. Raises Unsupported for other types."""
    names = [scalar_of(kind).name for kind in (*kinds.operands, *kinds.results)]
    if names != ["f32", "f32"]:
        raise Unsupported(f"assembly on {' '.join(names)}")
    name = str(attributes["asm_string"]).split(".")[0].strip()
    function = LIBRARY[{"ex2": "exp2", "lg2": "log2"}.get(name, name)]
    return [function(operands[0].astype(np.float64)).astype(np.float32)]


EXTERNS: Mapping[str, Operation] = {
    "tt.extern_elementwise": extern_elementwise,
    "tt.elementwise_inline_asm": inline_asm,
}
