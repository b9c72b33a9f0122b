"""`forge gc`: files of a store directory that nothing needs any more.

Leftovers are of killed commands: directories of runs that never began, logs of detached starts that
failed, temporary files, models that were not finished. With checkpoints, also those of done runs
that are neither the newest nor the best of their stage; with models, those that no run names. A
running run is never touched: the lock of a run is held while files of it are removed.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge.errors import ConfigError, ForgeError, MachineError
from forge.store import layout
from forge.store.reader import open_run
from forge.train.checkpoints import MANIFEST, checkpoints
from forge.train.gguf import made_models
from forge.views.run_state import run_state
from forge.views.text import printable, size

OLD_S = 3600.0
"""Minimum age of a leftover: a command that begins writes such files too."""
_DETACHED = re.compile(r"detached-\d+\.log")
_TEMPORARY = re.compile(r"\.(?:STATUS|report\.html|experiment\.toml|results\.json)\.(?P<pid>\d+)")
"""Spare names of files that a run writes by rename; any other file may be the user's."""
_EARLY_FILES = frozenset(("lock", "STATUS.json", "experiment.toml"))
_BEST = """
SELECT step FROM v_evaluations WHERE stage_index = ? ORDER BY pass_at_1 DESC, step DESC LIMIT 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    path: Path
    why: str
    run: layout.RunPaths | None = None
    """The run that it belongs to, whose lock is held meanwhile; None for a leftover."""

    @property
    def num_bytes(self) -> int:
        """Bytes that its removal frees; a file with another hard link frees none."""
        files = [self.path]
        if self.path.is_dir() and not self.path.is_symlink():
            files = [Path(at, name) for at, _, names in os.walk(self.path) for name in names]
        total = 0
        for file in files:
            with suppress(FileNotFoundError):  # removed meanwhile
                stat = file.lstat()
                total += stat.st_size if stat.st_nlink == 1 else 0
        return total

    def to_json(self) -> dict[str, Any]:
        return {"path": str(self.path), "why": self.why, "num_bytes": self.num_bytes}


def find_garbage(
    store_dir: Path, *, now: float, with_checkpoints: bool = False, with_models: bool = False
) -> list[Garbage]:
    """Everything that may be removed, by path. `now` is Unix seconds."""
    if not store_dir.is_dir():
        return []
    runs = layout.list_runs(store_dir)
    named = b"".join(run.experiment.read_bytes() for run in runs if run.experiment.is_file())
    found = [*_leftovers(store_dir, now, named)]
    found += _made_models(store_dir, now, named if with_models else None)
    for paths in runs:
        if layout.is_owned(paths):
            continue
        found += _temporary_files(paths.root, now)
        if with_checkpoints:
            found += _old_checkpoints(paths)
    return sorted(found, key=lambda each: each.path)


def remove(found: Iterable[Garbage]) -> tuple[int, list[str]]:
    """Removes what was found; returns the bytes freed, and a line for each thing that stays.

    Raises MachineError if a file cannot be removed.
    """
    freed, kept = 0, list[str]()
    for each in found:
        with ExitStack() as stack:
            if each.run is not None:
                try:
                    stack.enter_context(layout.open_run_lock(each.run))
                except ConfigError:
                    kept.append(f"{each.path}: its run is running again")
                    continue
            num_bytes = each.num_bytes
            _remove(each.path)
            freed += num_bytes
    return freed, kept


def describe(found: list[Garbage]) -> list[str]:
    lines = [f"{size(each.num_bytes):>8}  {_shown(each.path)}  ({each.why})" for each in found]
    total = sum(each.num_bytes for each in found)
    return [*lines, f"{size(total):>8}  in {len(found)} files or directories"]


def _shown(path: Path) -> str:
    """The path from the working directory, if it is below it."""
    here = Path.cwd()
    return printable(str(path.relative_to(here) if path.is_relative_to(here) else path))


def _remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise MachineError(f"{path}: cannot be removed: {error.strerror or error}") from error


def _leftovers(store_dir: Path, now: float, named: bytes) -> Iterator[Garbage]:
    for path in (store_dir / layout.PROBLEMS).glob("*"):
        if os.fsencode(path.name) not in named and _is_old(path, now):
            yield Garbage(path=path, why="problems of searches that are gone")
    for path in store_dir.iterdir():
        if _DETACHED.fullmatch(path.name) and path.is_file() and _is_old(path, now):
            yield Garbage(path=path, why="log of a detached start that failed")
        elif _never_began(path) and _is_old(path, now):
            why = "directory of a run that never began"
            yield Garbage(path=path, why=why, run=layout.RunPaths(path.resolve()))


def _made_models(store_dir: Path, now: float, named: bytes | None) -> Iterator[Garbage]:
    """Models in the user's cache that were not finished, or, if `named` is given, whose name is not
    in it, the experiments of all runs here: runs of other directories may need them."""
    if not made_models().is_dir():
        return
    for path in made_models().iterdir():
        if not path.is_dir() or not _is_old(path, now):
            continue
        if path.name.startswith("."):
            why = "model that was not finished"
        elif named is not None and os.fsencode(path.name.rpartition("-")[0]) not in named:
            why = f"model made of a GGUF file or an adapter; no run of {store_dir} names it"
        else:
            continue
        yield Garbage(path=path, why=why)


def _never_began(path: Path) -> bool:
    """True for a run directory with nothing but empty folders, logs and the files of a start."""
    if path.is_symlink() or not path.is_dir() or not layout.RUN_NAME.match(path.name):
        return False
    entries = {entry.name for entry in path.iterdir()}
    if not entries >= set(layout.FOLDERS) or entries - {*layout.FOLDERS, *_EARLY_FILES}:
        return False
    folders = (path / name for name in layout.FOLDERS if name != "logs")
    return not any(any(folder.iterdir()) for folder in folders) and not layout.is_owned(
        layout.RunPaths(path)
    )


def _temporary_files(folder: Path, now: float) -> Iterator[Garbage]:
    """Files that a write by rename left, of processes that have ended."""
    for path in folder.iterdir():
        found = _TEMPORARY.fullmatch(path.name)
        if found is None or path.is_dir() or not _is_old(path, now):
            continue
        if not Path(f"/proc/{found['pid']}").exists():
            yield Garbage(path=path, why="temporary file of a process that ended")


def _old_checkpoints(paths: layout.RunPaths) -> Iterator[Garbage]:
    """Checkpoints of a done run, except the newest and the best one of each stage."""
    try:
        with open_run(paths) as reader:
            if run_state(reader) != "done":
                return
            folders = [path for path in paths.checkpoints.glob("stage-*") if path.is_dir()]
            best = {path: reader.value(_BEST, (_index(path),)) for path in folders}
    except ForgeError:
        return  # an unreadable run keeps everything
    for folder in folders:
        found = checkpoints(folder)
        whole = [step for step, path in found.items() if (path / MANIFEST).is_file()]
        for step, path in found.items():
            if whole and step not in (whole[-1], best[folder]):
                why = f"checkpoint of a done run; step {whole[-1]} stays"
                yield Garbage(path=path, why=why, run=paths)


def _index(folder: Path) -> int:
    number = folder.name.partition("-")[2]
    return int(number) if number.isdecimal() else -1


def _is_old(path: Path, now: float) -> bool:
    return now - path.lstat().st_mtime > OLD_S
