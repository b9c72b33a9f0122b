"""`tt.elementwise_inline_asm`: blocks of elements pass through a template of PTX."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forge.evalpool.judge.ttir.semantics.casts import from_bits, to_bits
from forge.evalpool.judge.ttir.semantics.elements import scalar_of
from forge.evalpool.judge.ttir.semantics.ptx.machine import parse, run
from forge.evalpool.judge.ttir.types import shape_of
from forge.evalpool.judge.ttir.values import expanded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.evalpool.judge.ttir.types import Scalar
    from forge.evalpool.judge.ttir.values import Array, Attribute, Operation, Signature

REGISTER_BITS = 32
"""Narrower elements share registers of this width, as far as `packed_element` goes."""


def inline_asm(
    operands: Sequence[Array], signature: Signature, attributes: Mapping[str, Attribute]
) -> list[Array]:
    """Results of a template for each group of `packed_element` elements.

    Raises:
        Unsupported: with the statement of the template that is not known.
    """
    template = parse(attributes["asm_string"])
    packed: int = attributes["packed_element"]
    kinds = [scalar_of(kind) for kind in signature.results]
    shape = shape_of(signature.results[0])
    if packed > 1:
        operands = [expanded(array, shape) for array in operands]
    full = np.broadcast_shapes(*(array.shape for array in operands)) if operands else (1, *shape)
    registers: dict[str, Array] = {}
    widths: dict[str, int] = {}
    outputs = [(kind, _register_count(kind, packed)) for kind in kinds]
    number = 0
    for kind, count in outputs:
        for _ in range(count):
            widths[f"${number}"] = _register_width(kind, packed)
            number += 1
    inputs = [part.strip() for part in str(attributes["constraints"]).split(",")][number:]
    ties = iter(inputs)
    for array, kind in zip(operands, signature.operands, strict=True):
        bits = to_bits(np.broadcast_to(array, full), scalar_of(kind))
        for register in _registers(bits, packed):
            widths[f"${number}"] = register.dtype.itemsize * 8
            registers[f"${number}"] = register
            tie = next(ties, "")
            if tie.isdigit():
                registers[f"${tie}"] = register
            number += 1
    run(template, registers, widths)
    return _results(outputs, registers, packed, full)


def _results(
    outputs: list[tuple[Scalar, int]], registers: dict[str, Array], packed: int, full: Sequence[int]
) -> list[Array]:
    found: list[Array] = []
    number = 0
    size = int(np.prod(full))
    unset = np.zeros((), np.uint64)
    for kind, count in outputs:
        parts = [registers.get(f"${number + place}", unset) for place in range(count)]
        number += count
        bits = _elements(parts, kind, packed, -(-size // packed))
        found.append(from_bits(bits[:size].reshape(full), kind))
    return found


def _register_count(kind: Scalar, packed: int) -> int:
    return -(-packed // _shared(kind.num_bytes, packed))


def _register_width(kind: Scalar, packed: int) -> int:
    return kind.num_bytes * 8 * _shared(kind.num_bytes, packed)


def _shared(num_bytes: int, packed: int) -> int:
    """Number of elements in one register."""
    return min(max(REGISTER_BITS // (num_bytes * 8), 1), packed)


def _registers(bits: Array, packed: int) -> list[Array]:
    """Registers of groups of elements: each an array over the groups."""
    flat = bits.reshape(-1)
    missing = -len(flat) % packed
    if missing:
        flat = np.concatenate([flat, np.zeros(missing, flat.dtype)])
    shared = _shared(bits.dtype.itemsize, packed)
    wide = np.ascontiguousarray(flat).view(np.dtype(f"u{bits.dtype.itemsize * shared}"))
    grouped = wide.reshape(-1, packed // shared)
    return [grouped[:, place] for place in range(grouped.shape[1])]


def _elements(parts: list[Array], kind: Scalar, packed: int, groups: int) -> Array:
    """The inverse of `_registers`, for the registers of one result."""
    width = np.dtype(f"u{kind.num_bytes * _shared(kind.num_bytes, packed)}")
    wide = np.stack([np.broadcast_to(part, (groups,)).astype(width) for part in parts], axis=-1)
    return np.ascontiguousarray(wide).view(np.dtype(f"u{kind.num_bytes}")).reshape(-1)


ASSEMBLY: Mapping[str, Operation] = {"tt.elementwise_inline_asm": inline_asm}
