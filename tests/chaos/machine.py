"""The machine of one cell: a directory, a TMPDIR, a /dev/shm and a disk of its own.

Where the kernel allows it a cell is played by a thread with a private mount namespace, which the
thread's children inherit: its disk can be filled and made read-only, and its litter is nobody
else's. Elsewhere the cells that need that are skipped.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TypeVar

from tests.chaos.processes import adopting_orphans, descendants, reap_orphans

T = TypeVar("T")

IS_ROOT = os.geteuid() == 0
CLONE_NEWNS = 0x20000
POLL_S = 0.005
SHM_BYTES = 32 << 20
TMP_BYTES = 256 << 20
DISK_BYTES = 200 << 20
PYTHON_PATH = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])


class Disk(StrEnum):
    """The file system of the run directories."""

    SHARED = "shared"
    """The machine's own."""
    SMALL = "small"
    """A tmpfs of DISK_BYTES."""
    FAILING = "failing"
    """An ext4 that turns read-only at an error, as after one of its device."""
    BOUND = "bound"
    """A bind mount, which can be made read-only while nobody writes."""


MOUNTS = {
    Disk.SHARED: "",
    Disk.SMALL: f"mount -t tmpfs -o size={DISK_BYTES} none runs",
    Disk.FAILING: "mount -o loop,errors=remount-ro disk runs",
    Disk.BOUND: "mount --bind runs runs",
}
MOUNT_ALL = f"""
mount -t tmpfs -o size={SHM_BYTES} none /dev/shm
mount -t tmpfs -o size={TMP_BYTES} none t
"""
MAKE_EXT4 = f"truncate -s {DISK_BYTES} disk && mkfs.ext4 -q -E lazy_itable_init=0 disk"


class MissingMount(Exception):
    """This machine cannot mount the disk of a cell."""


@dataclass(slots=True, kw_only=True)
class Command:
    process: subprocess.Popen[bytes]
    stderr: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def code(self) -> int | None:
        return self.process.poll()

    def said(self) -> str:
        return self.stderr.read_text(errors="replace")

    def last_line(self) -> str:
        lines = [line for line in self.said().splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("forge: ")]
        return (errors or lines or ["nothing"])[-1][:300]

    def wait(self, timeout_s: float) -> int:
        """Its exit code. Raises TimeoutExpired."""
        return self.process.wait(timeout_s)


@dataclass(slots=True, kw_only=True)
class Machine:
    root: Path
    disk: Disk
    is_private: bool
    """True if TMPDIR and /dev/shm are the cell's own mounts."""
    env: dict[str, str]
    before: set[int]
    """Descendants of this process from before the cell: other tests' children."""
    started: list[Command] = field(default_factory=list[Command])

    @property
    def tmp(self) -> Path:
        """TMPDIR of all commands."""
        return self.root / "t"

    def start(self, *args: str) -> Command:
        stderr = self.root / f"stderr-{len(self.started) + 1}"
        argv = [sys.executable, "-m", "forge", *args]
        with stderr.open("wb") as errors:
            process = subprocess.Popen(
                argv, cwd=self.root, env=self.env,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
            )  # fmt: skip
        self.started.append(Command(process=process, stderr=stderr))
        return self.started[-1]

    def run(self, *argv: str) -> str:
        """Run a program in the cell's directory; returns its stdout."""
        done = subprocess.run(argv, cwd=self.root, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
        return done.stdout

    def left(self) -> list[str]:
        """Processes of the cell that are alive."""
        own = {each.process.pid for each in self.started}
        reap_orphans(own=own)
        ours = [row for row in descendants(os.getpid()) if row.state != "Z"]
        ours = [row for row in ours if row.pid not in own | self.before]
        return [f"{row.pid} {' '.join(row.argv)[:120]}" for row in ours]

    def litter(self) -> list[str]:
        """Names in TMPDIR and in the private /dev/shm, without torch's cache of compiled code."""
        found = [str(path) for path in self.tmp.iterdir() if "torchinductor" not in path.name]
        if self.is_private:
            found += [str(path) for path in Path("/dev/shm").iterdir()]
        return sorted(found)


@contextmanager
def open_machine(
    *, disk: Disk = Disk.SHARED, env: Mapping[str, str] | None = None
) -> Generator[Machine]:
    """A machine for one cell; call it within `with_private_mounts`. Its directory is deleted unless
    the body raises."""
    with adopting_orphans():
        before = {row.pid for row in descendants(os.getpid())}
        root = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))  # a socket's path has 107 bytes
        for name in ("t", "runs"):
            (root / name).mkdir()
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "COV"))}
        machine = Machine(
            root=root,
            disk=disk,
            is_private=has_private_mounts(),
            env={**inherited, "PYTHONPATH": PYTHON_PATH, "TMPDIR": str(root / "t"), **(env or {})},
            before=before,
        )
        try:
            if machine.is_private:
                _mount(machine)
            yield machine
        finally:
            for command in machine.started:  # by the pids that were started
                if command.code is None:
                    command.process.kill()
                    command.process.wait()
        if machine.is_private:
            machine.run("sh", "-c", "umount -l t; umount -l runs; true")
        shutil.rmtree(root)


def _mount(machine: Machine) -> None:
    make = MAKE_EXT4 if machine.disk is Disk.FAILING else ""
    try:
        machine.run("sh", "-ec", MOUNT_ALL + make)
        machine.run("sh", "-ec", MOUNTS[machine.disk])
    except RuntimeError as error:
        raise MissingMount(str(error)) from error


@cache
def has_private_mounts() -> bool:
    """True if this process may make a mount namespace and mount a tmpfs in it."""
    script = "mount -t tmpfs none /dev/shm"
    enter = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
    if not IS_ROOT or shutil.which("unshare") is None or shutil.which("mount") is None:
        return False
    return subprocess.run(enter, capture_output=True, check=False).returncode == 0


def with_private_mounts(work: Callable[[], T]) -> T:
    """Call `work` in a thread with a mount namespace of its own, where that is possible. The
    namespace ends with the thread and the processes that it started."""

    def enter_and_work() -> T:
        if has_private_mounts():
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.unshare(CLONE_NEWNS) != 0:
                raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNS) was refused")
            subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        return work()

    with ThreadPoolExecutor(1, thread_name_prefix="cell") as threads:
        return threads.submit(enter_and_work).result()


def wait_until(holds: Callable[[], bool], *, timeout_s: float, what: str) -> None:
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end, f"waited {timeout_s:.0f} s for {what}"
        time.sleep(POLL_S)
