# pyright: strict
"""Memory, disk and control groups of this machine, and limits of the shell, service or container
that started this process.

Asks the kernel at each call. A control group (version 1 or 2) may have less memory, CPU time and
tasks than the machine. The limits of a container are at the root of what it sees, those of a
systemd slice or a SLURM job below it: the lowest limit of a group and its parents counts.
`require_limits` is called by every command that starts children, `limit_behind` where a child has
failed. Promise: a limit that a run cannot live with is named before anything starts; one that a
child met later is named with the last words of the child.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import resource
import sqlite3
from collections.abc import Iterator
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Memory at one moment."""

    used_bytes: int
    total_bytes: int


def total_memory_bytes(*, cgroup: Path = CGROUP, own: Path = OWN) -> int:
    """Physical memory, or the container's limit where that is lower."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = _find_limit(cgroup, own)
    return physical if found is None else min(physical, found.limit_bytes)


def read_memory(*, proc: Path = PROC, cgroup: Path = CGROUP, own: Path = OWN) -> HostMemory | None:
    """Memory in use, and the total; None where the kernel does not say (not Linux)."""
    try:
        physical, found = _physical(proc), _find_limit(cgroup, own)
        if found is None or found.limit_bytes >= physical.total_bytes:
            return physical
        return HostMemory(used_bytes=_used_bytes(found.group), total_bytes=found.limit_bytes)
    except (OSError, ValueError, KeyError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _MemoryLimit:
    group: ControlGroup
    limit_bytes: int


def _find_limit(cgroup: Path, own: Path) -> _MemoryLimit | None:
    """The lowest limit of this process's groups; None without one."""
    found: list[_MemoryLimit] = []
    for group in own_groups("memory", cgroup=cgroup, own=own):
        text = group.read("memory.max" if group.is_v2 else "memory.limit_in_bytes")
        if text.isdecimal():
            found.append(_MemoryLimit(group=group, limit_bytes=int(text)))
    return min(found, key=lambda limit: limit.limit_bytes, default=None)


def _used_bytes(group: ControlGroup) -> int:
    """Without inactive file pages, which the kernel drops first."""
    stat = dict(line.split() for line in group.read("memory.stat").splitlines())
    inactive = stat.get("inactive_file" if group.is_v2 else "total_inactive_file", 0)
    used = int(group.read("memory.current" if group.is_v2 else "memory.usage_in_bytes"))
    return max(used - int(inactive), 0)


def _physical(proc: Path) -> HostMemory:
    lines = (proc / "meminfo").read_text().splitlines()
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    total, available = kib["MemTotal"] << 10, kib["MemAvailable"] << 10
    return HostMemory(used_bytes=total - available, total_bytes=total)


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
    v2, v1 = unified if unified.is_dir() else cgroup, cgroup / controller
    path_v2, path_v1 = _own_paths(controller, own)
    yield from (ControlGroup(folder=folder, is_v2=True) for folder in _down(v2, path_v2))
    yield from (ControlGroup(folder=folder, is_v2=False) for folder in _down(v1, path_v1))


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


def _own_paths(controller: str, own: Path) -> tuple[str, str]:
    """Paths in the hierarchy of version 2 and in the controller's of version 1."""
    v2 = v1 = ""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            v2 = path
        elif controller in controllers.split(","):
            v1 = path
    return v2, v1


def _down(root: Path, path: str) -> Iterator[Path]:
    """`root` and the folders below it on the path, as far as they exist."""
    folder = root
    for name in (".", *filter(None, path.split("/"))):
        folder = folder / name
        if not folder.is_dir():
            return
        yield folder


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
