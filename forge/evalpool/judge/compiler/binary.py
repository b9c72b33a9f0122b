# pyright: strict
"""A compiled kernel and the reasons why one could not be compiled; reading it without tools.

A compiler child writes the fields of a `Binary` as a JSON object (`Header`); the judge checks each
field here before it believes one, and reads the ELF itself: its entry, its global data, its
registers. The bytes may be anything, so every offset is checked; `check_code` refuses what the
closed list of TTIR cannot lead to. Neither torch nor Triton is imported.

Also here: resources of each architecture that a launch would be refused for, known without a card.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    from collections.abc import Iterator


Header: TypeAlias = Mapping[str, Any]

MAX_CODE_BYTES = 8 << 20
"""Largest binary; the largest seen is 0.4 MB."""
MAX_SCRATCH_BYTES = 64 << 20
"""Global scratch memory of one program instance."""
MAX_DIMENSIONS = 8


class FailureKind(StrEnum):
    """Reason why there is no binary."""

    REFUSED = "refused"
    """The text is outside the closed list."""
    COMPILE_ERROR = "compile_error"
    """The compiler refused it, crashed, or ran past its deadline or memory."""
    OUT_OF_RESOURCES = "out_of_resources"
    """It compiles and cannot be launched on this target."""
    INFRA = "infra"
    """The judge's own fault: a compiler child could not be had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A kernel without a binary."""

    kind: FailureKind
    message: str
    text_line: int = 0
    """Line of the kernel's text, from 1; 0 where unknown."""
    line: int = 0
    """Line of the candidate's source; 0 where unknown."""
    operation: str = ""
    """Operation that was refused, such as `tt.int_to_ptr`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMap:
    """Encoding of a tensor map that the host makes for a descriptor argument (TMA)."""

    swizzle: int
    """CUtensorMapSwizzle."""
    elem_size: int
    """Bytes."""
    elem_type: int
    """CUtensorMapDataType."""
    block_size: tuple[int, ...]
    """Elements of the box, by dimension."""
    fp4_padded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """A kernel compiled for one target, with the facts that a launch needs."""

    key: str
    """Cache key: SHA-256 of text, options, parameters, target and compiler version."""
    target: str
    name: str
    """Entry symbol."""
    code: bytes
    """Cubin or hsaco."""
    shared_bytes: int
    """Dynamic shared memory of a launch."""
    num_warps: int
    """Warps of a launch, more than the option where warps are specialised."""
    global_scratch_bytes: int
    """For each program instance; the launch passes a pointer to the whole."""
    global_scratch_alignment: int
    profile_scratch_bytes: int
    profile_scratch_alignment: int
    tensor_maps: tuple[TensorMap, ...]
    """One for each descriptor among the parameters, in order; empty where descriptors are passed
    as a base pointer with shape and strides."""
    tensor_memory: int
    """Columns of tensor memory (Blackwell)."""
    num_registers: int
    """For each thread."""
    num_spills: int
    """Local memory of a thread in 32-bit words, as Triton counts spills."""

    def header(self) -> dict[str, Any]:
        """Returns all fields but `code`, as JSON takes them."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "code"}
        values["tensor_maps"] = [
            {one.name: getattr(item, one.name) for one in fields(item)} for item in self.tensor_maps
        ]
        return values


class InvalidBinary(Exception):
    """A compiler child or a cache file holds no binary. The message names the field."""


TEXTS = {
    "key": re.compile(r"[0-9a-f]{64}"),
    "target": re.compile(r"[a-z]+:[a-z0-9]+:\d+"),
    "name": re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,511}"),
}
NUMBERS = {
    "shared_bytes": (0, 1 << 20),
    "num_warps": (1, 64),
    "global_scratch_bytes": (0, MAX_SCRATCH_BYTES),
    "global_scratch_alignment": (1, 4096),
    "profile_scratch_bytes": (0, MAX_SCRATCH_BYTES),
    "profile_scratch_alignment": (1, 4096),
    "tensor_memory": (0, 512),
    "num_registers": (0, 1024),
    "num_spills": (0, 1 << 20),
}
"""Least and largest value of each number of a `Binary`."""
MAP_NUMBERS = {"swizzle": (0, 8), "elem_size": (1, 16), "elem_type": (0, 32)}
MAX_BOX = 256
"""Elements of a tensor map's box along one dimension."""


