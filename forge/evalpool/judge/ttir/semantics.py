"""Semantics of Triton's operations: pure functions over numpy arrays (`values.py` says which).

On elements: `arith.*`, `math.*`, casts, functions of libdevice, inline assembly; on whole blocks.

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
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from math import prod
from typing import Any

import numpy as np

from forge.evalpool.judge.ttir.tree import Scalar, Signature, shape_of
from forge.evalpool.judge.ttir.values import (
    FORMATS,
    Array,
    Attributes,
    Combine,
    Operands,
    Operation,
    Unsupported,
    decode,
    dtype_of,
    encode,
    exact_operation,
    expanded,
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


def _of_torch(name: str, array: Array) -> Array:
    torch: Any = import_module("torch")
    return getattr(torch.special, name)(torch.from_numpy(np.array(array, order="C"))).numpy()


TORCH = {"erf": "erf", "erfc": "erfc", "erfinv": "erfinv", "normcdf": "ndtr", "normcdfinv": "ndtri"}
ERRORS = {name: partial(_of_torch, own) for name, own in TORCH.items()}


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
    return lambda operands, kinds, _: [function(operands[0], scalar_of(kinds.results[0]))]


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


def _reciprocal(function: Function, *values: Array) -> Array:
    return 1 / function(*(value.astype(np.float64) for value in values))


def _remainder(left: Array, right: Array) -> Array:
    """IEEE remainder: the quotient is rounded to nearest even."""
    a, b = np.abs(left), np.abs(right)
    rest, is_odd = np.fmod(a, b), np.fmod(a, 2 * b) >= b
    over = (rest * 2 > b) | ((rest * 2 == b) & is_odd)
    return np.where(np.isinf(b) & np.isfinite(a), left, np.copysign(1, left) * (rest - over * b))


def _of_unsigned(function: Function, *arrays: Array) -> Array:
    result = function(*(unsigned(array) for array in arrays))
    return result.view(np.dtype(f"i{result.dtype.itemsize}"))


def _whole(rounded: Function, bits: int, array: Array, *, is_unsigned: bool = False) -> Array:
    """Floats as integers, rounded by a function first."""
    return saturated(rounded(array), bits, is_unsigned=is_unsigned)


NUMPY = (
    "sqrt cbrt exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh ceil floor trunc "
    "rint copysign fmod nextafter ldexp signbit isinf isnan isfinite"
)
"""Functions that numpy has by the same name."""
INVERSE = "asin acos atan atan2 asinh acosh atanh"
_NEAREST: Mapping[str, Function] = {
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide},
    **{"sqrt": np.sqrt, "rcp": np.reciprocal, "rsqrt": partial(_reciprocal, np.sqrt)},
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
    **dict.fromkeys(("rhypot", "rnorm3d", "rnorm4d"), partial(_reciprocal, _norm)),
    "rcbrt": partial(_reciprocal, np.cbrt),
    "scalbn": np.ldexp,
    "finite": np.isfinite,
    "llrint": partial(_whole, np.rint, 64),
    "llround": partial(_whole, round_half_away, 64),
    **dict.fromkeys(("abs", "llabs"), np.abs),
    **dict.fromkeys(("clz", "clzll"), partial(_of_unsigned, count_leading_zeros)),
    **dict.fromkeys(("popc", "popcll"), partial(_of_unsigned, np.bitwise_count)),
    **dict.fromkeys(("mulhi", "mul64hi"), multiply_high_signed),
    **dict.fromkeys(("umulhi", "umul64hi"), partial(_of_unsigned, multiply_high)),
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
        return partial(_whole, _WHOLE[rounding], bits, is_unsigned=target[0] == "u")
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
    """The result of a template of the closed list."""
    name = str(attributes["asm_string"]).split(".")[0].strip()
    function = LIBRARY[{"ex2": "exp2", "lg2": "log2"}.get(name, name)]
    return [function(operands[0].astype(np.float64)).astype(np.float32)]


EXTERNS: Mapping[str, Operation] = {
    "tt.extern_elementwise": extern_elementwise,
    "tt.elementwise_inline_asm": inline_asm,
}


# --- operations on whole blocks: shapes, joins, gathers, reductions, scans and matrix products
#
# All keep the compact form of their operands where they can: an axis of size 1 stands for equal
# elements along it. A region combines two elements. The order of a reduction is that of the
# hardware's shuffles: the first half with the second half, again and again. Operations whose result
# does not depend on the order have numpy's own loops. Products (`tt.dot`) are accumulated in
# float32 by the BLAS of numpy; its order is not the tensor core's.


# --- shapes


def reshaped(array: Array, old: tuple[int, ...], new: tuple[int, ...]) -> Array:
    """A block in another shape of as many elements.

    Axes are taken in the smallest groups that have equal products in both shapes: a group stays
    compact where the array is compact along all of it, else it is expanded.
    """
    middle: list[int] = [array.shape[0]]
    result: list[int] = [array.shape[0]]
    for first, last, to in _groups(old, new):
        sizes = array.shape[first + 1 : last + 1]
        is_compact = all(size == 1 for size in sizes)
        middle += sizes if is_compact else old[first:last]
        result += [1] * len(to) if is_compact else to
    return np.broadcast_to(array, middle).reshape(result)


def _groups(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[int, int, tuple[int, ...]]]:
    """Groups of axes with equal products: first and last (exclusive) of `old`, sizes of `new`."""
    groups: list[tuple[int, int, tuple[int, ...]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        first, begin = i, j
        i, j = min(i + 1, len(old)), min(j + 1, len(new))
        while (left := prod(old[first:i])) != (right := prod(new[begin:j])):
            if left < right:
                i += 1
            else:
                j += 1
        groups.append((first, i, new[begin:j]))
    return groups


def join(operands: Operands, kinds: Signature, attributes: Attributes) -> list[Array]:
    """Two blocks side by side along a new last axis."""
    return [np.stack(np.broadcast_arrays(*operands), axis=-1)]


def split(operands: Operands, kinds: Signature, attributes: Attributes) -> list[Array]:
    """Both halves of a block whose last axis has size 2."""
    return [operands[0][..., 0], operands[0][..., -1]]


def cat(operands: Operands, kinds: Signature, attributes: Attributes) -> list[Array]:
    """Elements of two blocks by turns along the first axis: the compiler may give them any order,
    the same for all blocks of one shape."""
    full = [
        expanded(array, shape_of(kind))
        for array, kind in zip(operands, kinds.operands, strict=True)
    ]
    n = max(len(array) for array in full)
    pair = np.stack([np.broadcast_to(a, (n, *a.shape[1:])) for a in full], axis=2)
    return [pair.reshape(n, -1, *pair.shape[3:])]


def gather(operands: Operands, kinds: Signature, attributes: Attributes) -> list[Array]:
    """`source[index]` along one axis; an index out of range reads the nearest element, where the
    hardware's result is undefined."""
    axis = attributes["axis"] + 1
    source, index = (
        expanded(array, shape_of(kind))
        for array, kind in zip(operands, kinds.operands, strict=True)
    )
    n = max(len(source), len(index))
    source = np.broadcast_to(source, (n, *source.shape[1:]))
    index = np.broadcast_to(index, (n, *index.shape[1:]))
    inside = np.clip(index, 0, source.shape[axis] - 1)
    return [np.take_along_axis(source, inside, axis)]


