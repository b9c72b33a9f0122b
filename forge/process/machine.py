# pyright: strict
"""Memory, disk and control groups of this machine, and limits of the shell, service or container
that started this process.

Asks the kernel at each call. A control group (version 1 or 2) may have less memory, CPU time and
tasks than the machine. The limits of a container are at the root of what it sees, those of a
systemd slice or a SLURM job below it: the lowest limit of a group and its parents counts. Promise:
a limit that a run cannot live with is named before anything starts; one that a child met later is
named with the last words of the child.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forge.errors import MachineError

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
MIN_OPEN_FILES = 512
"""Twice the descriptors of a candidate's process; a supervisor with 16 children holds 150."""
OPEN_FILES = 65536
"""Descriptors that a process gets if it may: sockets of many requests, logs, stores."""
MIN_ADDRESS_SPACE = 8 << 30
"""A judge maps 2 GB of torch, and its candidate may take memory_bytes (4 GB) more."""
MEMORY_WORDS = (
    "Cannot allocate memory", "MemoryError", "bad_alloc", "failed to map segment",
    "can't allocate memory", "can't start new thread",
)  # fmt: skip
M_ARENA_MAX, M_MMAP_THRESHOLD = -8, -3
"""glibc: malloc.h."""
LARGE_BYTES = 1 << 20
"""Blocks of the allocator that are mappings of their own."""
COLLECT_AFTER = 10_000
"""Objects made and not freed between two passes of the garbage collector; Python's own is 700."""
FILES_WORDS = ("Too many open files",)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    used_bytes: int
    total_bytes: int


def total_memory_bytes(*, cgroup: Path = CGROUP, own: Path = OWN) -> int:
    """Physical memory, or the container's limit where that is lower."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *(limit for limit, _ in _memory_limits(cgroup, own))])


def read_memory(*, proc: Path = PROC, cgroup: Path = CGROUP, own: Path = OWN) -> HostMemory | None:
    """Memory in use, and the total; None where the kernel does not say (not Linux). Of a control
    group without inactive file pages, which the kernel drops first."""
    try:
        lines = [line.partition(":") for line in (proc / "meminfo").read_text().splitlines()]
        size = {name: int(rest.split()[0]) << 10 for name, _, rest in lines}
        total, limits = size["MemTotal"], _memory_limits(cgroup, own)
        limit, group = min(limits, key=lambda one: one[0], default=(total, None))
        if group is None or limit >= total:
            return HostMemory(used_bytes=total - size["MemAvailable"], total_bytes=total)
        stat = dict(line.split() for line in group.read("memory.stat").splitlines())
        inactive = stat.get("inactive_file" if group.is_v2 else "total_inactive_file", 0)
        used = int(group.read("memory.current" if group.is_v2 else "memory.usage_in_bytes"))
        return HostMemory(used_bytes=max(used - int(inactive), 0), total_bytes=limit)
    except (OSError, ValueError, KeyError):
        return None


def _memory_limits(cgroup: Path, own: Path) -> list[tuple[int, ControlGroup]]:
    """Limits of this process's groups."""
    groups = own_groups("memory", cgroup=cgroup, own=own)
    names = ((one, "memory.max" if one.is_v2 else "memory.limit_in_bytes") for one in groups)
    found = ((one.read(name), one) for one, name in names)
    return [(int(text), one) for text, one in found if text.isdecimal()]


def free_bytes(path: Path) -> int:
    """Bytes that this user may still write under `path`, which need not exist yet."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize


def is_disk_full(error: BaseException) -> bool:
    """True if an error reports a full disk or quota."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, sqlite3.Error) and "disk is full" in str(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlGroup:
    """A control group of this process, or a parent of one."""

    folder: Path
    is_v2: bool

    def read(self, name: str) -> str:
        """Content of a file; empty without it."""
        try:
            return (self.folder / name).read_text().strip()
        except OSError:
            return ""


def own_groups(
    controller: str, *, cgroup: Path = CGROUP, own: Path = OWN
) -> Iterator[ControlGroup]:
    """The visible groups of this process that may limit `controller` (memory, cpu, pids).

    The paths in `own` are the host's in a container without a cgroup namespace: such a path is
    absent, and the container's group is the root.
    """
    unified = cgroup / "unified"
    roots = {True: unified if unified.is_dir() else cgroup, False: cgroup / controller}
    paths = {True: "", False: ""}
    with suppress(OSError):
        for line in own.read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0" and not controllers:
                paths[True] = path
            elif controller in controllers.split(","):
                paths[False] = path
    for is_v2, folder in roots.items():
        for name in (".", *filter(None, paths[is_v2].split("/"))):
            folder = folder / name
            if not folder.is_dir():
                break
            yield ControlGroup(folder=folder, is_v2=is_v2)


def cpu_quota(*, cgroup: Path = CGROUP, own: Path = OWN) -> float | None:
    """Cores' worth of CPU time that this process may use; None without a limit."""
    quotas: list[float] = []
    for group in own_groups("cpu", cgroup=cgroup, own=own):
        if group.is_v2:
            quota, _, period = group.read("cpu.max").partition(" ")
        else:
            quota, period = group.read("cpu.cfs_quota_us"), group.read("cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal():
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def max_tasks(*, cgroup: Path = CGROUP, own: Path = OWN) -> int | None:
    """Processes and threads that the groups may hold; None without a limit."""
    found = [group.read("pids.max") for group in own_groups("pids", cgroup=cgroup, own=own)]
    return min((int(text) for text in found if text.isdecimal()), default=None)


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
    1.6 MB for every worker thread that has read the store. Blocks of LARGE_BYTES or more go back to
    the system when they are freed: otherwise glibc raises that limit with each such block, and the
    tables that Python copies now and then (2 MB for its interned strings) leave holes in the heap.
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
