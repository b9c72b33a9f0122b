# pyright: strict
"""A reader-writer lock per GPU, across processes and runs: timing a kernel is exclusive.

The writer is timing; readers are all other work on a GPU (correctness runs, context creation,
engine steps, micro-batches). Each GPU has two files under flock, so that the kernel frees the locks
of a dead holder. A writer holds `gate` while it waits for `use` to drain, so that new readers queue
behind it: with one file per GPU, as in the fasteners package, readers would starve a writer.

    reader: gate shared ─▶ use shared ─▶ gate freed ─▶ … ─▶ use freed
    writer: gate exclusive ─▶ use exclusive ─▶ … ─▶ both freed

Calls block: make them in a thread.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from forge.errors import MachineError, Stalled

if TYPE_CHECKING:
    from collections.abc import Generator

FOLDER = Path("/tmp")
"""One folder for all users: /run/lock belongs to root on some machines, and a logout deletes the
user's files in /dev/shm. Containers with a /tmp of their own do not share locks."""
POLL_S = 0.005
"""Interval of lock attempts: faster polling would disturb a judge that times kernels."""

_POLLING: dict[Path, threading.Lock] = {}
"""A lock per GPU: its holder alone polls the files, for all threads of this process."""


class GpuLease:
    """The lock of one GPU."""

    def __init__(self, uuid: str, *, folder: Path = FOLDER) -> None:
        """Raises MachineError if the files cannot be opened."""
        self._gate = file_of(uuid, "gate", folder=folder)
        self._use = file_of(uuid, "use", folder=folder)
        self._polling = _POLLING.setdefault(self._gate, threading.Lock())
        with opened(self._gate), opened(self._use):
            pass

    @contextmanager
    def shared(self, *, timeout_s: float) -> Generator[None]:
        """Hold the GPU with other readers. Raises Stalled if a writer holds it for longer."""
        deadline = time.monotonic() + timeout_s
        with opened(self._use) as use:
            with opened(self._gate) as gate:
                self._lock(gate, use, fcntl.LOCK_SH, deadline=deadline)
            yield

    @contextmanager
    def exclusive(self, *, timeout_s: float) -> Generator[None]:
        """Hold the GPU alone. Raises Stalled if the readers do not drain in time."""
        deadline = time.monotonic() + timeout_s
        with opened(self._gate) as gate, opened(self._use) as use:
            self._lock(gate, use, fcntl.LOCK_EX, deadline=deadline)
            yield

    def is_wanted(self) -> bool:
        """True if another process waits to hold the GPU alone, or does."""
        with opened(self._gate) as gate:
            try:
                fcntl.flock(gate, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def _lock(self, gate: int, use: int, kind: int, *, deadline: float) -> None:
        if not self._polling.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise _busy(self._gate)
        try:
            _lock(gate, kind, deadline=deadline, path=self._gate)
            _lock(use, kind, deadline=deadline, path=self._use)
        finally:
            self._polling.release()


def file_of(uuid: str, kind: str, *, folder: Path = FOLDER) -> Path:
    """Path of a GPU's lock file, the same in all processes."""
    name = re.sub(r"[^\w.-]", "_", uuid)
    return folder / f"forge-gpu-{name}.{kind}"


@contextmanager
def opened(path: Path) -> Generator[int]:
    """A file descriptor to lock, writable by all users. Closing it frees the lock."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        try:
            fd = os.open(path, flags)  # creating what exists is refused in a sticky folder
        except FileNotFoundError:
            fd = os.open(path, flags | os.O_CREAT, 0o666)
    except OSError as error:
        raise MachineError(
            f"{path}: {error.strerror}; runs that share a GPU lock this file, so every "
            f"user must be able to write it"
        ) from error
    try:
        if os.fstat(fd).st_uid == os.geteuid():
            os.fchmod(fd, 0o666)
        os.utime(fd)  # systemd removes from /tmp what looks unused for days
        yield fd
    finally:
        os.close(fd)


def _lock(fd: int, kind: int, *, deadline: float, path: Path) -> None:
    while True:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise _busy(path) from None
            time.sleep(POLL_S)


def _busy(path: Path) -> Stalled:
    return Stalled(f"{path}: the GPU was not free in time")
