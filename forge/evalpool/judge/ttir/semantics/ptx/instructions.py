"""Semantics of PTX's arithmetic instructions, for inline assembly (PTX ISA 8.x, section 9.7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

from forge.evalpool.judge.ttir.semantics.approximate import INSTRUCTIONS, approximated
from forge.evalpool.judge.ttir.semantics.casts import saturated, to_bits
from forge.evalpool.judge.ttir.semantics.exact import single
from forge.evalpool.judge.ttir.semantics.externs import byte_perm, reversed_bits
from forge.evalpool.judge.ttir.semantics.formats import Rounding, round_to, to_float
from forge.evalpool.judge.ttir.semantics.integers import (
    COMPARISONS,
    count_leading_zeros,
    count_ones,
    divide,
    multiply_high,
    multiply_high_signed,
    remainder,
)
from forge.evalpool.judge.ttir.tree import Scalar
from forge.evalpool.judge.ttir.values import Array, Unsupported, decode

Function = Callable[..., "Array"]

FLOATS: Mapping[str, str] = {
    "f16": "f16",
    "bf16": "bf16",
    "f32": "f32",
    "f64": "f64",
    "e4m3": "f8E4M3FN",
    "e5m2": "f8E5M2",
    "tf32": "f32",
}
"""MLIR's names of PTX's float types."""
INTEGERS = {f"{sign}{bits}" for sign in "sub" for bits in (8, 16, 32, 64)}
ROUNDINGS: Mapping[str, Rounding] = {str(one): one for one in Rounding}
WHOLE: Mapping[str, Function] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}
"""Roundings of floats to whole numbers."""
HARMLESS = {"approx", "full", "ftz", "lo", "noftz"}
"""Modifiers without a meaning of their own here. Subnormals are not flushed; instructions that are
approximate only have their errors (`approximate`)."""


def execute(opcode: str, modifiers: Sequence[str], operands: Sequence[Any]) -> Array:
    """Bits of an instruction's result.

    Args:
        operands: The sources: arrays of bits, or numbers.

    Raises:
        Unsupported: with the instruction, where it is not known.
    """
    kinds = [one for one in modifiers if _is_type(one)]
    words = [one for one in modifiers if not _is_type(one)]
    if opcode == "cvt" and len(kinds) == 2:
        return _convert(kinds[0], kinds[1], words, operands)
    if opcode in ("setp", "selp", "mov") or not kinds:
        return _choose(opcode, words, kinds, operands)
    kind = kinds[-1]
    element = kind.removesuffix("x2")
    table = FLOAT_OPERATIONS if element in FLOATS else INTEGER_OPERATIONS
    key = ".".join([opcode, *(one for one in words if one in ("hi", "wide", "NaN", "b32"))])
    function = table.get(key)
    rest = set(words) - HARMLESS - set(ROUNDINGS) - {"hi", "wide", "NaN", "sat"}
    if function is None or rest:
        raise Unsupported(f"inline assembly {'.'.join((opcode, *modifiers))}")
    if element not in FLOATS:
        return _integer_result(function, key, element, operands)
    rounding = next((ROUNDINGS[one] for one in words if one in ROUNDINGS), Rounding.NEAREST_EVEN)
    lanes = zip(*(_float_lanes(one, kind) for one in operands), strict=True)
    results = [_float_result(opcode, function, element, list(lane), rounding) for lane in lanes]
    if "sat" in words:
        results = [np.fmin(np.fmax(one, one.dtype.type(0)), one.dtype.type(1)) for one in results]
    return _join([to_bits(one, Scalar(FLOATS[element])) for one in results])


def _is_type(word: str) -> bool:
    return word.removesuffix("x2") in FLOATS or word in INTEGERS or word == "pred"


def _float_result(
    opcode: str, function: Function, element: str, operands: list[Array], rounding: Rounding
) -> Array:
    if element == "f32" and opcode in ("add", "sub", "mul", "div", "sqrt", "rcp", "fma"):
        return single(opcode, rounding, [np.asarray(one) for one in operands])
    wide = [one.astype(np.float64) for one in operands]
    result = function(*wide)
    if element == "f32" and opcode in INSTRUCTIONS:
        result = approximated(INSTRUCTIONS[opcode], result, operands)
    return to_float(result, Scalar(FLOATS[element]))


def _float_lanes(operand: Any, kind: str) -> list[Array]:
    """Values of a register's elements, the low half first."""
    element = Scalar(FLOATS[kind.removesuffix("x2")])
    count = 2 if kind.endswith("x2") else 1
    dtype = np.float64 if element.name == "f64" else np.float32
    if not _is_array(operand):
        if count == 1:
            return [np.asarray(operand, dtype)]
        operand = np.asarray(operand, np.uint64)
    bits: Array = operand.astype(np.uint64)
    unsigned = np.dtype(f"u{element.num_bytes}")
    found: list[Array] = []
    for place in range(count):
        part = (bits >> np.uint64(place * element.bits)).astype(unsigned)
        if element.name in ("f32", "f64", "f16"):
            found.append(part.view(np.dtype(f"f{element.num_bytes}")).astype(dtype))
        else:
            found.append(decode(part, element))
    return found


