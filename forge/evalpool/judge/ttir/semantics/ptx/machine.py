"""Inline assembly: a machine for PTX of pure arithmetic, each register an array of bits.

A register is an unsigned integer array of its width, a predicate a bool array. `operands` packs
operands into registers, `instructions` has the semantics of each opcode.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from forge.evalpool.judge.ttir.semantics.ptx.instructions import execute
from forge.evalpool.judge.ttir.values import Unsupported

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.values import Array

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
