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

from forge.errors import Stalled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

FOLDERS = ("/run/lock", "/tmp")
"""The first that is writable: two runs of two users must meet in the same one."""
POLL_S = 0.001
MAX_TURNS = 32


class GpuLease:
    """The lock of one card."""

    def __init__(self, uuid: str, *, folder: Path | None = None) -> None:
        name = re.sub(r"[^\w.-]", "_", uuid)
        folder = folder or next(Path(one) for one in FOLDERS if os.access(one, os.W_OK))
        self._gate = folder / f"forge-gpu-{name}.gate"
        self._use = folder / f"forge-gpu-{name}.use"

    @contextmanager
    def shared(self, *, timeout_s: float) -> Iterator[None]:
        """Beside other readers. Raises Stalled when a writer holds the card for longer."""
        deadline = time.monotonic() + timeout_s
        with _opened(self._use) as use:
            with _opened(self._gate) as gate:
                _lock(gate, fcntl.LOCK_SH, deadline=deadline, path=self._gate)
                _lock(use, fcntl.LOCK_SH, deadline=deadline, path=self._use)
            yield

    @contextmanager
    def exclusive(self, *, timeout_s: float) -> Iterator[None]:
        """Alone. Raises Stalled when the readers do not drain in time."""
        deadline = time.monotonic() + timeout_s
        with _opened(self._gate) as gate, _opened(self._use) as use:
            _lock(gate, fcntl.LOCK_EX, deadline=deadline, path=self._gate)
            _lock(use, fcntl.LOCK_EX, deadline=deadline, path=self._use)
            yield


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
        with self._count:
            self._num_waiting += 1
        is_counted = True
        try:
            if not self._turn.acquire(timeout=timeout_s):
                raise Stalled(f"no turn on the GPU within {timeout_s:.0f} s")
            try:
                if self._hold is None:
                    self._enter(timeout_s)
                with self._count:
                    self._num_waiting -= 1
                is_counted = False
                yield
            finally:
                self._leave_unless_wanted()
                self._turn.release()
        finally:
            if is_counted:
                with self._count:
                    self._num_waiting -= 1

    def _enter(self, timeout_s: float) -> None:
        hold = self._lease.exclusive(timeout_s=timeout_s)
        hold.__enter__()
        self._hold, self._num_turns = hold, 0

    def _leave_unless_wanted(self) -> None:
        self._num_turns += 1
        with self._count:
            is_wanted = self._num_waiting > 0 and self._num_turns < MAX_TURNS
        if self._hold is not None and not is_wanted:
            self._hold.__exit__(None, None, None)
            self._hold = None


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open for everybody: the other run may be another user's. Closing frees the lock."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(path, flags)  # creating what exists is refused in a sticky folder
    except FileNotFoundError:
        fd = os.open(path, flags | os.O_CREAT, 0o666)
    try:
        if os.fstat(fd).st_uid == os.geteuid():
            os.fchmod(fd, 0o666)
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
                raise Stalled(f"{path}: the GPU was not free in time; who holds it?") from None
            time.sleep(POLL_S)
