# pyright: strict
"""A run's claim on its GPUs: a second run gets an error that names the first one, not CUDA's error.

One file per GPU, locked by the supervisor until it ends in any way: the kernel frees the lock. The
holder writes its name and pid into it. `gpu_lease` orders work on a GPU; a claim lasts for a run.

Covers runs that see the same /tmp: two containers do not see each other's claims.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from forge.errors import MachineError
from forge.process.gpu_lease import FOLDER, file_of, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from forge.process.devices import Gpu

POLL_S = 0.5
MAX_WORDS = 4096
"""Bytes of a claim's file that are read."""
LOCKS = Path("/proc/locks")
LOCKED_INODE = re.compile(r" FLOCK .* \w+:\w+:(\d+) ")


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
            waited = f" after {wait_s:.0f} s" if wait_s else "; --wait SECONDS waits for it"
            raise MachineError(f"{held}{waited}")
        if say is not None:
            say(f"{held}; waiting up to {wait_s:.0f} s")
            say = None
        time.sleep(min(POLL_S, max(0.0, deadline - time.monotonic())))


def claimed(gpus: Iterable[Gpu], *, folder: Path = FOLDER) -> frozenset[str]:
    """UUIDs of the GPUs that runs of this machine hold now; empty if the kernel's list of locks is
    unreadable.

    Trying the locks instead could make another run's claim fail.
    """
    try:
        held = set(LOCKED_INODE.findall(LOCKS.read_text()))
    except OSError:
        return frozenset()
    files = {gpu.uuid: file_of(gpu.uuid, "claim", folder=folder) for gpu in gpus}
    return frozenset(uuid for uuid, file in files.items() if _inode(file) in held)


def holders(gpus: Iterable[Gpu], *, folder: Path = FOLDER) -> dict[str, str]:
    """Runs that hold GPUs now, by UUID, as `run quickstart-1, pid 7`. Takes no lock."""
    found = dict[str, str]()
    for uuid in claimed(gpus, folder=folder):
        with suppress(OSError):
            fd = os.open(file_of(uuid, "claim", folder=folder), os.O_RDONLY | os.O_NOFOLLOW)
            try:
                found[uuid] = _holder(fd)
            finally:
                os.close(fd)
    return found


def _inode(file: Path) -> str:
    try:
        return str(file.lstat().st_ino)
    except OSError:
        return ""


def _take(stack: ExitStack, gpus: Sequence[Gpu], folder: Path, kind: int) -> list[int] | str:
    """Locked files, or a message that names the holder. Never waits while it holds a lock."""
    fds: list[int] = []
    for gpu in gpus:
        fd = stack.enter_context(opened(file_of(gpu.uuid, "claim", folder=folder)))
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return f"GPU {gpu.index} ({gpu.name}, {gpu.uuid}) is used by {_holder(fd)}"
        fds.append(fd)
    return fds


def _holder(fd: int) -> str:
    try:
        found = json.loads(os.pread(fd, MAX_WORDS, 0))
        return f"run {str(found['run'])[:80]}, pid {int(found['pid'])}"
    except (ValueError, KeyError, TypeError):
        return "another run that is just starting"
