# pyright: strict
"""Memory and disk of this machine. Memory is the container's where that has a lower limit.

Called by `forge plan` and `forge status`, and before a download. Asks the kernel at each call.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Memory at one moment."""

    used_bytes: int
    total_bytes: int


def total_memory_bytes(*, cgroup: Path = CGROUP) -> int:
    """Physical memory, or the container's limit where that is lower."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _limit_bytes(cgroup)
    return physical if limit is None else min(physical, limit)


def read_memory(*, proc: Path = PROC, cgroup: Path = CGROUP) -> HostMemory | None:
    """Memory in use, and the total; None where the kernel does not say (not Linux)."""
    try:
        physical, limit = _physical(proc), _limit_bytes(cgroup)
        if limit is None or limit >= physical.total_bytes:
            return physical
        return HostMemory(used_bytes=_used_in_container(cgroup), total_bytes=limit)
    except (OSError, ValueError, KeyError):
        return None


def _limit_bytes(cgroup: Path) -> int | None:
    """The limit of a cgroup v2 container; None without one."""
    path = cgroup / "memory.max"
    text = path.read_text().strip() if path.is_file() else "max"
    return int(text) if text.isdecimal() else None


def _used_in_container(cgroup: Path) -> int:
    """Without inactive file pages, which the kernel drops first."""
    stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    used = int((cgroup / "memory.current").read_text()) - int(stat.get("inactive_file", 0))
    return max(used, 0)


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
