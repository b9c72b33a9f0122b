"""Finds the descendants of processes, to measure and to end those of a candidate."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    pid: int
    parent: int
    group: int


def read_table() -> list[Row]:
    """Every process that we see, zombies too."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    found = ((pid, _stat(pid)) for pid in pids)
    return [Row(pid, int(fields[1]), int(fields[2])) for pid, fields in found if fields]


def has_ended(pid: int) -> bool:
    fields = _stat(pid)
    return fields is None or fields[0] in (b"Z", b"X")


def start_time(pid: int) -> int | None:
    """Time of a process's start, which tells it from a later one of the same pid; None when it is
    gone."""
    fields = _stat(pid)
    return None if fields is None else int(fields[19])


def _stat(pid: int) -> list[bytes] | None:
    """Fields of a process's line in /proc from its state on; None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def waited_s(pid: int) -> float:
    """Seconds that a process's first thread was ready to run and had no core, without what its own
    other threads ran meanwhile; 0 for one that has started processes, and where the kernel does
    not say."""
    try:
        if has_children(pid):
            return 0.0
        waited, others = _scheduled(pid, pid)[1], 0.0
        for task in os.listdir(f"/proc/{pid}/task"):
            others += _scheduled(pid, int(task))[0] if int(task) != pid else 0.0
        return max(0.0, waited - others)
    except (OSError, IndexError, ValueError):
        return 0.0


def _scheduled(pid: int, task: int) -> tuple[float, float]:
    """Seconds that a thread ran, and that it waited for a core."""
    with open(f"/proc/{pid}/task/{task}/schedstat", "rb") as file:
        ran, waited = file.read().split()[:2]
    return int(ran) / 1e9, int(waited) / 1e9


def has_children(pid: int) -> bool:
    """True if a process has started others that run; also where the kernel does not say."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in os.listdir(f"/proc/{pid}/task"):
            try:
                with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                    if file.read():
                        return True
            except ProcessLookupError:
                continue
            except FileNotFoundError:  # a task that ended, or a kernel without CONFIG_PROC_CHILDREN
                if os.path.exists(f"/proc/{pid}/task/{task}"):
                    return True
    return False


def family(pid: int, table: Iterable[Row]) -> set[int]:
    """A process, its group (which a candidate cannot leave), and all their descendants."""
    children: dict[int, list[int]] = {}
    found = {pid}
    for row in table:
        children.setdefault(row.parent, []).append(row.pid)
        if row.group == pid:
            found.add(row.pid)
    todo = list(found)
    while todo:
        new = [one for one in children.get(todo.pop(), ()) if one not in found]
        found.update(new)
        todo += new
    return found


def end_group(pid: int) -> int:
    """Kills a child with its group and reaps those of them that fall to us, a subreaper. Returns
    the child's wait status.

    No fork slips through: the kernel signals a group under the lock that a fork takes.
    """
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:  # not yet a group of its own
        os.kill(pid, signal.SIGKILL)
        return os.waitpid(pid, 0)[1]
    status = os.waitpid(pid, 0)[1]
    while True:
        try:
            os.waitpid(-pid, 0)
        except ChildProcessError:
            return status


def end_children() -> None:
    """Kills and reaps every child of ours, and what falls to us, until there is none."""
    while True:
        for row in read_table():
            if row.parent == os.getpid():
                os.kill(row.pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return
