# pyright: strict
"""Locks of GPUs across processes and runs: the claim of a run, and leases for work on a GPU.

A claim lasts for a run: a second run gets an error that names the first one, not the error of CUDA.
A lease is a reader-writer lock: timing a kernel is exclusive, and readers are all other work on a
GPU (correctness runs, context creation, engine steps, micro-batches). The kernel frees the files
under flock of a dead holder. A writer holds `gate` while it waits for `use` to drain, so that new
readers queue after it: with one file per GPU readers would starve a writer.

    reader: gate shared ─▶ use shared ─▶ gate freed ─▶ … ─▶ use freed
    writer: gate exclusive ─▶ use exclusive ─▶ … ─▶ both freed

Calls block: make them in a thread. Covers runs that see the same /tmp: two containers do not see
each other's locks.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

from forge.errors import MachineError, Stalled
from forge.process.devices import Gpu

FOLDER = Path("/tmp")
"""One folder for all users: /run/lock belongs to root on some machines, and a logout deletes the
user's files in /dev/shm."""
POLL_S = 0.005
"""Interval of lock attempts: faster polling would disturb a judge that times kernels."""

_POLLING: dict[Path, threading.Lock] = {}
"""A lock per GPU: its holder alone polls the files, for all threads of this process."""
TURN_TIMEOUT_S = 300.0
"""Maximum wait for judges, which time kernels in windows of seconds, one after another."""
CLAIM_POLL_S = 0.5
MAX_WORDS = 4096
"""Bytes of a claim's file that are read."""
LOCKS = Path("/proc/locks")
LOCKED_INODE = re.compile(r" FLOCK .* \w+:\w+:(\d+) ")


class GpuLease:
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
            return not _locked(gate, fcntl.LOCK_SH)

    def _lock(self, gate: int, use: int, kind: int, *, deadline: float) -> None:
        if not self._polling.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise Stalled(f"{self._gate}: the GPU was not free in time")
        try:
            for fd in (gate, use):
                while not _locked(fd, kind):
                    if time.monotonic() >= deadline:
                        raise Stalled(f"{self._gate}: the GPU was not free in time")
                    time.sleep(POLL_S)
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


def _locked(fd: int, kind: int) -> bool:
    """True if the lock was free and is ours now."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def card_turns(uuids: Sequence[str]) -> Callable[[], AbstractContextManager[None]]:
    """A factory of contexts, one for each step of an engine; inside, the engine is a reader of all
    these GPUs, so that its work and a judge's timing never overlap. Work on the GPU must be done
    when a context ends. Raises MachineError if a lock file cannot be opened; a context, Stalled."""
    if not uuids:
        return nullcontext
    # In one order everywhere: two processes that share two cards must not wait for each other.
    leases = [GpuLease(uuid) for uuid in sorted(uuids)]

    @contextmanager
    def turn() -> Generator[None]:
        with ExitStack() as stack:
            for lease in leases:
                stack.enter_context(lease.shared(timeout_s=TURN_TIMEOUT_S))
            yield

    return turn


class Claim:
    """Claimed GPUs, until the context ends."""

    def __init__(self, fds: Sequence[int], run: str) -> None:
        self._fds = tuple(fds)
        self.rename(run)

    def rename(self, run: str) -> None:
        """Write the run's name into the claims. The name with its number is known only later."""
        words = json.dumps({"run": run, "pid": os.getpid()}).encode()
        for fd in self._fds:
            os.ftruncate(fd, 0)
            os.pwrite(fd, words, 0)


@contextmanager
def claim(
    gpus: Sequence[Gpu],
    *,
    run: str,
    wait_s: float = 0.0,
    say: Callable[[str], None] | None = None,
    folder: Path = FOLDER,
    is_shared: bool = False,
) -> Generator[Claim]:
    """Claim all of the GPUs or none, beside other shared claims if `is_shared`. Blocks for up to
    `wait_s`; a wait calls `say` once, with the holder. Raises MachineError, with the holder's name
    and pid, if another run holds a GPU."""
    deadline = time.monotonic() + wait_s
    while True:
        with ExitStack() as stack:
            held = _take(stack, gpus, folder, fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX)
            if not isinstance(held, str):
                yield Claim(held, run)
                return
        if time.monotonic() >= deadline:
            waited = f" after {wait_s:.0f} s" if wait_s else "; forge run waits with --wait SECONDS"
            raise MachineError(f"{held}{waited}")
        if say is not None:
            say(f"{held}; waiting up to {wait_s:.0f} s")
            say = None
        time.sleep(min(CLAIM_POLL_S, max(0.0, deadline - time.monotonic())))


def claimed(gpus: Iterable[Gpu], *, folder: Path = FOLDER) -> frozenset[str]:
    """UUIDs of the GPUs that runs of this machine hold now; empty if the kernel's list of locks is
    unreadable. Trying the locks instead could make another run's claim fail."""
    found: set[str] = set()
    with suppress(OSError):
        held = set(LOCKED_INODE.findall(LOCKS.read_text()))
        for gpu in gpus:
            with suppress(OSError):
                inode = file_of(gpu.uuid, "claim", folder=folder).lstat().st_ino
                found |= {gpu.uuid} if str(inode) in held else set()
    return frozenset(found)


def holders(gpus: Iterable[Gpu], *, folder: Path = FOLDER) -> dict[str, str]:
    """Runs that hold GPUs now, by UUID, as `run quickstart-1, pid 7`. Takes no lock."""
    found = dict[str, str]()
    for uuid in claimed(gpus, folder=folder):
        with suppress(MachineError), opened(file_of(uuid, "claim", folder=folder)) as fd:
            found[uuid] = _holder(fd)
    return found


def _take(stack: ExitStack, gpus: Sequence[Gpu], folder: Path, kind: int) -> list[int] | str:
    """Locked files, or a message that names the holder. Never waits while it holds a lock."""
    fds: list[int] = []
    for gpu in gpus:
        fd = stack.enter_context(opened(file_of(gpu.uuid, "claim", folder=folder)))
        if not _locked(fd, kind):
            return f"GPU {gpu.index} ({gpu.name}, {gpu.uuid}) is used by {_holder(fd)}"
        fds.append(fd)
    return fds


def _holder(fd: int) -> str:
    try:
        found = json.loads(os.pread(fd, MAX_WORDS, 0))
        return f"run {str(found['run'])[:80]}, pid {int(found['pid'])}"
    except (ValueError, KeyError, TypeError):
        return "another run that is just starting"