def _join(parts: list[Array]) -> Array:
    """Bits of one or two elements in one register, the low half first."""
    if len(parts) == 1:
        return parts[0]
    width = parts[0].dtype.itemsize * 8
    return parts[0].astype(np.uint64) | parts[1].astype(np.uint64) << np.uint64(width)


def _is_array(operand: Any) -> TypeGuard[Array]:
    return isinstance(operand, np.ndarray)


def _integer(operand: Any, kind: str) -> Array:
    """A register or a number as integers of a type, with its low bits."""
    dtype = np.dtype(f"{'i' if kind[0] == 's' else 'u'}{int(kind[1:]) // 8}")
    if _is_array(operand):
        return operand.astype(np.dtype(f"u{dtype.itemsize}")).view(dtype)
    mask = (1 << (dtype.itemsize * 8)) - 1
    return np.asarray(int(operand) & mask, np.dtype(f"u{dtype.itemsize}")).view(dtype)


def _integer_result(function: Function, key: str, kind: str, operands: Sequence[Any]) -> Array:
    if key in UNTYPED:
        arrays = [_integer(one, f"u{kind[1:]}") for one in operands]
        return function(*arrays)
    arrays = [_integer(one, kind) for one in operands]
    if key == "mad.wide":
        wide = f"{kind[0]}{int(kind[1:]) * 2}"
        arrays[2] = _integer(operands[2], wide)
    if key in SHIFTS:
        arrays[1:] = [_integer(one, "u32") for one in operands[1:]]
    return _bits(np.asarray(function(*arrays)))


def _bits(array: Array) -> Array:
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


def _choose(opcode: str, words: list[str], kinds: list[str], operands: Sequence[Any]) -> Array:
    """`mov`, `selp`, `setp`, and operations on predicates."""
    kind = kinds[-1] if kinds else ""
    if opcode == "mov" and kind != "pred":
        return _source(operands[0], kind)
    if opcode == "selp":
        yes, no, chosen = operands
        return np.where(chosen, _source(yes, kind), _source(no, kind))
    if opcode == "setp" and set(words[1:]) <= HARMLESS:
        return _compare(words[0], kind, operands)
    if kind == "pred" and opcode in PREDICATES:
        return PREDICATES[opcode](*operands)
    raise Unsupported(f"inline assembly {'.'.join((opcode, *words, *kinds))}")


def _source(operand: Any, kind: str) -> Array:
    """Bits of a register, or of a number of a type."""
    if _is_array(operand):
        return operand
    if kind in FLOATS:
        return to_bits(
            to_float(np.asarray(operand, np.float64), Scalar(FLOATS[kind])), Scalar(kind)
        )
    return _bits(_integer(operand, kind))


def _compare(word: str, kind: str, operands: Sequence[Any]) -> Array:
    """Predicates of floats ending in `u` hold for NaN; `ne` of floats does not."""
    names = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
    if kind not in FLOATS:
        left, right = (_integer(one, kind) for one in operands)
        return COMPARISONS[names.get(word, word)](left, right)
    left, right = (_float_lanes(one, kind)[0] for one in operands)
    unordered = np.isnan(left) | np.isnan(right)
    if word in ("num", "nan"):
        return unordered == (word == "nan")
    if word in COMPARISONS:
        return COMPARISONS[word](left, right) & ~unordered
    return COMPARISONS[word.removesuffix("u")](left, right) | unordered


def _convert(target: str, source: str, words: list[str], operands: Sequence[Any]) -> Array:
    """`cvt`: with two sources the first becomes the upper half."""
    known = {*HARMLESS, *ROUNDINGS, *WHOLE, "sat", "satfinite", "relu"}
    if not set(words) <= known:
        raise Unsupported(f"inline assembly cvt.{'.'.join((*words, target, source))}")
    if source in INTEGERS:
        return _convert_integer(target, source, operands[0])
    if len(operands) == 2:
        lanes = [_float_lanes(one, source)[0] for one in reversed(operands)]
    else:
        lanes = _float_lanes(operands[0], source)
    if "relu" in words:
        lanes = [np.fmax(lane, lane.dtype.type(0)) for lane in lanes]
    whole = next((WHOLE[one] for one in words if one in WHOLE), None)
    if whole is not None:
        lanes = [whole(lane) for lane in lanes]
    if target in INTEGERS:
        bits = max(int(target[1:]), 16)
        return _bits(saturated(lanes[0], bits, is_unsigned=target[0] == "u"))
    if "sat" in words:
        lanes = [np.fmin(np.fmax(lane, lane.dtype.type(0)), lane.dtype.type(1)) for lane in lanes]
    element = target.removesuffix("x2")
    rounding = next((ROUNDINGS[one] for one in words if one in ROUNDINGS), Rounding.NEAREST_EVEN)
    return _join([_narrowed(lane, element, rounding, "satfinite" in words) for lane in lanes])


