"""Writes the archive of a run (`store.archive`): one file, complete or absent.

Databases are snapshots by SQLite's backup, so that the records of a running run can be archived.
Weights, checkpoints and batches change together while a run runs: with them, its lock is held.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import shutil
import sqlite3
import tempfile
import zipfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from forge.errors import ConfigError, MachineError
from forge.store.archive import FORMAT, HEAVY, LEFT_OUT, MANIFEST, top_folder
from forge.store.identity import present_identity
from forge.store.opening import DAMAGED, open_read_only
from forge.store.ownership import open_run_lock

if TYPE_CHECKING:
    from forge.store.layout import RunPaths


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenArchive:
    """An archive that was written."""

    path: Path
    num_bytes: int
    num_files: int


def write_archive(paths: RunPaths, target: Path, *, with_weights: bool) -> WrittenArchive:
    """Writes a run to a file, which is complete or absent.

    Raises:
        ConfigError: the file exists; the run is running and weights are wanted; or its databases
            are damaged.
        MachineError: a file cannot be read or written.
    """
    if target.exists():
        raise ConfigError(f"{target}: exists; --to names another file")
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        _sweep(target)
        with _undisturbed(paths, is_needed=with_weights), part.open("xb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            num_files = _write(paths, file, part, with_weights=with_weights)
        part.replace(target)
    except OSError as error:
        is_ours = part.name in str(error.filename or part)
        where = target if is_ours else error.filename
        raise MachineError(f"{where}: cannot be archived: {error.strerror or error}") from error
    except sqlite3.DatabaseError as error:
        raise ConfigError(f"{paths.root}: {DAMAGED}: {error}") from error
    finally:
        part.unlink(missing_ok=True)
    return WrittenArchive(path=target, num_bytes=target.stat().st_size, num_files=num_files)


def _write(paths: RunPaths, file: BinaryIO, part: Path, *, with_weights: bool) -> int:
    manifest = {"format": FORMAT, "name": paths.name, "has_weights": with_weights}
    num_files = 0
    with zipfile.ZipFile(
        file, "w", zipfile.ZIP_DEFLATED, compresslevel=1, strict_timestamps=False
    ) as archive:
        archive.writestr(MANIFEST, json.dumps(manifest))
        if (identity := present_identity(paths)) is not None:
            archive.writestr(paths.identity.name, identity.to_json())
        for path in _files(paths.root):
            name = path.relative_to(paths.root).as_posix()
            is_heavy = top_folder(name) in HEAVY
            if path == paths.identity or (is_heavy and not with_weights):
                continue
            kind = zipfile.ZIP_STORED if is_heavy else zipfile.ZIP_DEFLATED
            may_vanish = (
                (FileNotFoundError,) if top_folder(name) == "logs" else ()
            )  # a child's config
            with suppress(*may_vanish), _as_written(path, part) as source:
                archive.write(source, name, compress_type=kind)
                num_files += 1
    os.fsync(file.fileno())
    return num_files


def _files(root: Path) -> Iterator[Path]:
    """Files to archive: run.db before tokens.db, whose rows are committed first."""
    seen: set[tuple[int, int]] = set()
    for folder, folders, names in os.walk(root, followlinks=True):
        stat = os.stat(folder)
        if (stat.st_dev, stat.st_ino) in seen:  # a link to a folder above it
            folders.clear()
            continue
        seen.add((stat.st_dev, stat.st_ino))
        # Hidden folders, and hidden files beside run.db, are those that are being written.
        folders[:] = sorted(n for n in folders if not (LEFT_OUT.fullmatch(n) or n[0] == "."))
        for name in sorted(names):
            path = Path(folder, name)
            is_left_out = LEFT_OUT.fullmatch(name) or (name[0] == "." and path.parent == root)
            if not is_left_out and path.is_file():
                yield path


@contextmanager
def _as_written(path: Path, part: Path) -> Generator[Path]:
    """The file itself; of a database, a snapshot beside the archive."""
    if path.suffix != ".db":
        yield path
        return
    with tempfile.TemporaryDirectory(prefix=f"{part.name}-", dir=part.parent) as folder:
        copy = Path(folder, path.name)
        source = open_read_only(path)[0]
        with closing(source), closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        yield copy


def _sweep(target: Path) -> None:
    """Deletes what killed writers of this archive left; those that still write hold a lock."""
    for part in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
        with suppress(BlockingIOError), part.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for snapshots in target.parent.glob(f"{glob.escape(part.name)}-*"):
                shutil.rmtree(snapshots)
            part.unlink()


@contextmanager
def _undisturbed(paths: RunPaths, *, is_needed: bool) -> Generator[None]:
    """Holds the run's lock, so that no supervisor writes or deletes weights meanwhile."""
    with ExitStack() as held:
        try:
            if is_needed and os.access(paths.root, os.W_OK):
                held.enter_context(open_run_lock(paths))
        except ConfigError as error:
            advice = f'"forge archive {paths.name} --no-weights" archives its records as of now'
            raise ConfigError(f"{error}; {advice}") from error
        yield
