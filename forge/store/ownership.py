"""The supervisor that owns a run: the run's lock, and STATUS.json, which carries its pid.

Written by the supervisor; read by every command that looks at a run, and the TUI. A chat locks
its own store.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from forge.errors import ConfigError, MachineError
from forge.store.layout import RunPaths

LOCKS = Path("/proc/locks")
LOCK_HOLDER = re.compile(r" FLOCK +ADVISORY +WRITE +(\d+) ")
LOCK_TRIES = 10
LOCK_PAUSE_S = 0.05
"""`is_owned` holds the lock for microseconds, so an owner tries a few times before it gives up."""


@contextmanager
def open_run_lock(paths: RunPaths) -> Generator[None]:
    """Holds the run's lock for this process.

    A flock ends with its process, so a killed supervisor leaves nothing to clean up. It does not
    work across NFS clients.

    Raises:
        ConfigError: another process holds the lock; the message has its pid.
        MachineError: the run's directory cannot be written.
    """
    try:
        descriptor = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _unwritable(paths.root, error) from error
    try:
        for _ in range(LOCK_TRIES):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(LOCK_PAUSE_S)
        else:
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "another process"
            raise ConfigError(
                f"{paths.root}: already running as pid {holder}; "
                f'"forge stop {paths.name}" ends it, "forge status {paths.name}" shows it'
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def is_owned(paths: RunPaths) -> bool:
    """True if a live process holds the run: its supervisor, or the chat that writes it."""
    try:
        descriptor = os.open(paths.lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        return holder == str(read_status(paths).get("pid", holder))
    finally:
        os.close(descriptor)
    return False


def runs_on_these_cores() -> list[str]:
    """Other live runs that use no GPU and may use a core of this process, as `run x-1, pid 7`.

    In any directory of this machine. Covers what this process may look into: its user's runs, in
    its container.
    """
    try:
        pids = {int(pid) for pid in LOCK_HOLDER.findall(LOCKS.read_text())}
    except OSError:
        return []
    return [f"run {root.name}, pid {pid}" for pid in sorted(pids) for root in _runs_on_cpu(pid)]


def _runs_on_cpu(pid: int) -> list[Path]:
    """Directories of the runs that a process owns; none if it is this one, has ended, has claimed a
    GPU, or has other cores."""
    with suppress(OSError):
        files = [fd.readlink() for fd in Path(f"/proc/{pid}/fd").iterdir()]
        shared = os.sched_getaffinity(pid) & os.sched_getaffinity(0)
        if pid != os.getpid() and shared and not any(file.suffix == ".claim" for file in files):
            roots = {file.parent for file in files if file == RunPaths(file.parent).lock}
            return sorted(root for root in roots if RunPaths(root).run_db.exists())
    return []


def write_status(paths: RunPaths, status: Mapping[str, Any]) -> None:
    """Replaces STATUS.json atomically; not fsynced, since run.db is the record.

    Raises MachineError if it cannot be written.
    """
    spare = paths.root / f".STATUS.{os.getpid()}"
    try:
        spare.write_text(json.dumps(status) + "\n", encoding="utf-8")
        spare.replace(paths.status)
    except OSError as error:
        with suppress(OSError):
            spare.unlink()
        raise _unwritable(paths.status, error) from error


def read_status(paths: RunPaths) -> dict[str, Any]:
    """Content of STATUS.json; empty if there is none yet, if it cannot be read, or if it is not an
    object, as after a power cut."""
    try:
        found: Any = json.loads(paths.status.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _unwritable(path: Path, error: OSError) -> MachineError:
    return MachineError(
        f"{path}: cannot be written: {error.strerror}; what was recorded is kept, and "
        '"forge resume" continues once it can be'
    )
