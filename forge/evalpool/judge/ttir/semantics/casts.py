"""Conversions between element types, and constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from forge.evalpool.judge.ttir.semantics.formats import (
    FORMATS,
    Rounding,
    round_to,
    scalar_of,
    to_float,
    unsigned,
    widened,
)
from forge.evalpool.judge.ttir.tree import Attribute, Scalar, Signature, shape_of
from forge.evalpool.judge.ttir.values import Array, Operation, Unsupported, decode, dtype_of, encode


def constant(
    operands: Sequence[Array], signature: Signature, attributes: Mapping[str, Attribute]
) -> list[Array]:
    """The number or block of the attribute `value`."""
    kind = scalar_of(signature.results[0])
    value = np.asarray(attributes["value"])
    if value.ndim:
        return [value.astype(dtype_of(kind))[None]]
    rank = len(shape_of(signature.results[0]))
    return [_literal(value, kind).reshape((1,) * (1 + rank))]


def _literal(value: Array, kind: Scalar) -> Array:
    """A number of any sign in the array type of its element type."""
    if kind.is_float or kind.name == "i1":
        return value.astype(dtype_of(kind))
    return np.array(int(value) & ((1 << kind.bits) - 1), np.uint64).astype(dtype_of(kind))


def change_float(
    operands: Sequence[Array], signature: Signature, attributes: Mapping[str, Attribute]
) -> list[Array]:
    """A float in another float type: to nearest even, or towards zero with `rounding = rtz`."""
    kind = scalar_of(signature.results[0])
    array = widened(operands[0])
    if attributes.get("rounding") != "rtz":
        return [to_float(array, kind)]
    if kind.name not in FORMATS:
        raise Unsupported(f"rounding towards zero to {kind}")
    saturate = kind.name.startswith("f8E4M3")
    rounded = round_to(array, kind.name, rounding=Rounding.ZERO, saturate=saturate)
    return [rounded.astype(dtype_of(kind), copy=False)]


def float_to_integer(
    operands: Sequence[Array], signature: Signature, attributes: Mapping[str, Attribute]
) -> list[Array]:
    """A float as a signed integer, towards zero; see `saturated`."""
    kind = scalar_of(signature.results[0])
    return [_narrow(operands[0], kind, is_unsigned=False)]


def float_to_unsigned(
    operands: Sequence[Array], signature: Signature, attributes: Mapping[str, Attribute]
) -> list[Array]:
    """A float as an unsigned integer, towards zero; see `saturated`."""
    kind = scalar_of(signature.results[0])
    return [_narrow(operands[0], kind, is_unsigned=True)]


def _narrow(array: Array, kind: Scalar, *, is_unsigned: bool) -> Array:
    """Integers of 8 bits and less are the low bits of those of 16, since PTX has no narrower."""
    bits = max(kind.bits, 16)
    wide = saturated(np.trunc(array), bits, is_unsigned=is_unsigned)
    if kind.name == "i1":
        return (wide & 1).astype(np.bool_)
    return wide.view(np.dtype(f"i{bits // 8}")).astype(dtype_of(kind), copy=False)


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


def integer_to_float(
    operands: Sequence[Array], signature: Signature, attributes: Mapping[str, Attribute]
) -> list[Array]:
    """A signed integer as the nearest float; i1 is 0 or -1."""
    array = operands[0]
    return [_to_nearest(-array.astype(np.int8) if array.dtype == np.bool_ else array, signature)]


def unsigned_to_float(
    operands: Sequence[Array], signature: Signature, attributes: Mapping[str, Attribute]
) -> list[Array]:
    """An unsigned integer as the nearest float."""
    return [_to_nearest(unsigned(operands[0]), signature)]


def _to_nearest(array: Array, signature: Signature) -> Array:
    """One rounding; two for bf16, which is reached through float32 as Triton's lowering does."""
    kind = scalar_of(signature.results[0])
    if kind.name == "f16":
        return array.astype(np.float64).astype(np.float16)
    return to_float(array.astype(np.float64 if kind.name == "f64" else np.float32), kind)


def sign_extend(
    operands: Sequence[Array], signature: Signature, attributes: Mapping[str, Attribute]
) -> list[Array]:
    """A wider integer of the same value; i1 is 0 or -1."""
    array = operands[0]
    wide = array.astype(dtype_of(scalar_of(signature.results[0])))
    return [-wide if array.dtype == np.bool_ else wide]


def zero_extend(
    operands: Sequence[Array], signature: Signature, attributes: Mapping[str, Attribute]
) -> list[Array]:
    """A wider integer of the same unsigned value."""
    return [unsigned(operands[0]).astype(dtype_of(scalar_of(signature.results[0])))]


def truncate(
    operands: Sequence[Array], signature: Signature, attributes: Mapping[str, Attribute]
) -> list[Array]:
    """The low bits of an integer."""
    kind = scalar_of(signature.results[0])
    if kind.name == "i1":
        return [(operands[0] & 1).astype(np.bool_)]
    return [operands[0].astype(dtype_of(kind))]


def cast_index(
    operands: Sequence[Array], signature: Signature, attributes: Mapping[str, Attribute]
) -> list[Array]:
    """An integer as an index, or the other way: signed extension or truncation."""
    return [operands[0].astype(dtype_of(scalar_of(signature.results[0])))]


def bitcast(
    operands: Sequence[Array], signature: Signature, attributes: Mapping[str, Attribute]
) -> list[Array]:
    """The same bits as another type of the same width."""
    source, target = scalar_of(signature.operands[0]), scalar_of(signature.results[0])
    if source == target:
        return [operands[0]]
    return [from_bits(to_bits(operands[0], source), target)]


def to_bits(array: Array, kind: Scalar) -> Array:
    """Bits of the values of a type, as unsigned integers of its width (8 bits for i1)."""
    return np.ascontiguousarray(encode(array, kind)).view(np.dtype(f"u{kind.num_bytes}"))


def from_bits(bits: Array, kind: Scalar) -> Array:
    """Values of a type from unsigned integers of its width."""
    if kind.name in FORMATS and kind.name != "f16":
        return decode(bits, kind)
    return bits.view(dtype_of(kind))


CASTS: Mapping[str, Operation] = {
    "arith.constant": constant,
    "arith.extf": change_float,
    "arith.truncf": change_float,
    "arith.convertf": change_float,
    "tt.fp_to_fp": change_float,
    "arith.fptosi": float_to_integer,
    "arith.fptoui": float_to_unsigned,
    "arith.sitofp": integer_to_float,
    "arith.uitofp": unsigned_to_float,
    "arith.extsi": sign_extend,
    "arith.extui": zero_extend,
    "arith.trunci": truncate,
    "arith.index_cast": cast_index,
    "arith.index_castui": zero_extend,
    "arith.bitcast": bitcast,
    "tt.bitcast": bitcast,
}
