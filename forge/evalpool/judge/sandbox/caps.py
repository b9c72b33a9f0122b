"""Caps the memory of a child and of all that it starts: by a cgroup, address space or sampling.

Called by the spawner. In the order of strength: `cgroup` where this process may write to a cgroup
v2 with the controllers for memory and processes; `rlimit` on a CPU (RLIMIT_AS, set in the sandbox,
limits each process; the judge samples those that start others, and kills); `watch` on a GPU, where
CUDA reserves more address space than there is memory: the judge samples all, and kills.

Not covered: a sample may be 250 ms late, and sees neither pipes nor memfd pages that no process
maps (memfd is refused on a CPU).
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from forge.evalpool.judge.sandbox import processes

logger = logging.getLogger(__name__)

CGROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = frozenset({"memory", "pids"})
MAX_PROCESSES = 256
"""Maximum number of tasks in a child's cgroup: above RLIMIT_NPROC, which counts by uid."""
SAMPLE_S = 0.25
"""Pause between two samples of `WatchCaps`."""
COUNTED = (b"RssAnon", b"RssShmem", b"VmSwap", b"VmPTE")
"""Fields of /proc/PID/status, in kB: memory that cannot be dropped and read again from a file."""
REMOVE_ATTEMPTS = 100
REMOVE_PAUSE_S = 0.01


class CapsKind(StrEnum):
    """Mechanism that caps memory. Recorded in every verdict."""

    CGROUP = "cgroup"
    RLIMIT = "rlimit"
    WATCH = "watch"


class Caps(Protocol):
    """Memory caps of children. Pids are those of the judge's namespace."""

    kind: CapsKind

    def enclose(self, pid: int) -> None:
        """Caps a process. Called before anything untrusted runs in it."""
        ...

    def release(self, pid: int) -> bool:
        """Ends the cap of a process. Called before it is reaped; does nothing for a pid that was
        not enclosed. Returns True if it was killed for its memory."""
        ...

    def close(self) -> None:
        """Releases all that are enclosed."""


def open_caps(*, memory_bytes: int, is_gpu: bool, cgroups: Path = CGROUPS) -> Caps:
    """The strongest mechanism that this machine has."""
    base = find_delegated(cgroups)
    if base is not None:
        return CgroupCaps(base, memory_bytes=memory_bytes)
    return (WatchCaps if is_gpu else RlimitCaps)(memory_bytes=memory_bytes)


