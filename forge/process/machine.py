# pyright: strict
"""Memory, disk and control groups of this machine. Asks the kernel at each call.

A control group (version 1 or 2) may have less memory, CPU time and tasks than the machine. The
limits of a container are at the root of what it sees, those of a systemd slice or a SLURM job
below it: the lowest limit of a group and its parents counts.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


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
