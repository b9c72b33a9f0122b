# pyright: strict
"""Identity of kernels: the key of caches of binaries."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forge.evalpool.judge.program.format import Kernel


def kernel_hash(kernel: Kernel, *, target: str, triton: str) -> str:
    """SHA-256 of everything that its binary depends on: equal hashes have equal binaries.

    Source lines and names of parameters do not count.

    Args:
        target: `Program.target`.
        triton: version of Triton that compiles.
    """
    parts = [kernel.ttir, dataclasses.asdict(kernel.options), target, triton]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
