"""Caps of a judge's children: memory of each with all that it starts; their cores and user ids.

`rlimit` on a CPU (RLIMIT_AS, set in the sandbox, limits each process; the judge samples those that
start others, and kills); `watch` on a GPU, where CUDA reserves more address space than there is
memory: the judge samples all, and kills. Not covered: a sample may be 250 ms late, and sees neither
pipes nor memfd pages that no process maps (memfd is refused on a CPU).

The pool divides the cores among judges (`evalpool/capacity.py`). A child is held to one core, and
the kernel and seccomp keep it there with everything that it starts: with eight threads it is as
slow as eight, and nothing else is. An oracle, in which no candidate's code runs, has the judge's
whole share: a draw of large tensors has work for all of them.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from forge.evalpool.judge.sandbox import processes

# --- cores


class Cores:
    """Hands out the cores of a judge, the least used first. Called from several threads."""

    def __init__(self, cores: Sequence[int]) -> None:
        self.every = tuple(cores)
        """The judge's share."""
        self._lock = threading.Lock()
        self._used: Counter[int] = Counter()

    def take(self) -> int | None:
        """A core for a child; None where nothing is held to one."""
        if not self.every:
            return None
        with self._lock:
            core = min(self.every, key=lambda one: self._used[one])
            self._used[core] += 1
            return core

    def give_back(self, core: int | None) -> None:
        """The child that had it has ended."""
        if core is not None:
            with self._lock:
                self._used[core] -= 1


# --- user ids


FIRST_UID, NUM_UIDS = 61_000, 2_000
"""User ids of the children of judges that run as root: of captures, then as many of all others.
All are below `nobody`."""


class Uids:
    """Hands out user ids of a range, to each living child another. Each process begins at another
    place, since judges of one machine share the range."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._lock = threading.Lock()
        self._used: set[int] = set()

    def take(self) -> int:
        """An id that no living child of this process has."""
        start = os.getpid() * 31  # a judge has a few children at once, and pids are neighbours
        with self._lock:
            ids = (self._first + number % NUM_UIDS for number in itertools.count(start))
            uid = next(one for one in ids if one not in self._used)
            self._used.add(uid)
            return uid

    def give_back(self, uid: int | None) -> None:
        """The child that had it has ended."""
        with self._lock:
            self._used.discard(uid or 0)


CANDIDATE_UIDS, OTHER_UIDS = Uids(FIRST_UID), Uids(FIRST_UID + NUM_UIDS)
"""For captures, and for all other children of this process."""


# --- caps


logger = logging.getLogger(__name__)

SAMPLE_S = 0.25
"""Pause between two samples."""
COUNTED = (b"RssAnon", b"RssShmem", b"VmSwap", b"VmPTE")
"""Fields of /proc/PID/status, in kB: memory that cannot be dropped and read again from a file."""


class CapsKind(StrEnum):
    """Mechanism that caps memory. Recorded in every verdict."""

    RLIMIT = "rlimit"
    WATCH = "watch"


class Caps:
    """One thread that samples children and kills those that hold too much: every one (WATCH), or
    those that start others, since 64 of them have 64 limits of the sandbox (RLIMIT)."""

    def __init__(self, kind: CapsKind, *, memory_bytes: int) -> None:
        self.kind = kind
        self._memory_bytes = memory_bytes
        self._enclosed: dict[int, tuple[int, int | None]] = {}
        """Memory of each child when it was enclosed, the zygote's pages, which all children share;
        and its start time: a child that ended with its zygote may be released late."""
        self._killed: set[int] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, name="caps", daemon=True).start()

    def enclose(self, pid: int) -> None:
        """Samples a child from now on."""
        with self._lock:
            self._enclosed[pid] = held_bytes(pid), processes.start_time(pid)

    def release(self, pid: int) -> bool:
        """Ends the sampling; True if the child was killed for its memory."""
        with self._lock:
            self._enclosed.pop(pid, None)
            was_killed = pid in self._killed
            self._killed.discard(pid)
            return was_killed

    def _watch(self) -> None:
        while True:
            time.sleep(SAMPLE_S)
            try:
                with self._lock:  # a pid is not reused before its release
                    self._sample()
            except Exception:  # without this thread no child's memory is capped
                logger.exception("the memory of children was not sampled")

    def _sample(self) -> None:
        for pid, (_, began) in list(self._enclosed.items()):
            if processes.start_time(pid) != began:
                del self._enclosed[pid]
        is_all = self.kind is CapsKind.WATCH
        measured = [pid for pid in self._enclosed if is_all or processes.has_children(pid)]
        table = processes.read_table() if measured else []
        for pid in measured:
            at_start, family = self._enclosed[pid][0], processes.family(pid, table)
            held = sum(max(0, held_bytes(one) - at_start) for one in family)
            if held > self._memory_bytes:
                logger.info("a child held %d MB and was killed", held >> 20)
                del self._enclosed[pid]
                self._killed.add(pid)
                for one in family:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(one, signal.SIGKILL)


def held_bytes(pid: int) -> int:
    """Bytes of a process that only its end frees; 0 after its end."""
    try:
        # As bytes: a process names itself, and not always in UTF-8.
        lines = Path(f"/proc/{pid}/status").read_bytes().split(b"\n")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    pairs = (line.split(b":") for line in lines)
    return sum(int(rest[0].split()[0]) << 10 for name, *rest in pairs if name in COUNTED)
