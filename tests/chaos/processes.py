"""Processes of a run: all descendants of this test process, which adopts orphans.

As a subreaper this process becomes the parent of every process whose own parent was killed, so that
nothing that a run started can escape the search, in whatever session or namespace it is.
"""

import ctypes
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from forge.evalpool.judge.sandbox.caps import FIRST_UID, NUM_UIDS
from tests.chaos.cells import Target

PR_SET_CHILD_SUBREAPER = 36
RUNNER_UIDS = range(FIRST_UID, FIRST_UID + NUM_UIDS)
"""Uids of captures of a root judge; those of its other children are higher."""
MODULES = {
    Target.REPORT: "forge.runner.outlets.report",
    Target.NOTIFY: "forge.runner.outlets.notify",
    Target.SINK: "forge.runner.outlets.sink_child",
    Target.TRAINER: "forge.train.trainer",
    Target.JUDGE: "forge.evalpool.judge.start",
}
LAUNCHER = "forge.evalpool.judge.children.zygote"


@dataclass(frozen=True, slots=True)
class Row:
    pid: int
    parent: int
    state: str
    argv: tuple[str, ...]

    @property
    def module(self) -> str:
        """The module after `-m`; empty without one."""
        return self.argv[self.argv.index("-m") + 1] if "-m" in self.argv[:-1] else ""


@contextmanager
def adopting_orphans() -> Generator[None]:
    """Make this process the parent of orphaned descendants inside; tests that come later in it
    expect orphans to be reaped by init."""
    _set_subreaper(True)
    try:
        yield
    finally:
        _set_subreaper(False)


def _set_subreaper(is_set: bool) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, int(is_set), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) was refused")


def read_row(pid: int) -> Row | None:
    """None if the process is gone."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Row(pid, int(parent), state, tuple(argv))


def descendants(of: int) -> list[Row]:
    """All processes below one, in no order; zombies too."""
    found = (read_row(int(name)) for name in os.listdir("/proc") if name.isdigit())
    children: dict[int, list[Row]] = {}
    for row in found:
        if row is not None:
            children.setdefault(row.parent, []).append(row)
    todo, below = [of], list[Row]()
    while todo:
        below += (those := children.get(todo.pop(), []))
        todo += [row.pid for row in those]
    return below


def reap_orphans(*, own: set[int]) -> None:
    for row in descendants(os.getpid()):
        if row.parent == os.getpid() and row.state == "Z" and row.pid not in own:
            with suppress(ChildProcessError):
                os.waitpid(row.pid, os.WNOHANG)


def find(target: Target, *, supervisor: int) -> list[int]:
    """Pids of a target's living processes; empty if there is none now."""
    if target in (Target.SUPERVISOR, Target.STORE, Target.MACHINE):
        return [supervisor]
    rows = [row for row in descendants(supervisor) if row.state != "Z"]
    return sorted(row.pid for row in _select(target, rows, supervisor=supervisor))


def _select(target: Target, rows: list[Row], *, supervisor: int) -> Iterator[Row]:
    by_pid = {row.pid: row for row in rows}

    def is_below(row: Row, module: str) -> bool:
        return row.parent in by_pid and by_pid[row.parent].module == module

    for row in rows:
        match target:
            case Target.ENGINE:
                wanted = row.parent == supervisor and row.module.startswith("forge.serve.")
            case Target.RANK:
                wanted = is_below(row, MODULES[Target.TRAINER]) and _rank(row.pid) == "1"
            case Target.ZYGOTE:
                is_fork = row.module == LAUNCHER and is_below(row, LAUNCHER)
                wanted = is_fork and not is_below(by_pid[row.parent], LAUNCHER)
            case Target.RUNNER:
                wanted = row.module == LAUNCHER and _uid(row.pid) in RUNNER_UIDS
            case _:
                wanted = row.parent == supervisor and row.module == MODULES[target]
        if wanted:
            yield row


def _rank(pid: int) -> str:
    with suppress(OSError):
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return next((v[5:].decode() for v in variables if v.startswith(b"RANK=")), "")
    return ""


def _uid(pid: int) -> int:
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Uid:"))
    return -1