def histogram(operands: Operands, kinds: Signature, attributes: Attributes) -> list[Array]:
    """Counts of integers by their lowest bits, as of a card; masked ones are not counted."""
    shape = shape_of(kinds.operands[0])
    kind = kinds.results[0]
    (bins,) = shape_of(kind)
    full = [expanded(array, shape) for array in operands]
    n = max(len(array) for array in full)
    values = np.broadcast_to(full[0], (n, *shape)).astype(np.int64) & (bins - 1)
    counted = full[1] if len(full) > 1 else np.ones_like(values, np.bool_)
    places = (values + bins * np.arange(n)[:, None])[np.broadcast_to(counted, values.shape)]
    counts = np.bincount(places, minlength=n * bins).reshape(n, bins)
    return [counts.astype(dtype_of(scalar_of(kind)))]


# --- reductions


ORDERLESS: Mapping[str, np.ufunc] = {
    "arith.addi": np.add,
    "arith.muli": np.multiply,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
}
"""Numpy's functions that give the same result in any order."""


def reduce(operands: Sequence[Array], axis: int, combine: Combine, name: str) -> list[Array]:
    """Combine all elements along a block axis, which the results lack.

    Args:
        operands: The reduced axis at its full size; other axes may be compact.
        axis: Block axis.
        combine: Evaluates the region on two lists of arrays of one shape.
        name: The operation, where the region is that operation on its two arguments; else empty.
    """
    place = axis + 1
    current = list(np.broadcast_arrays(*operands)) if len(operands) > 1 else list(operands)
    first, function = current[0], ORDERLESS.get(name)
    if function is not None and first.dtype != np.bool_:
        return [function.reduce(first, axis=place, dtype=first.dtype)]
    while (size := current[0].shape[place]) > 1:
        half = size // 2
        halves = combine(_part(current, place, 0, half), _part(current, place, half, 2 * half))
        if size % 2:
            rest = _part(current, place, 2 * half, size)
            halves = [
                np.concatenate([one, np.broadcast_to(last, _sized(one, place, 1))], axis=place)
                for one, last in zip(halves, rest, strict=True)
            ]
        current = halves
    return [array.squeeze(place) for array in current]


