# pyright: strict
"""A process's memory. Keeps what a child frees, since it needs as much again at once.

glibc returns each block of more than 32 MB (at first 128 KB) to the system when it is freed, and a
page fault costs 2 us for each 4 KiB of the next one: a draw makes a hundred passes over tensors of
64 MB, and half of its time went there. Not for problems whose tensors take a large part of the
memory: holes between kept blocks would take the rest.
"""

from __future__ import annotations

import ctypes
import mmap

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""glibc: malloc.h."""
KEPT_BLOCK, KEPT_TOTAL = 160 << 20, (1 << 31) - 1
"""Bytes of the largest block that is kept (16 M elements in float64), and malloc's most of all."""
USUAL_BLOCK, USUAL_TOTAL = 32 << 20, 64 << 20
"""The same as glibc sets them itself in the end."""
MEMORY_DIVISOR = 32
"""Part of a process' memory that a problem's tensors may take: with intermediate results, own
errors and holes it needs 14 times as much."""
LIBC = ctypes.CDLL(None)


def keep_freed(num_bytes: int | None, *, memory_bytes: int) -> None:
    """Sets what this process, which may have `memory_bytes`, keeps from now on. For a problem that
    may need all of the memory, what it has kept goes back first. `num_bytes`: of the problem's
    tensors, as `require_room` counts them; None if unknown."""
    if num_bytes is not None and num_bytes <= memory_bytes // MEMORY_DIVISOR:
        _set(KEPT_BLOCK, KEPT_TOTAL)
    else:
        keep_usual()
        give_back()


def _set(block: int, total: int) -> None:
    if mallopt := getattr(LIBC, "mallopt", None):  # other C libraries may have none
        mallopt(M_MMAP_THRESHOLD, block)
        mallopt(M_TRIM_THRESHOLD, total)


def keep_usual() -> None:
    """Keeps from now on what glibc keeps in the end."""
    _set(USUAL_BLOCK, USUAL_TOTAL)


def give_back() -> None:
    """Returns what is free to the system."""
    if trim := getattr(LIBC, "malloc_trim", None):
        trim(0)


def mapped_bytes() -> int:
    """Address space of this process, which its limit counts; torch maps far more than it uses."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * mmap.PAGESIZE