class CgroupCaps:
    """A cgroup for each child, below one of the judge's."""

    kind = CapsKind.CGROUP

    def __init__(self, base: Path, *, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._base = base
        self._folders: dict[int, Path] = {}
        _remove_left(base)

    def enclose(self, pid: int) -> None:
        """Moves a child into a cgroup of its own. Raises OSError."""
        folder = self._base / f"forge-{os.getpid()}-{pid}"
        folder.mkdir(exist_ok=True)
        self._folders[pid] = folder
        (folder / "memory.max").write_text(str(self._memory_bytes))
        for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
            with contextlib.suppress(FileNotFoundError):  # no swap accounting; Linux before 4.19
                (folder / name).write_text(value)
        (folder / "pids.max").write_text(str(MAX_PROCESSES))
        (folder / "cgroup.procs").write_text(str(pid))

    def release(self, pid: int) -> bool:
        """Kills what is left in the cgroup; True if its limit had killed a process."""
        folder = self._folders.pop(pid, None)
        if folder is None:
            return False
        was_killed = _has_oom_kill(folder)
        with contextlib.suppress(FileNotFoundError):  # Linux before 5.14: the zygote's kill remains
            (folder / "cgroup.kill").write_text("1")
        threading.Thread(target=_remove, args=(folder,), daemon=True).start()
        return was_killed

    def close(self) -> None:
        """Releases all children."""
        for pid in list(self._folders):
            self.release(pid)


class WatchCaps:
    """One thread that samples every child and kills those that hold too much."""

    kind = CapsKind.WATCH

    def __init__(self, *, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._at_start: dict[int, int] = {}
        """Memory of each child when it was enclosed: the zygote's pages, which all children
        share."""
        self._began: dict[int, int | None] = {}
        """Start time of each: a child that ended with its zygote may be released late."""
        self._killed: set[int] = set()
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="caps", daemon=True)
        self._thread.start()

    def enclose(self, pid: int) -> None:
        """Samples a child from now on."""
        with self._lock:
            self._at_start[pid] = held_bytes(pid)
            self._began[pid] = processes.start_time(pid)

    def release(self, pid: int) -> bool:
        """Ends the sampling; True if the child was killed for its memory."""
        with self._lock:
            self._forget(pid)
            was_killed = pid in self._killed
            self._killed.discard(pid)
            return was_killed

    def close(self) -> None:
        """Ends the thread."""
        self._is_closed.set()

    def _watch(self) -> None:
        while not self._is_closed.wait(SAMPLE_S):
            try:
                with self._lock:  # a pid is not reused before its release
                    self._sample()
            except Exception:  # without this thread no child's memory is capped
                logger.exception("the memory of children was not sampled")

    def _sample(self) -> None:
        for pid in list(self._at_start):
            if processes.start_time(pid) != self._began[pid]:
                self._forget(pid)
        measured = [pid for pid in self._at_start if self._is_measured(pid)]
        table = processes.read_table() if measured else []
        for pid in measured:
            at_start, family = self._at_start[pid], processes.family(pid, table)
            held = sum(max(0, held_bytes(one) - at_start) for one in family)
            if held > self._memory_bytes:
                logger.info("a child held %d MB and was killed", held >> 20)
                self._forget(pid)
                self._killed.add(pid)
                for one in family:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(one, signal.SIGKILL)

    def _is_measured(self, _pid: int) -> bool:
        """True if nothing else limits the memory of a child."""
        return True

    def _forget(self, pid: int) -> None:
        self._at_start.pop(pid, None)
        self._began.pop(pid, None)


class RlimitCaps(WatchCaps):
    """Each process has a limit that the sandbox sets; those that start others are sampled, since
    64 of them have 64 limits."""

    kind = CapsKind.RLIMIT

    def _is_measured(self, pid: int) -> bool:
        return processes.has_children(pid)


def held_bytes(pid: int) -> int:
    """Bytes of a process that only its end frees; 0 after its end."""
    try:
        # As bytes: a process names itself, and not always in UTF-8.
        lines = Path(f"/proc/{pid}/status").read_bytes().split(b"\n")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    pairs = (line.split(b":") for line in lines)
    return sum(int(rest[0].split()[0]) << 10 for name, *rest in pairs if name in COUNTED)


def _has_oom_kill(folder: Path) -> bool:
    """True if the kernel killed a process of a cgroup at its limit."""
    with contextlib.suppress(FileNotFoundError):
        words = (folder / "memory.events").read_text().split()
        return int(dict(zip(words[::2], words[1::2], strict=True)).get("oom_kill", 0)) > 0
    return False


def find_delegated(
    cgroups: Path = CGROUPS, *, own: Path = Path("/proc/self/cgroup")
) -> Path | None:
    """A cgroup v2 with the needed controllers in which this process may create children: its own or
    the parent, since only a cgroup without processes may have controlled children."""
    line = next((line for line in own.read_text().splitlines() if line.startswith("0::")), None)
    if line is None or not (cgroups / "cgroup.controllers").exists():
        return None
    here = cgroups / line.removeprefix("0::").strip("/")
    for folder in (here, here.parent):
        if folder.is_relative_to(cgroups) and _is_delegated(folder):
            return folder
    return None


def _is_delegated(folder: Path) -> bool:
    try:
        enabled = set((folder / "cgroup.subtree_control").read_text().split())
        writable = os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)
    except OSError:
        return False
    return writable and enabled >= CONTROLLERS


def _remove_left(base: Path) -> None:
    """Removes the cgroups of killed judges. One with a process in it cannot be removed."""
    for folder in base.glob("forge-*-*"):
        judge = folder.name.split("-")[1]
        if not Path("/proc", judge).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()


def _remove(folder: Path) -> None:
    """Removes a cgroup, which is busy until its last process has ended."""
    wait = threading.Event()
    for _ in range(REMOVE_ATTEMPTS):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            wait.wait(REMOVE_PAUSE_S)
        else:
            return
    logger.warning("%s could not be removed: a process in it is alive", folder)
