# pyright: strict
"""Resources of each architecture that a launch would be refused for, known without a card."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forge.evalpool.judge.compiler.binary import Binary

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
            return (
                f"out of resource: {name}, Required: {required}, Hardware limit: {allowed}. "
                "Reducing block sizes or `num_stages` may help."
            )
    return ""