def _narrowed(lane: Array, element: str, rounding: Rounding, saturate: bool) -> Array:
    if element in ("f32", "f64"):
        return to_bits(lane.astype(np.dtype(element)), Scalar(element))
    rounded = round_to(
        lane, "tf32" if element == "tf32" else FLOATS[element], rounding=rounding, saturate=saturate
    )
    kind = Scalar(FLOATS[element])
    return to_bits(to_float(rounded, kind), kind)


def _convert_integer(target: str, source: str, operand: Any) -> Array:
    value = _integer(operand, source.replace("b", "u"))
    if target in INTEGERS:
        return _bits(
            value.astype(np.dtype(f"{'i' if target[0] == 's' else 'u'}{int(target[1:]) // 8}"))
        )
    kind = Scalar(FLOATS[target])
    wide = value.astype(np.float32 if target == "f32" else np.float64)
    return to_bits(to_float(wide, kind), kind)


def lop3(a: Array, b: Array, c: Array, table: Array) -> Array:
    """Any function of three bits, by its table of eight."""
    result = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), a.dtype)
    for row in range(8):
        if int(table.flat[0]) >> row & 1:
            result |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return result


def _field(value: Array, start: Array, length: Array) -> Array:
    """`bfe`: a field of bits, with its sign for signed types."""
    bits = value.dtype.itemsize * 8
    start, length = np.minimum(start & 255, bits), np.minimum(length & 255, bits)
    top = np.minimum(start + length, bits)
    left = value.astype(value.dtype) << (bits - top).astype(value.dtype)
    moved = left >> (bits - np.minimum(length, top)).astype(value.dtype)
    return np.where(length == 0, value.dtype.type(0), moved)


def _insert(field: Array, into: Array, start: Array, length: Array) -> Array:
    """`bfi`: a field of bits put into a word."""
    one = np.uint64(1)
    start, length = (
        start.astype(np.uint64) & np.uint64(255),
        length.astype(np.uint64) & np.uint64(255),
    )
    mask = (((one << length) - one) << start).astype(into.dtype)
    return (into & ~mask) | (field << start.astype(into.dtype)) & mask


def _wide_product(left: Array, right: Array) -> Array:
    wide = np.dtype(f"{left.dtype.kind}{left.dtype.itemsize * 2}")
    return left.astype(wide) * right.astype(wide)


def _high_product(left: Array, right: Array) -> Array:
    return (multiply_high_signed if left.dtype.kind == "i" else multiply_high)(left, right)


def _byte_perm(low: Array, high: Array, selector: Array) -> Array:
    return byte_perm(low.view(np.int32), high.view(np.int32), selector.view(np.int32))


def _multiply_add(a: Array, b: Array, c: Array) -> Array:
    return a * b + c


def _multiply_add_high(a: Array, b: Array, c: Array) -> Array:
    return _high_product(a, b) + c


def _multiply_add_wide(a: Array, b: Array, c: Array) -> Array:
    return _wide_product(a, b) + c


def _rsqrt(x: Array) -> Array:
    return 1 / np.sqrt(x)


def _copy_sign(sign: Array, value: Array) -> Array:
    """PTX gives the sign first."""
    return np.copysign(value, sign)


def _shift_left(a: Array, b: Array) -> Array:
    return a << np.minimum(b, a.dtype.itemsize * 8).astype(a.dtype)


def _shift_right(a: Array, b: Array) -> Array:
    return a >> np.minimum(b, a.dtype.itemsize * 8).astype(a.dtype)


FLOAT_OPERATIONS: Mapping[str, Function] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "fma": _multiply_add,
    "mad": _multiply_add,
    "rcp": np.reciprocal,
    "sqrt": np.sqrt,
    "rsqrt": _rsqrt,
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "neg": np.negative,
    "abs": np.abs,
    "min": np.fmin,
    "max": np.fmax,
    "min.NaN": np.minimum,
    "max.NaN": np.maximum,
    "copysign": _copy_sign,
}
INTEGER_OPERATIONS: Mapping[str, Function] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "mul.hi": _high_product,
    "mul.wide": _wide_product,
    "mad": _multiply_add,
    "mad.hi": _multiply_add_high,
    "mad.wide": _multiply_add_wide,
    "div": divide,
    "rem": remainder,
    "min": np.minimum,
    "max": np.maximum,
    "abs": np.abs,
    "neg": np.negative,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "shl": _shift_left,
    "shr": _shift_right,
    "popc": count_ones,
    "clz": count_leading_zeros,
    "brev": reversed_bits,
    "lop3": lop3,
    "lop3.b32": lop3,
    "prmt": _byte_perm,
    "prmt.b32": _byte_perm,
    "bfe": _field,
    "bfi": _insert,
}
UNTYPED = {"and", "or", "xor", "not", "popc", "clz", "brev", "lop3", "bfi"}
"""Operations on bits without a sign."""
SHIFTS = {"shl", "shr", "bfe"}
"""Operations whose later operands are unsigned 32-bit integers."""
PREDICATES: Mapping[str, Function] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "not": np.logical_not,
    "mov": np.asarray,
}
