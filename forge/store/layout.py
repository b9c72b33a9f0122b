"""The run directory: how it is named, what lies where in it, how one is found again, who owns it.

Called by the runner (create, lock), by every command that takes RUN (find) and by the views.
Promise: a number is given to one run only, also when two start at once; a file written here is
complete or absent.

    runs/<name>-<n>/
        run.db  tokens.db          what was recorded (store.tables)
        experiment.toml            the resolved experiment
        logs/attempt-<k>/          <process>.log
        checkpoints/ weights/ batches/
        STATUS.json                rewritten in place by rename
        lock                       held by the supervisor that owns the run
"""

from __future__ import annotations

import difflib
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge.errors import ConfigError, MachineError

LOCK_TRIES = 10
LOCK_PAUSE_S = 0.05
"""`is_owned` holds the lock for microseconds; an owner therefore asks a few times before it gives
up.
"""
MOST_NAMED = 5
"""Runs that an error names."""

_RUN_NAME = re.compile(r"^(?P<name>.+)-(?P<number>[1-9]\d*)$")


@dataclass(frozen=True, slots=True)
class RunPaths:
    """Where things lie in one run directory."""

    root: Path

    @property
    def name(self) -> str:
        """`quickstart-1`."""
        return self.root.name

    @property
    def run_db(self) -> Path:
        return self.root / "run.db"

    @property
    def tokens_db(self) -> Path:
        return self.root / "tokens.db"

    @property
    def experiment(self) -> Path:
        return self.root / "experiment.toml"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def weights(self) -> Path:
        return self.root / "weights"

    @property
    def batches(self) -> Path:
        return self.root / "batches"

    @property
    def status(self) -> Path:
        return self.root / "STATUS.json"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    def logs(self, attempt: int) -> Path:
        """Log directory of an attempt; made on first use, with `logs/latest` pointing at it."""
        path = self.root / "logs" / f"attempt-{attempt}"
        path.mkdir(parents=True, exist_ok=True)
        latest = path.parent / "latest"
        spare = path.parent / f".latest-{os.getpid()}"
        spare.unlink(missing_ok=True)
        spare.symlink_to(path.name)
        spare.replace(latest)
        return path


def create_run(name: str, *, store_dir: Path) -> RunPaths:
    """Makes `<store_dir>/<name>-<n>/` with the next free n. Raises MachineError where it cannot be
    written.
    """
    try:
        store_dir.mkdir(parents=True, exist_ok=True)
        number = 1 + max((n for base, n in _numbered(store_dir) if base == name), default=0)
        while True:
            root = store_dir / f"{name}-{number}"
            try:
                root.mkdir()  # atomic: of two that ask at once, one gets FileExistsError
                break
            except FileExistsError:
                number += 1
        for folder in ("logs", "checkpoints", "weights", "batches"):
            (root / folder).mkdir()
    except OSError as error:
        raise MachineError(f"{store_dir}: cannot make a run directory: {error.strerror}") from error
    return RunPaths(root.resolve())


def find_run(name: str | Path, *, store_dir: Path) -> RunPaths:
    """The run that a path, `<name>-<n>`, `<name>` (its highest number) or `last` (written most
    lately) names.

    Raises ConfigError naming what there is.
    """
    asked = Path(name)
    if (asked / "run.db").is_file():
        return RunPaths(asked.resolve())
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
    raise ConfigError(f"{name}: no such run; {_what_there_is(str(name), list(by_name), store_dir)}")


def list_runs(store_dir: Path) -> list[RunPaths]:
    """Every directory of `store_dir` that holds a run.db, oldest first."""
    if not store_dir.is_dir():
        return []
    found = [
        RunPaths(path.resolve()) for path in store_dir.iterdir() if (path / "run.db").is_file()
    ]
    return sorted(found, key=_begun_at)


def next_attempt(paths: RunPaths) -> int:
    """1 for a new run, one more than the highest log directory after that."""
    taken = [int(path.name.removeprefix("attempt-")) for path in paths.root.glob("logs/attempt-*")]
    return 1 + max(taken, default=0)


@contextmanager
def open_run_lock(paths: RunPaths) -> Iterator[None]:
    """Holds the run for this process. Raises ConfigError naming the holder when another one has it.

    A flock ends with its process, so a killed supervisor leaves nothing to clean up. It does not
    reach over NFS.
    """
    descriptor = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
                f'"forge stop {paths.name}" ends it, "forge status {paths.name}" looks on'
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def is_owned(paths: RunPaths) -> bool:
    """Whether a live supervisor holds the run. A chat that holds it is none: STATUS.json has the
    supervisor's pid.
    """
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


def write_file(path: Path, content: str) -> None:
    """Writes a file that is complete or absent, also after a power cut."""
    spare = path.with_name(f".{path.name}.{os.getpid()}")
    with spare.open("w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    spare.replace(path)


def write_status(paths: RunPaths, status: Mapping[str, Any]) -> None:
    """Rewrites STATUS.json. A reader sees the old one or the new one; it is not fsynced, since
    run.db is the truth.
    """
    spare = paths.root / f".STATUS.{os.getpid()}"
    spare.write_text(json.dumps(status) + "\n", encoding="utf-8")
    spare.replace(paths.status)


def read_status(paths: RunPaths) -> dict[str, Any]:
    """What STATUS.json says; empty where there is none yet."""
    try:
        return json.loads(paths.status.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}


def _numbered(store_dir: Path) -> list[tuple[str, int]]:
    """(name, n) of every entry that looks like a run."""
    if not store_dir.is_dir():
        return []
    matches = (_RUN_NAME.match(entry) for entry in os.listdir(store_dir))
    return [(m["name"], int(m["number"])) for m in matches if m]


def _begun_at(paths: RunPaths) -> int:
    """When the run began, in ns: its experiment is written once, its database again and again."""
    file = paths.experiment if paths.experiment.exists() else paths.run_db
    return file.stat().st_mtime_ns


def _written_at(paths: RunPaths) -> int:
    """When the run's database was last written, in ns; the WAL is newer than its database while a
    run lives.
    """
    files = (paths.run_db, paths.root / "run.db-wal")
    return max(file.stat().st_mtime_ns for file in files if file.exists())


def _what_there_is(asked: str, names: list[str], store_dir: Path) -> str:
    if not names:
        return f"{store_dir}/ holds no runs"
    close = difflib.get_close_matches(asked, names, n=1)
    if close:
        return f"did you mean {close[0]}?"
    newest = ", ".join(reversed(names[-MOST_NAMED:]))
    num_more = len(names) - MOST_NAMED
    return f"{store_dir}/ holds {newest}" + (f" and {num_more} older" if num_more > 0 else "")
