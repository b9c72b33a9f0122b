"""Inline assembly (`tt.elementwise_inline_asm`): a machine for PTX of pure arithmetic.

A register is an array of bits: of unsigned integers of its width, of bools for a predicate.
`instructions` has the semantics of each opcode.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from forge.evalpool.judge.ttir.semantics.casts import from_bits, to_bits
from forge.evalpool.judge.ttir.semantics.formats import scalar_of
from forge.evalpool.judge.ttir.semantics.ptx.instructions import execute
from forge.evalpool.judge.ttir.tree import Attribute, Scalar, Signature, shape_of
from forge.evalpool.judge.ttir.values import Array, Operation, Unsupported, expanded

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DECLARATION = re.compile(r"\.reg\s*\.(?P<kind>pred|[bsuf]\d+|f16x2)\s+(?P<names>.+)", re.DOTALL)
_RANGE = re.compile(r"(\w+)<(\d+)>")
_INSTRUCTION = re.compile(
    r"(?:@(?P<negated>!?)(?P<guard>\S+)\s+)?(?P<opcode>[a-z]\w*)(?P<modifiers>(?:\.[\w:]+)*)"
    r"\s+(?P<operands>.+)",
    re.DOTALL,
)
_OPERAND = re.compile(r"\{[^}]*\}|[^,{}]+")

ORDERING = "griddepcontrol."
"""Instructions that order launches, which follow each other here. They compute nothing."""

Operand: TypeAlias = "str | tuple[str, ...]"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One statement of a template."""

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    """Names of registers, numbers, and tuples of registers; the destination first."""
    guard: str
    negated: bool

    @property
    def text(self) -> str:
        """Opcode with its modifiers, as in the template."""
        return ".".join((self.opcode, *self.modifiers))


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template."""

    instructions: tuple[Instruction, ...]
    widths: dict[str, int]
    """Bits of each declared register; 1 for predicates."""


@lru_cache(maxsize=64)
def parse(text: str) -> Template:
    """Parse a template.

    Raises:
        Unsupported: with the statement that is not understood.
    """
    plain = _COMMENT.sub(" ", text).strip()
    if plain.startswith("{") and plain.rstrip(";").endswith("}"):
        plain = plain.rstrip(";")[1:-1]
    instructions: list[Instruction] = []
    widths: dict[str, int] = {}
    for statement in (part.strip() for part in plain.split(";")):
        if declaration := _DECLARATION.fullmatch(statement):
            _declare(declaration["kind"], declaration["names"], widths)
        elif statement and not statement.startswith(ORDERING):
            instructions.append(_instruction(statement))
    return Template(tuple(instructions), widths)


def _declare(kind: str, names: str, widths: dict[str, int]) -> None:
    bits = {"pred": 1, "f16x2": 32}.get(kind) or int(kind[1:])
    for name in (part.strip() for part in names.split(",")):
        if found := _RANGE.fullmatch(name):
            widths |= {f"{found[1]}{number}": bits for number in range(int(found[2]))}
        else:
            widths[name] = bits


def _instruction(statement: str) -> Instruction:
    found = _INSTRUCTION.fullmatch(statement)
    if found is None:
        raise Unsupported(f"inline assembly {statement!r}")
    operands = [
        tuple(one.strip() for one in part.strip("{} ").split(",")) if "{" in part else part.strip()
        for part in _OPERAND.findall(found["operands"])
        if part.strip()
    ]
    modifiers = tuple(found["modifiers"].split(".")[1:])
    return Instruction(
        found["opcode"], modifiers, tuple(operands), found["guard"] or "", bool(found["negated"])
    )


def run(template: Template, registers: dict[str, Array], widths: dict[str, int]) -> None:
    """Run all instructions; `registers` holds the operands before and the results after.

    Args:
        widths: of the operands, by name (`$0`), in bits.
    """
    known = {**template.widths, **widths}
    for one in template.instructions:
        _step(one, registers, known)


def _step(one: Instruction, registers: dict[str, Array], widths: dict[str, int]) -> None:
    destination, *sources = one.operands
    target = destination if isinstance(destination, str) else ""
    if one.opcode == "mov" and any(isinstance(part, tuple) for part in one.operands):
        results = _moved(destination, sources[0], registers, widths)
    else:
        values = [_value(source, registers) for source in sources]
        results = {target: execute(one.opcode, one.modifiers, values)}
    for name, result in results.items():
        if name == "_":
            continue
        fitted = _fitted(result, widths[name])
        if one.guard:
            holds = registers[one.guard] != one.negated
            old = registers.get(name, np.zeros((), fitted.dtype))
            fitted = np.where(holds, fitted, old)
        registers[name] = fitted


def _fitted(bits: Array, width: int) -> Array:
    """Bits in the unsigned type of a register."""
    if width == 1:
        return bits.astype(np.bool_)
    return bits.astype(np.dtype(f"u{width // 8}"))


def _moved(
    destination: Operand, source: Operand, registers: dict[str, Array], widths: dict[str, int]
) -> dict[str, Array]:
    """`mov.b32 {lo, hi}, x` and `mov.b32 x, {lo, hi}`."""
    if isinstance(source, tuple):
        assert isinstance(destination, str)
        parts = [_value(name, registers) for name in source]
        bits = widths[destination] // len(parts)
        total = sum(
            part.astype(np.uint64) << np.uint64(bits * place) for place, part in enumerate(parts)
        )
        return {destination: np.asarray(total)}
    assert isinstance(destination, tuple)
    whole = _value(source, registers).astype(np.uint64)
    bits = widths[str(source)] // len(destination)
    return {
        name: whole >> np.uint64(bits * place) & np.uint64((1 << bits) - 1)
        for place, name in enumerate(destination)
    }


def _value(name: Operand, registers: dict[str, Array]) -> Any:
    """A register's array, or the number that stands in its place."""
    if isinstance(name, tuple):
        raise Unsupported(f"inline assembly with the vector {name}")
    if name in registers:
        return registers[name]
    return _number(name)


def _number(text: str) -> Any:
    if text[:2].lower() == "0f":
        return np.float64(struct.unpack(">f", bytes.fromhex(text[2:]))[0])
    if text[:2].lower() == "0d":
        return np.float64(struct.unpack(">d", bytes.fromhex(text[2:]))[0])
    try:
        return int(text.rstrip("U"), 0)
    except ValueError:
        pass
    try:
        return np.float64(text)
    except ValueError:
        raise Unsupported(f"inline assembly with the operand {text!r}") from None


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
