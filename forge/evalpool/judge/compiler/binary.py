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
from typing import Annotated, Any

from forge.evalpool.judge.program.readers import integer, many, record, refuse, text, whole

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

    swizzle: Annotated[int, integer(0, 8)]
    """CUtensorMapSwizzle."""
    elem_size: Annotated[int, integer(1, 16)]
    """Bytes."""
    elem_type: Annotated[int, integer(0, 32)]
    """CUtensorMapDataType."""
    block_size: Annotated[tuple[int, ...], many(integer(1, 256), 8)]
    """Elements of the box, by dimension."""
    fp4_padded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """A kernel compiled for one target, with the facts that a launch needs."""

    key: Annotated[str, text(pattern=r"[0-9a-f]{64}")]
    """Cache key: SHA-256 of text, options, parameters, target and compiler version."""
    target: Annotated[str, text(pattern=r"[a-z]+:[a-z0-9]+:\d+")]
    name: Annotated[str, text(512, pattern=r"[A-Za-z_][A-Za-z0-9_$]*")]
    """Entry symbol."""
    code: Annotated[bytes, _code]
    """Cubin or hsaco."""
    shared_bytes: Annotated[int, integer(0, 1 << 20)]
    """Dynamic shared memory of a launch."""
    num_warps: Annotated[int, integer(1, 64)]
    """Warps of a launch, more than the option where warps are specialised."""
    global_scratch_bytes: Annotated[int, integer(0, MAX_SCRATCH_BYTES)]
    """For each program instance; the launch passes a pointer to the whole."""
    tensor_maps: Annotated[tuple[TensorMap, ...], many(record(TensorMap), 256)]
    """One for each descriptor among the parameters, in order; empty where descriptors are passed
    as a base pointer with shape and strides."""
    tensor_memory: Annotated[int, integer(0, 512)]
    """Columns of tensor memory (Blackwell)."""
    num_registers: Annotated[int, integer(0, 1024)]
    """For each thread."""
    num_spills: Annotated[int, integer(0, 1 << 20)]
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


BINARY = record(Binary)


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
