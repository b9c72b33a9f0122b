"""A reader-writer lock per GPU, across processes and runs: who times a kernel is alone on the card.

Readers are all other work on a GPU (correctness runs, context creation, engine steps,
micro-batches); the writer is timing. Two flocks a GPU, so that the kernel frees both when their
holder dies: `gate` is passed one at a time and is held by a writer while it waits for `use` to
drain, so that new readers queue behind it.

    reader: gate shared ─▶ use shared ─▶ gate freed ─▶ … ─▶ use freed
    writer: gate exclusive ─▶ use exclusive ─▶ … ─▶ both freed

Blocks: call it in a thread.
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
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

FOLDER = Path("/tmp")
"""One for all, or two users' runs would not meet: /run/lock is root's alone on some machines, and a
logout empties /dev/shm of the user's files. Runs in containers, each with its own, do not meet."""
POLL_S = 0.005
"""A judge that waits is one that times kernels: it has better to do than to poll faster."""
MAX_TURNS = 32

_POLLING: dict[Path, threading.Lock] = {}
"""Of each card: who has it waits for the files on behalf of all threads of this process."""


class GpuLease:
    """The lock of one card."""

    def __init__(self, uuid: str, *, folder: Path = FOLDER) -> None:
        """Raises MachineError where the files cannot be opened."""
        self._gate = file_of(uuid, "gate", folder=folder)
        self._use = file_of(uuid, "use", folder=folder)
        self._polling = _POLLING.setdefault(self._gate, threading.Lock())
        with opened(self._gate), opened(self._use):
            pass

    @contextmanager
    def shared(self, *, timeout_s: float) -> Iterator[None]:
        """Beside other readers. Raises Stalled when a writer holds the card for longer."""
        deadline = time.monotonic() + timeout_s
        with opened(self._use) as use:
            with opened(self._gate) as gate:
                self._lock(gate, use, fcntl.LOCK_SH, deadline=deadline)
            yield

    @contextmanager
    def exclusive(self, *, timeout_s: float) -> Iterator[None]:
        """Alone. Raises Stalled when the readers do not drain in time."""
        deadline = time.monotonic() + timeout_s
        with opened(self._gate) as gate, opened(self._use) as use:
            self._lock(gate, use, fcntl.LOCK_EX, deadline=deadline)
            yield

    def _lock(self, gate: int, use: int, kind: int, *, deadline: float) -> None:
        if not self._polling.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise _busy(self._gate)
        try:
            _lock(gate, kind, deadline=deadline, path=self._gate)
            _lock(use, kind, deadline=deadline, path=self._use)
        finally:
            self._polling.release()


class Window:
    """One exclusive hold for many in this process, one after another.

    Readers take long to drain (a candidate's compilation): who waits for its turn while another
    has the card takes it over from it, and the drain is paid once. At most `MAX_TURNS` in a row.
    """

    def __init__(self, lease: GpuLease) -> None:
        self._lease = lease
        self._turn = threading.Lock()
        self._count = threading.Lock()
        self._num_waiting = 0
        self._num_turns = 0
        self._hold: AbstractContextManager[None] | None = None

    @contextmanager
    def turn(self, *, timeout_s: float) -> Iterator[None]:
        """Alone on the card, and in this process. Raises Stalled."""
        self._wait(timeout_s)
        try:
            if self._hold is None:
                self._enter(timeout_s)
            yield
        finally:
            self._pass_on()

    def _wait(self, timeout_s: float) -> None:
        with self._count:
            self._num_waiting += 1
        has_turn = self._turn.acquire(timeout=timeout_s)
        with self._count:
            self._num_waiting -= 1
        if has_turn:
            return
        if self._turn.acquire(blocking=False):  # who left meanwhile kept the card for us
            self._pass_on()
        raise Stalled(f"no turn on the GPU within {timeout_s:.0f} s")

    def _enter(self, timeout_s: float) -> None:
        hold = self._lease.exclusive(timeout_s=timeout_s)
        hold.__enter__()
        self._hold, self._num_turns = hold, 0

    def _pass_on(self) -> None:
        """Ends a turn. Frees the card unless somebody waits, who cannot give up in between."""
        with self._count:
            self._num_turns += 1
            is_wanted = self._num_waiting > 0 and self._num_turns < MAX_TURNS
            if self._hold is not None and not is_wanted:
                self._hold.__exit__(None, None, None)
                self._hold = None
            self._turn.release()


def file_of(uuid: str, kind: str, *, folder: Path = FOLDER) -> Path:
    """The file of a card that processes agree by."""
    name = re.sub(r"[^\w.-]", "_", uuid)
    return folder / f"forge-gpu-{name}.{kind}"


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A file to lock, for everybody: the other run may be another user's. Closing frees it."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        try:
            fd = os.open(path, flags)  # creating what exists is refused in a sticky folder
        except FileNotFoundError:
            fd = os.open(path, flags | os.O_CREAT, 0o666)
    except OSError as error:
        raise MachineError(
            f"{path}: {error.strerror}; runs that share a GPU take turns by this file, which "
            f"everybody must be able to write"
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
    return Stalled(f"{path}: the GPU was not free in time; who holds it?")
