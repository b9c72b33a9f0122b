"""The faults themselves: signals, limits, disks, clocks and damaged files.

Each is a call of the kernel or a change of a real file; only the clock is a library's.
"""

import os
import resource
import shutil
import signal
import sqlite3
import struct
import subprocess
from contextlib import closing, suppress
from pathlib import Path

from tests.chaos.cells import Cell, Fault, Phase, Target
from tests.chaos.machine import MOUNTS, Disk, Machine
from tests.chaos.moments import send

NUMBERS = {Fault.KILL: signal.SIGKILL, Fault.TERM: signal.SIGTERM, Fault.SEGV: signal.SIGSEGV}
SOCKETS = {
    Target.SUPERVISOR: "control.sock",
    Target.ENGINE: "serve-0.sock",
    Target.JUDGE: "judge-0.sock",
}
DISKS = {Fault.DISK_FULL: Disk.SMALL, Fault.DISK_LOW: Disk.SMALL, Fault.READ_ONLY: Disk.FAILING}
LEFT_BYTES = 20 << 20
"""Free space of a disk that is nearly full."""
MORE_MEMORY_BYTES = 4 << 20
"""Address space that a limited process may still take."""
JUMP_S = 7 * 24 * 3600
GARBAGE = b"\x00not what it was\xff" * 64
CLOCK_VARIABLE = "FORGE_CHAOS_CLOCK"
SOURCE = Path(__file__).with_name("wall_clock.c")


def strike(cell: Cell, pids: list[int], machine: Machine) -> None:
    match cell.fault:
        case Fault.STOP:
            return
        case Fault.KILL | Fault.TERM | Fault.SEGV:
            send(pids, NUMBERS[cell.fault])
        case Fault.SOCKET:
            for path in machine.tmp.glob(f"forge-*/{SOCKETS[cell.target]}"):
                path.unlink()
        case Fault.DESCRIPTORS:
            for pid in pids:
                used = 1 + max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, used))
        case Fault.MEMORY:
            for pid in pids:
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
                limit = pages * os.sysconf("SC_PAGE_SIZE") + MORE_MEMORY_BYTES
                resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))
        case _:
            _strike_machine(cell, machine)
    send(pids, signal.SIGCONT)


def _strike_machine(cell: Cell, machine: Machine) -> None:
    match cell.fault:
        case Fault.DISK_FULL:
            fill(machine.root / "runs")
        case Fault.DISK_LOW:
            fill(machine.root / "runs", left_bytes=LEFT_BYTES)
        case Fault.READ_ONLY if machine.disk is Disk.BOUND:
            machine.run("mount", "-o", "remount,ro,bind", "runs")
        case Fault.READ_ONLY:
            fail_disk(machine)
        case Fault.SHM_FULL:
            fill(Path("/dev/shm"))
        case Fault.TMP_FULL:
            fill(machine.tmp)
        case Fault.CLOCK_FORWARD:
            set_clock(machine, JUMP_S)
        case Fault.CLOCK_BACK:
            set_clock(machine, -JUMP_S)
        case _:
            raise AssertionError(f"{cell.fault} is no fault of a machine")


def repair(cell: Cell, machine: Machine) -> None:
    """End a fault of the disk, as its owner would before `forge resume`."""
    for folder in (machine.root / "runs", Path("/dev/shm"), machine.tmp):
        if (folder / FILLER).exists():  # on a read-only disk, to unlink nothing is an error
            (folder / FILLER).unlink()
    if cell.fault is Fault.READ_ONLY:
        machine.run("umount", "runs")
        if machine.disk is Disk.FAILING:
            machine.run("sh", "-c", "e2fsck -fy disk || test $? -eq 1")  # 1: errors were corrected
        machine.run("sh", "-c", MOUNTS[machine.disk] or "true")


def disk_of(cell: Cell) -> Disk:
    """The disk that a cell needs."""
    if cell.fault is Fault.READ_ONLY and cell.phase is Phase.STOPPED:
        return Disk.BOUND
    return DISKS.get(cell.fault, Disk.SHARED)


# -- disks ----------------------------------------------------------------------------------------

FILLER = ".filler"


def fill(folder: Path, *, left_bytes: int = 0) -> None:
    """Take all space of a file system but `left_bytes`."""
    stat = os.statvfs(folder)
    wanted = max(0, stat.f_bavail * stat.f_frsize - left_bytes)
    with (folder / FILLER).open("wb") as file:
        with suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, wanted)
        if not left_bytes:
            with suppress(OSError):
                while True:
                    os.write(file.fileno(), bytes(4096))


def fail_disk(machine: Machine) -> None:
    """Let the kernel find an error on the ext4 of `runs`, after which it is read-only."""
    device = machine.run("findmnt", "-n", "-o", "SOURCE", "runs").strip()
    Path(f"/sys/fs/ext4/{Path(device).name}/trigger_fs_error").write_text("chaos")


# -- clock ----------------------------------------------------------------------------------------


def clock_env(folder: Path) -> dict[str, str] | None:
    """Environment of processes whose wall clock can jump; None without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = folder / "wall_clock.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"], check=True
    )
    clock = folder / "clock"
    clock.write_bytes(struct.pack("l", 0))
    return {"LD_PRELOAD": str(library), CLOCK_VARIABLE: str(clock)}


def set_clock(machine: Machine, seconds: int) -> None:
    """Let the wall clock of all processes of the cell jump to this distance from the true time."""
    with Path(machine.env[CLOCK_VARIABLE]).open("r+b") as file:
        file.write(struct.pack("l", seconds))


# -- files ----------------------------------------------------------------------------------------


def damage(cell: Cell, root: Path) -> Path:
    found = sorted(root.glob(cell.file))
    assert found, f"no {cell.file} in {root}"
    path = found[-1]
    if path.suffix == ".db":  # a WAL with all its pages would replace a damaged file
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    match cell.fault:
        case Fault.DELETED:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        case Fault.EMPTIED:
            os.truncate(path, 0)
        case Fault.TRUNCATED:
            os.truncate(path, path.stat().st_size // 2)
        case Fault.FLIPPED:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 0xFF
            path.write_bytes(data)
        case Fault.GARBAGE:
            path.write_bytes(GARBAGE)
        case _:
            raise AssertionError(f"{cell.fault} is no damage of a file")
    return path
