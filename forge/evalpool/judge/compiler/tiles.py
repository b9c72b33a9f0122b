# pyright: strict
"""Kernels whose tiles may need more shared memory than a card has, by a glance at their text.

Called by `compile.py`, which has Triton tell the bytes of those: Triton stages the operands of
products and the blocks of descriptors `num_stages` times, and moves a block through shared memory
where its layout changes or elements are gathered; blocks of one axis only for the latter. What is
said here is never too little for that, and often too much; no verdict rests on it.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from forge.evalpool.judge.compiler.binary import SHARED_BYTES

if TYPE_CHECKING:
    from forge.evalpool.judge.program.format import Kernel

_TILE = re.compile(r"\btensor<((?:\d{1,9}x){1,8})[a-z]+(\d{1,3})?", re.ASCII)
_DESCRIBED = re.compile(r"tensordesc<((?:\d{1,9}x){1,8})[a-z]+(\d{1,3})?", re.ASCII)
_STAGES = re.compile(r"tt\.num_stages = (\d{1,3})", re.ASCII)
STAGED = ("tt.dot", "tt.descriptor_load", "tt.descriptor_gather")
GATHERED = ("tt.gather", "tt.histogram")
POINTER_BYTES = 8


def shared_limit(target: str) -> int | None:
    """Bytes of shared memory that a block of this target may have; None where unknown."""
    return SHARED_BYTES.get(target.rpartition(":")[0])


def may_exceed(kernel: Kernel, limit: int) -> bool:
    """True unless the tiles of a kernel surely fit."""
    stages = [kernel.options.num_stages, *map(int, _STAGES.findall(kernel.ttir))]
    staged = largest = 0
    for line in kernel.ttir.split("\n"):
        is_gathered = any(name in line for name in GATHERED)
        blocks = (*_TILE.findall(line), *_DESCRIBED.findall(line))
        tiles = [_num_bytes(*one, least_axes=1 if is_gathered else 2) for one in blocks]
        if any(name in line for name in STAGED):
            staged += sum(tiles)
        largest = max([largest, *tiles, sum(tiles) if is_gathered else 0])
    return staged * max(stages) + largest > limit


def _num_bytes(sizes: str, bits: str, *, least_axes: int) -> int:
    """Bytes of a block; 0 for one of fewer axes, which goes lane by lane."""
    shape = [int(size) for size in sizes.split("x")[:-1]]
    if len(shape) < least_axes:
        return 0
    return math.prod(shape) * max(int(bits or 8 * POINTER_BYTES), 8) // 8
