# pyright: strict
"""Reading a cubin or hsaco without tools: its entry, its global data, its registers.

The judge reads each binary that a compiler child hands over; the bytes may be anything, so every
offset is checked. `check_code` refuses what the closed list of TTIR cannot lead to.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

CUDA, AMDGPU = 190, 224
"""e_machine"""
_HEADER = struct.Struct("<4sBBB9xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
MAX_SECTIONS, MAX_SYMBOLS = 4096, 1 << 16
SYMTAB, NOBITS = 2, 8
WRITE, ALLOC = 1, 2
FUNCTION, OBJECT = 2, 1
CUDA_ENTRY = 0x10
"""Bit of a symbol's `st_other`: a kernel."""
REGCOUNT, FRAME_SIZE = 0x2F, 0x11
"""Attributes of `.nv.info`: (symbol, value) pairs."""
MAX_TABLE_BYTES = 1 << 16
_TABLE = re.compile(r"_\$_str(_\$_\d+)?|__cudart_\w+|__internal_\w+|__nv_\w+")
"""Constant tables of libdevice: reduction of large angles, and a string that is never read."""
_GLOBAL = re.compile(r"\.nv\.global(\.init)?")
_SHARED = re.compile(r"\.nv\.(merc\.nv\.)?shared\..*")
"""Memory of a block; `merc` is a second form of the same code (Blackwell)."""


class InvalidElf(Exception):
    """The bytes are no binary, or hold what a kernel may not. The message says what."""


@dataclass(frozen=True, slots=True)
class Section:
    """One section of an ELF file: offsets and sizes in bytes."""

    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """One symbol of an ELF file: `size` in bytes."""

    name: str
    kind: int
    other: int
    section: int
    size: int


@dataclass(frozen=True, slots=True)
class Elf:
    """A binary's parts."""

    machine: int
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]
    num_registers: int
    """For each thread, the largest of its functions; 0 for hsaco."""
    num_spills: int
    """Stack of a thread in 32-bit words."""


def read_elf(code: bytes) -> Elf:
    """Raises InvalidElf."""
    try:
        return _read(code)
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise InvalidElf(f"not a binary: {error}") from error


def check_code(code: bytes, *, name: str, backend: str) -> Elf:
    """Returns the parts of a binary whose only kernel is `name`, without writable global data
    beyond libdevice's tables and without calls of the device runtime (`vprintf`, `malloc`).

    Raises InvalidElf.
    """
    elf = read_elf(code)
    if elf.machine != {"cuda": CUDA, "hip": AMDGPU}.get(backend):
        raise InvalidElf(f"machine {elf.machine} for {backend}")
    entries = [one.name.removesuffix(".kd") for one in elf.symbols if _is_entry(one, elf.machine)]
    if entries != [name]:
        raise InvalidElf(f"entries {entries}, expected {name}")
    for symbol in elf.symbols:
        if symbol.section == 0 and symbol.kind == FUNCTION:
            raise InvalidElf(f"calls {symbol.name}")
    for index, section in enumerate(elf.sections):
        if section.flags & WRITE and section.flags & ALLOC:
            _check_writable(elf, index, section)
    return elf


def _is_entry(symbol: Symbol, machine: int) -> bool:
    if machine == CUDA:
        return symbol.kind == FUNCTION and bool(symbol.other & CUDA_ENTRY)
    return symbol.kind == OBJECT and symbol.name.endswith(".kd")


def _check_writable(elf: Elf, index: int, section: Section) -> None:
    shared = _SHARED.fullmatch(section.name)
    if shared and (section.kind == NOBITS or shared[1]):
        return
    if elf.machine == AMDGPU and section.name in (".dynamic", ".relro_padding"):
        return
    inside = [one.name for one in elf.symbols if one.section == index and one.kind == OBJECT]
    is_tables = _GLOBAL.fullmatch(section.name) and all(map(_TABLE.fullmatch, inside))
    if not is_tables or section.size > MAX_TABLE_BYTES:
        raise InvalidElf(f"global data {section.name}: {', '.join(inside[:5])}")


def _read(code: bytes) -> Elf:
    header = _HEADER.unpack_from(code)
    magic, bits, order, machine = header[0], header[1], header[2], header[5]
    names_at: int = header[16]
    start, size, count = header[9], header[14], header[15]
    if magic != b"\x7fELF" or bits != 2 or order != 1 or size != _SECTION.size:
        raise InvalidElf("not a 64-bit little-endian ELF")
    if not 0 < count <= MAX_SECTIONS or names_at >= count:
        raise InvalidElf(f"{count} sections")
    raw: list[tuple[int, ...]] = [
        _SECTION.unpack_from(code, start + i * size) for i in range(count)
    ]
    strings = raw[names_at][4], raw[names_at][5]
    sections = tuple(
        Section(_string(code, strings, one[0]), one[1], one[2], one[4], one[5], one[6])
        for one in raw
    )
    for section in sections:
        if section.kind != NOBITS and section.offset + section.size > len(code):
            raise InvalidElf(f"section {section.name} ends behind the file")
    symbols = tuple(_symbols(code, sections))
    registers, frame = _usage(code, sections) if machine == CUDA else (0, 0)
    return Elf(machine, sections, symbols, registers, frame // 4)


def _symbols(code: bytes, sections: tuple[Section, ...]) -> Iterator[Symbol]:
    for section in sections:
        if section.kind != SYMTAB:
            continue
        strings = sections[section.link]
        count = section.size // _SYMBOL.size
        if count > MAX_SYMBOLS:
            raise InvalidElf(f"{count} symbols")
        for i in range(count):
            name, info, other, index, _, size = _SYMBOL.unpack_from(
                code, section.offset + i * _SYMBOL.size
            )
            text = _string(code, (strings.offset, strings.size), name)
            yield Symbol(text, info & 15, other, index, size)


def _string(code: bytes, table: tuple[int, int], at: int) -> str:
    start, size = table
    if at >= max(size, 1):
        raise InvalidElf("a name outside its table")
    end = code.index(b"\0", start + at) if size else start + at
    return code[start + at : end].decode("ascii")


def _usage(code: bytes, sections: tuple[Section, ...]) -> tuple[int, int]:
    """Registers of a thread and bytes of its stack, from `.nv.info`."""
    found = {REGCOUNT: 0, FRAME_SIZE: 0}
    for section in sections:
        if section.name != ".nv.info":
            continue
        at, end = section.offset, section.offset + section.size
        while at + 4 <= end:
            form, attribute, size = struct.unpack_from("<BBH", code, at)
            at += 4
            if form != 4:
                continue
            if attribute in found and size >= 8:
                value = struct.unpack_from("<I", code, at + 4)[0]
                found[attribute] = max(found[attribute], value)
            at += size
    return found[REGCOUNT], found[FRAME_SIZE]
