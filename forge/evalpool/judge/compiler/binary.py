# pyright: strict
"""A compiled kernel and the reasons why one could not be compiled.

A compiler child writes the fields of a `Binary` as a JSON object; the judge checks each of them
here before it believes one, as those of its cache. The code itself may be anything: a child that
hostile text has taken over may write any, so nothing depends on it but what the executor that runs
it can bear. Neither torch nor Triton is imported.

Also here: resources of each architecture that a launch would be refused for, known without a card.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from forge.evalpool.judge.program.wire import flag, integer, many, record, refuse, text, whole

MAX_CODE_BYTES = 8 << 20
"""Largest binary; the largest seen is 0.4 MB."""
MAX_SCRATCH_BYTES = 64 << 20
"""Global scratch memory of one program instance."""


class FailureKind(StrEnum):
    COMPILE_ERROR = "compile_error"
    """The text is outside the closed list, or the compiler refused it, crashed, or ran past its
    deadline or memory."""
    OUT_OF_RESOURCES = "out_of_resources"
    """It compiles and cannot be launched on this target."""
    INFRA = "infra"
    """The judge's own fault: a compiler child could not be had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A kernel without a binary."""

    kind: FailureKind = FailureKind.COMPILE_ERROR
    message: str
    text_line: int = 0
    """Line of the kernel's text, from 1; 0 where unknown."""
    line: int = 0
    """Line of the candidate's source; 0 where unknown."""


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
        """All fields but `code`, as JSON takes them."""
        found = asdict(self)
        del found["code"]
        return found


def _code(code: bytes) -> bytes:
    if len(code) > MAX_CODE_BYTES:
        refuse(f"{len(code)} bytes of at most {MAX_CODE_BYTES}")
    return code


TENSOR_MAP = record(
    TensorMap,
    swizzle=integer(0, 8),
    elem_size=integer(1, 16),
    elem_type=integer(0, 32),
    block_size=many(integer(1, 256), 8),
    fp4_padded=flag,
)
BINARY = record(
    Binary,
    key=text(pattern=r"[0-9a-f]{64}"),
    target=text(pattern=r"[a-z]+:[a-z0-9]+:\d+"),
    name=text(512, pattern=r"[A-Za-z_][A-Za-z0-9_$]*"),
    code=_code,
    shared_bytes=integer(0, 1 << 20),
    num_warps=integer(1, 64),
    global_scratch_bytes=integer(0, MAX_SCRATCH_BYTES),
    tensor_maps=many(TENSOR_MAP, 256),
    tensor_memory=integer(0, 512),
    num_registers=integer(0, 1024),
    num_spills=integer(0, 1 << 20),
)


def parse_binary(header: Mapping[str, Any], code: bytes) -> Binary:
    """A binary of fields that a compiler child or a cache file holds. Raises InvalidProgram, whose
    message names the field."""
    return whole(BINARY, {**header, "code": code})


SHARED_BYTES = {
    **dict.fromkeys(
        ("cuda:75", "hip:gfx90a", "hip:gfx942", "hip:gfx1100", "hip:gfx1201"), 64 << 10
    ),
    "cuda:70": 96 << 10,
    **dict.fromkeys(("cuda:86", "cuda:89", "cuda:120", "cuda:121"), 99 << 10),
    "hip:gfx950": 160 << 10,
    **dict.fromkeys(("cuda:80", "cuda:87"), 163 << 10),
    **dict.fromkeys(("cuda:90", "cuda:100", "cuda:103"), 227 << 10),
}
"""Shared memory of one block by opt-in (CUDA C++ programming guide, table of compute capabilities),
LDS of a workgroup (AMD's ISA documents)."""


def warp_size_of(target: str) -> int:
    """Threads of a warp of `cuda:90` or `hip:gfx942`: 64 on AMD's GCN and CDNA (gfx9), else 32."""
    return 64 if re.fullmatch(r"hip:gfx[1-9]\w\w", target) else 32


def over_limits(binary: Binary) -> str:
    """Returns why a binary cannot be launched, in Triton's words, or an empty string. An unknown
    architecture has no limit here: the launch itself answers."""
    backend, arch, warp_size = binary.target.split(":")
    limit = SHARED_BYTES.get(f"{backend}:{arch}")
    checks = [
        ("shared memory", binary.shared_bytes, limit),
        ("threads", binary.num_warps * int(warp_size), 1024),
        ("tensor memory", binary.tensor_memory, 512),
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