def parse_binary(header: Header, code: bytes) -> Binary:
    """Returns a binary of fields that somebody else wrote. Raises InvalidBinary."""
    if len(code) > MAX_CODE_BYTES:
        raise InvalidBinary(f"code has {len(code)} bytes of at most {MAX_CODE_BYTES}")
    if set(header) != {one.name for one in fields(Binary)} - {"code"}:
        raise InvalidBinary(f"fields {sorted(header)}")
    for name, pattern in TEXTS.items():
        if not isinstance(header[name], str) or not pattern.fullmatch(header[name]):
            raise InvalidBinary(f"{name} is {str(header[name])[:80]!r}")
    _check_numbers(header, NUMBERS)
    maps = tuple(_tensor_map(one) for one in _list(header, "tensor_maps"))
    values: dict[str, Any] = {**header, "code": code, "tensor_maps": maps}
    return Binary(**values)


def _tensor_map(item: Any) -> TensorMap:
    header: Header = cast("Header", item) if isinstance(item, dict) else {}
    if set(header) != {one.name for one in fields(TensorMap)}:
        raise InvalidBinary("tensor_maps")
    _check_numbers(header, MAP_NUMBERS)
    box = _list(header, "block_size")
    fits = all(type(one) is int and 1 <= one <= MAX_BOX for one in box)
    if len(box) > MAX_DIMENSIONS or not fits:
        raise InvalidBinary(f"block_size is {str(box)[:80]}")
    if type(header["fp4_padded"]) is not bool:
        raise InvalidBinary(f"fp4_padded is {str(header['fp4_padded'])[:80]}, no bool")
    values: dict[str, Any] = {**header, "block_size": tuple(box)}
    return TensorMap(**values)


def _check_numbers(header: Header, bounds: Mapping[str, tuple[int, int]]) -> None:
    for name, (least, most) in bounds.items():
        value = header[name]
        if type(value) is not int or not least <= value <= most:
            raise InvalidBinary(f"{name} is {str(value)[:80]}, not from {least} to {most}")


def _list(header: Header, name: str) -> list[Any]:
    value = header[name]
    if not isinstance(value, list | tuple):
        raise InvalidBinary(f"{name} is no list")
    return list(cast("list[Any]", value))


SHARED_BYTES = {
    "cuda:70": 96 << 10,
    "cuda:75": 64 << 10,
    "cuda:80": 163 << 10,
    "cuda:86": 99 << 10,
    "cuda:87": 163 << 10,
    "cuda:89": 99 << 10,
    "cuda:90": 227 << 10,
    "cuda:100": 227 << 10,
    "cuda:103": 227 << 10,
    "cuda:120": 99 << 10,
    "cuda:121": 99 << 10,
    "hip:gfx90a": 64 << 10,
    "hip:gfx942": 64 << 10,
    "hip:gfx950": 160 << 10,
    "hip:gfx1100": 64 << 10,
    "hip:gfx1201": 64 << 10,
}
"""Shared memory of one block by opt-in (CUDA C++ programming guide, table of compute capabilities),
LDS of a workgroup (AMD's ISA documents)."""


def warp_size_of(target: str) -> int:
    """Threads of a warp of `cuda:90` or `hip:gfx942`: 64 on AMD's GCN and CDNA (gfx9), else 32."""
    return 64 if re.fullmatch(r"hip:gfx[1-9]\w\w", target) else 32


MAX_THREADS = 1024
MAX_TENSOR_MEMORY = 512


def over_limits(binary: Binary) -> str:
    """Returns why a binary cannot be launched, in Triton's words, or an empty string. An unknown
    architecture has no limit here: the launch itself answers."""
    backend, arch, warp_size = binary.target.split(":")
    limit = SHARED_BYTES.get(f"{backend}:{arch}")
    checks = [
        ("shared memory", binary.shared_bytes, limit),
        ("threads", binary.num_warps * int(warp_size), MAX_THREADS),
        ("tensor memory", binary.tensor_memory, MAX_TENSOR_MEMORY),
    ]
    for name, required, allowed in checks:
        if allowed is not None and required > allowed:
            return over_limit(name, required, allowed)
    return ""


def over_limit(name: str, required: int, allowed: int) -> str:
    """Triton's words for a launch that asks for more than there is."""
    return (
        f"out of resource: {name}, Required: {required}, Hardware limit: {allowed}. "
        "Reducing block sizes or `num_stages` may help."
    )


# --- the ELF


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