def scan(
    operands: Sequence[Array], axis: int, reverse: bool, combine: Combine, name: str
) -> list[Array]:
    """Combine each element with all before it (all behind it if `reverse`) along a block axis.

    Arguments as in `reduce`; the left argument of the region holds the elements that come first.
    """
    place = axis + 1
    current = list(np.broadcast_arrays(*operands)) if len(operands) > 1 else list(operands)
    if reverse:
        current = [np.flip(array, place) for array in current]
    first, function = current[0], ORDERLESS.get(name)
    if function is not None and first.dtype != np.bool_:
        found = [function.accumulate(first, axis=place, dtype=first.dtype)]
    else:
        found = _scan(current, place, combine)
    return [np.flip(array, place) for array in found] if reverse else found


def _scan(current: list[Array], place: int, combine: Combine) -> list[Array]:
    """Scan by scanning pairs: twice as many combinations as elements (Brent and Kung, 1982)."""
    size = current[0].shape[place]
    if size == 1:
        return current
    even = _part(current, place, 0, size - 1, 2)
    odd = _part(current, place, 1, size, 2)
    pairs = _scan(combine(even, odd), place, combine)
    results = [np.empty(_sized(one, place, size), one.dtype) for one in pairs]
    first = _part(current, place, 0, 1)
    for result, one, start in zip(results, pairs, first, strict=True):
        result[_slice(place, 1, size, 2)] = one
        result[_slice(place, 0, 1)] = start
    if size > 2:
        rest = _part(current, place, 2, size, 2)
        before = _part(pairs, place, 0, rest[0].shape[place])
        for result, one in zip(results, combine(before, rest), strict=True):
            result[_slice(place, 2, size, 2)] = one
    return results


def _slice(place: int, start: int, stop: int, step: int = 1) -> tuple[slice, ...]:
    return (slice(None),) * place + (slice(start, stop, step),)


def _part(arrays: list[Array], place: int, start: int, stop: int, step: int = 1) -> list[Array]:
    return [array[_slice(place, start, stop, step)] for array in arrays]


def _sized(array: Array, place: int, size: int) -> tuple[int, ...]:
    return (*array.shape[:place], size, *array.shape[place + 1 :])


EXACT_TERMS = 1024
"""Products of this many pairs of 8-bit integers have exact float32 sums."""


def dot(operands: Operands, kinds: Signature, attributes: Attributes) -> list[Array]:
    """`a @ b + c`.

    Operands in float32 lose the bits that TF32 lacks, by truncation as the tensor cores do it,
    unless the precision is `ieee`, `tf32x3`, `bf16x3` or `bf16x6`: the last three nearly have
    float32's.
    """
    left, right, accumulator = operands
    kind, result = scalar_of(kinds.operands[0]), scalar_of(kinds.results[0])
    terms = shape_of(kinds.operands[0])[-1]  # the sum at full size; rows and columns stay compact
    left = expanded(left, (*left.shape[1:-1], terms))
    right = expanded(right, (*right.shape[1:-2], terms, right.shape[-1]))
    if not kind.is_float:
        if left.dtype != np.int8 or right.dtype != np.int8:
            raise Unsupported(f"tt.dot of {left.dtype}")
        wide = np.float32 if terms <= EXACT_TERMS else np.float64
        product = (left.astype(wide) @ right.astype(wide)).astype(np.int32)
        return [(product + accumulator).astype(dtype_of(result))]
    if kind.name == "f64":
        return [left @ right + accumulator]
    left, right = left.astype(np.float32, copy=False), right.astype(np.float32, copy=False)
    if kind.name == "f32" and attributes.get("inputPrecision", "ieee") == "tf32":
        left, right = (round_to(one, "tf32", toward_zero=True) for one in (left, right))
    return [to_float(left @ right + accumulator.astype(np.float32, copy=False), result)]


BLOCKS: Mapping[str, Operation] = {
    "tt.join": join,
    "tt.split": split,
    "tt.cat": cat,
    "tt.gather": gather,
    "tt.histogram": histogram,
    "tt.dot": dot,
}


OPERATIONS: Mapping[str, Operation] = {**INTEGERS, **FLOATS, **CASTS, **BLOCKS, **EXTERNS}
"""Semantics of every operation without memory, pointers, control flow, regions or calls."""
