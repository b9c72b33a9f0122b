"""A run's claim on the cards it was given, so that a second run is refused by name, not by CUDA.

One file a card beside the lease's, locked by the supervisor for as long as it lives: the kernel
frees it whatever ends the process. Who holds it writes its name and pid into it. Work on a card
takes turns by `gpu_lease`; a claim is about the whole run.

Covers runs of this machine that see the same /tmp; two containers do not meet.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from forge.errors import MachineError
from forge.process.gpu_lease import FOLDER, file_of, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from forge.process.devices import Gpu

POLL_S = 0.5
MAX_WORDS = 4096
"""Bytes of a claim's file that are read."""
LOCKS = Path("/proc/locks")
LOCKED_INODE = re.compile(r" FLOCK .* \w+:\w+:(\d+) ")


class Claim:
    """Cards that are ours until the context ends."""

    def __init__(self, fds: Sequence[int], run: str) -> None:
        self._fds = tuple(fds)
        self.rename(run)

    def rename(self, run: str) -> None:
        """Says which run it is, once it has its number."""
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
) -> Iterator[Claim]:
    """Takes all of the cards or none. Blocks for up to `wait_s`.

    Args:
        say: hears once whom we wait for.

    Raises:
        MachineError: a card is another run's, with its name and pid.
    """
    deadline = time.monotonic() + wait_s
    while True:
        with ExitStack() as stack:
            held = _take(stack, gpus, folder)
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
    """UUIDs of the cards that runs of this machine hold now.

    Read from the kernel's list: to try a lock could get another run refused. A hint: without that
    list nothing is known.
    """
    try:
        held = set(LOCKED_INODE.findall(LOCKS.read_text()))
    except OSError:
        return frozenset()
    files = {gpu.uuid: file_of(gpu.uuid, "claim", folder=folder) for gpu in gpus}
    return frozenset(uuid for uuid, file in files.items() if _inode(file) in held)


def _inode(file: Path) -> str:
    try:
        return str(file.lstat().st_ino)
    except OSError:
        return ""


def _take(stack: ExitStack, gpus: Sequence[Gpu], folder: Path) -> list[int] | str:
    """Files with our lock; or whose card it is, in words. Never waits while it holds one."""
    fds = []
    for gpu in gpus:
        fd = stack.enter_context(opened(file_of(gpu.uuid, "claim", folder=folder)))
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
