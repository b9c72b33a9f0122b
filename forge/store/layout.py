"""The run directory: its name, its files, its owner, and how to find one again.

Called by the supervisor (create, own), by every command that takes RUN (find), by the views and the
TUI; a chat locks its own store. Each number is given to one run only, also when two start
simultaneously; a file written here is complete or absent.

    runs/<name>-<n>/
        run.db  tokens.db          everything but tokens; token ids, log-probabilities
        acknowledged               commits, turns and highest ids in run.db (store.acknowledged)
        experiment.toml            the resolved experiment
        logs/attempt-<k>/          <process>.log
        checkpoints/ weights/      of the trainer; published ones
        batches/                   offered to the trainer
        STATUS.json                state and pid of the supervisor, replaced by rename
        lock                       held by the supervisor that owns the run
"""

from __future__ import annotations

import difflib
import fcntl
import json
import os
import re
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from forge.errors import ConfigError, MachineError

MOST_NAMED = 5

RUN_NAME = re.compile(r"^(?P<name>.+)-(?P<number>[1-9]\d*)$")
ARCHIVE_SUFFIX = ".forge.zip"
FOLDERS = ("logs", "checkpoints", "weights", "batches")
PROBLEMS = ".solve"
"""Folder of a store with the problems of `forge solve`, a folder of each set, by its digest."""


class _Below:
    """A path below the run directory, by its name there."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, paths: RunPaths, _owner: object = None) -> Path:
        return paths.root / self._name


@dataclass(frozen=True, slots=True)
class RunPaths:
    root: Path

    run_db = _Below("run.db")
    tokens_db = _Below("tokens.db")
    acknowledged = _Below("acknowledged")
    experiment = _Below("experiment.toml")
    checkpoints = _Below("checkpoints")
    weights = _Below("weights")
    batches = _Below("batches")
    status = _Below("STATUS.json")
    lock = _Below("lock")

    @property
    def name(self) -> str:
        """`quickstart-1`."""
        return self.root.name

    def record(self, path: str | Path) -> str:
        """The path as the store has it: relative to the run directory if it points into it, so
        that the directory may be moved. `RunReader.path` is the inverse."""
        path = Path(path)
        return str(path.relative_to(self.root) if path.is_relative_to(self.root) else path)

    def logs(self, attempt: int) -> Path:
        """Log directory of an attempt, created on first use; `logs/latest` then points to it.

        Raises MachineError if there is no run directory: one that was moved while its run wrote to
        it must not appear again under its old name.
        """
        path = self.root / "logs" / f"attempt-{attempt}"
        try:
            for folder in (path.parent, path):
                folder.mkdir(exist_ok=True)
        except FileNotFoundError as error:
            raise MachineError(f"{self.root}: no such directory; was it moved?") from error
        latest = path.parent / "latest"
        spare = path.parent / f".latest-{os.getpid()}"
        spare.unlink(missing_ok=True)
        spare.symlink_to(path.name)
        spare.replace(latest)
        return path


def create_run(name: str, *, store_dir: Path) -> RunPaths:
    """Creates `<store_dir>/<name>-<n>/` with the next free n. Raises MachineError if it cannot."""
    try:
        store_dir.mkdir(parents=True, exist_ok=True)
        number = 1 + max((n for base, n in _numbered(store_dir) if base == name), default=0)
        while True:
            root = store_dir / f"{name}-{number}"
            try:
                root.mkdir()  # atomic: of two simultaneous calls one gets FileExistsError
                break
            except FileExistsError:
                number += 1
        for folder in FOLDERS:
            (root / folder).mkdir()
    except OSError as error:
        raise MachineError(f"{store_dir}: cannot make a run directory: {error.strerror}") from error
    return RunPaths(root.resolve())


def find_run(name: str | Path, *, store_dir: Path) -> RunPaths:
    """Finds a run by path, `<name>-<n>`, `<name>` (its highest number) or `last` (most recently
    written).

    Raises:
        ConfigError: there is no such run; the message lists the newest ones.
    """
    asked = Path(name)
    if (asked / "run.db").is_file():
        return RunPaths(asked.resolve())
    if asked.is_file():
        raise ConfigError(f'{name}: a file; "forge resume {name}" unpacks the archive of a run')
    runs = list_runs(store_dir)
    by_name = {run.name: run for run in runs}
    if str(name) == "last" and runs:
        return max(runs, key=_written_at)
    if str(name) in by_name:
        return by_name[str(name)]
    numbers = [n for base, n in _numbered(store_dir) if base == str(name)]
    for number in sorted(numbers, reverse=True):
        if f"{name}-{number}" in by_name:
            return by_name[f"{name}-{number}"]
    if str(name) == "last":  # also if no name was given
        raise ConfigError(
            f'{store_dir}/ holds no runs; "forge run X.toml" starts one, --store names another '
            "directory"
        )
    archive = store_dir / f"{name}{ARCHIVE_SUFFIX}"
    hint = f"{archive} is the archive of one" if archive.is_file() else ""
    if step := re.fullmatch(r"(.+)[@:](\d+)", str(name)):
        hint = f"a run is written {step[1]}, a step of it {step[1]}:{step[2]}"
    hint = hint or _describe_runs(str(name), list(by_name), store_dir)
    raise ConfigError(f"{name}: no such run; {hint}")


def list_runs(store_dir: Path) -> list[RunPaths]:
    """All directories of `store_dir` with a run.db, oldest first."""
    if not store_dir.is_dir():
        return []
    found = [
        RunPaths(path.resolve()) for path in store_dir.iterdir() if (path / "run.db").is_file()
    ]
    return sorted(found, key=_begun_at)


def next_attempt(paths: RunPaths, *, recorded: int = 0) -> int:
    """1 for a new run, else one more than the highest log directory and than the last `recorded`
    attempt, whose logs may have been deleted."""
    taken = [int(path.name.removeprefix("attempt-")) for path in paths.root.glob("logs/attempt-*")]
    return 1 + max([recorded, *taken])


def write_file(path: Path, content: str) -> None:
    """Writes a file atomically, also with respect to a power cut."""
    spare = path.with_name(f".{path.name[:100]}.{os.getpid()}")
    with spare.open("w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    spare.replace(path)


def _numbered(store_dir: Path) -> list[tuple[str, int]]:
    """(name, n) of all entries named like a run."""
    if not store_dir.is_dir():
        return []
    matches = (RUN_NAME.match(entry) for entry in os.listdir(store_dir))
    return [(m["name"], int(m["number"])) for m in matches if m]


def _begun_at(paths: RunPaths) -> int:
    """Start of the run, in ns: its experiment is written once, its database repeatedly."""
    file = paths.experiment if paths.experiment.exists() else paths.run_db
    return file.stat().st_mtime_ns


def _written_at(paths: RunPaths) -> int:
    """Last write to the run's database, in ns; that of the WAL while a run is live."""
    files = (paths.run_db, paths.root / "run.db-wal")
    return max(file.stat().st_mtime_ns for file in files if file.exists())


def _describe_runs(asked: str, names: list[str], store_dir: Path) -> str:
    if not names:
        return f"{store_dir}/ holds no runs"
    close = difflib.get_close_matches(asked, names, n=1)
    if close:
        return f"did you mean {close[0]}?"
    older = f" and {len(names) - MOST_NAMED} older" if len(names) > MOST_NAMED else ""
    return f"{store_dir}/ holds {', '.join(reversed(names[-MOST_NAMED:]))}{older}"


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
