# pyright: strict
"""Limits of the shell, service or container that started this process: open files, address space.

`require_limits` is called by every command that starts children, `limit_behind` where a child has
failed. Promise: a limit that a run cannot live with is named before anything starts; one that a
child met later is named beside the child's own words.
"""

from __future__ import annotations

import ctypes
import gc
import resource

from forge.errors import MachineError

MIN_OPEN_FILES = 512
"""Twice the descriptors of a candidate's process; a supervisor with 16 children holds 150."""
OPEN_FILES = 65536
"""Descriptors that a process gets if it may: sockets of many requests, logs, stores."""
MIN_ADDRESS_SPACE = 8 << 30
"""A judge maps 2 GB of torch, and its candidate may take memory_bytes (4 GB) more."""
MEMORY_WORDS = (
    "Cannot allocate memory",
    "MemoryError",
    "bad_alloc",
    "failed to map segment",
    "can't allocate memory",
    "can't start new thread",
)
M_ARENA_MAX, M_MMAP_THRESHOLD = -8, -3
"""glibc: malloc.h."""
LARGE_BYTES = 1 << 20
"""Blocks of the allocator that are mappings of their own."""
COLLECT_AFTER = 10_000
"""Objects made and not freed between two passes of the garbage collector; Python's own is 700."""
FILES_WORDS = ("Too many open files",)


def require_limits() -> None:
    """Raise the limit of open files as far as this process may. Raises MachineError if a limit is
    too low for a run."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if most < MIN_OPEN_FILES:
        raise MachineError(
            f'"ulimit -n" allows this process {most} open files; a run needs {MIN_OPEN_FILES}: '
            "raise it where forge is started (ulimit -n, LimitNOFILE=, --ulimit nofile=)"
        )
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    space = address_space()
    if space is not None and space < MIN_ADDRESS_SPACE:
        raise MachineError(
            f'"ulimit -v" allows a process {space / 2**30:.1f} GiB of address space; a run needs '
            f'{MIN_ADDRESS_SPACE >> 30} GiB: "ulimit -v unlimited" where forge is started'
        )


def use_one_heap() -> None:
    """Make all threads of this process allocate from one heap; call it before they start.

    Otherwise glibc gives each thread a heap of its own, and each keeps what one call once needed:
    1.6 MB for every worker thread that has read the store. Threads that hold the interpreter's lock
    allocate one at a time anyway. Blocks of LARGE_BYTES or more go back to the system when they are
    freed: otherwise glibc raises that limit with each such block, and the tables that Python copies
    now and then (2 MB for its interned strings) leave holes in the heap. Python offers no mallopt;
    other C libraries may have none.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, 1)
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)


def collect_less_often() -> None:
    """Let Python's garbage collector pass a tenth as often, and never over what exists now; call
    it when everything is imported.

    A supervisor keeps what it makes (turns, groups) until a step has used it, and nearly none of it
    is in a cycle: passes over it took 4 to 10 % of the supervisor's CPU time. Cycles wait for
    COLLECT_AFTER new objects, 1 MB of small ones.
    """
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 10, 10)


def address_space() -> int | None:
    """Bytes that this process may map; None without a limit."""
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def limit_behind(words: str) -> str:
    """A sentence about the limit that the last words of a child speak of, or nothing."""
    space = address_space()
    if space is not None and any(mark in words for mark in MEMORY_WORDS):
        return f' "ulimit -v" allows each process {space / 2**30:.1f} GiB of address space.'
    if any(mark in words for mark in FILES_WORDS):
        return f' "ulimit -n" allows {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} open files.'
    return ""
