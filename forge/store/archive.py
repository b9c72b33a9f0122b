"""A run in one file: a zip of its directory, which is read as a run and unpacked to continue it.

    archive.json                       format, name of the run, whether it can be resumed
    run.db, tokens.db                  snapshots by SQLite's backup, so a run may be running
    experiment.toml, STATUS.json, logs/, ...
    weights/, checkpoints/, batches/   with weights; stored as they are, and no run may write them

An archive is complete or absent. A zip has its index at the end: run.db is read without the
weights, and a file that was cut off is known as such. Names, sizes and types of a foreign file are
checked before anything is written, into a new directory; the checksums while it is. Weights,
checkpoints and batches change together while a run runs: to archive them, its lock is held.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import re
import shutil
import sqlite3
import struct
import tempfile
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from forge.errors import ConfigError, MachineError
from forge.store import layout
from forge.store.reader import DAMAGED, open_read_only
from forge.store.schema.create import check_version

MANIFEST = "archive.json"
FORMAT = 1
MAX_MANIFEST_BYTES = 1 << 16
HEAVY = ("weights", "checkpoints", "batches")
"""Folders that only a resume needs. Their files do not get smaller."""
LEFT_OUT = re.compile(r"lock|serve|latest|.*\.db-(wal|shm|journal)")
"""Names of files and folders that belong to a running supervisor or can be made again."""
NAME = re.compile(r"(?!\.{1,2}$)[^/\x00-\x1f\x7f]{1,200}")
"""A name of a file or folder in a run directory."""
BROKEN = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError,
    ValueError, IndexError, KeyError, OverflowError,
)  # fmt: skip
"""Errors of the zip library for a file that is no zip, or a damaged one."""


def is_archive(run: str | Path) -> bool:
    """True if a RUN names a file; whether it can be read is known when it is unpacked."""
    return Path(run).is_file()


def list_archives(store_dir: Path) -> list[Path]:
    return sorted(path for path in store_dir.glob(f"*{layout.ARCHIVE_SUFFIX}") if path.is_file())


def unpack_to_read(file: Path, folder: Path) -> layout.RunPaths:
    """Unpacks what a reader needs into a folder. Raises ConfigError, MachineError."""
    with _opened(file) as archive:
        chosen = [info for info in archive.entries if top_folder(info.filename) not in HEAVY]
        return archive.unpack(chosen, folder, advice="; TMPDIR names another directory")


def unpack_to_resume(file: Path) -> layout.RunPaths:
    """Unpacks a run beside its archive, under its name or one with the next free number.

    Raises:
        ConfigError: the file is no archive, or a damaged one.
        MachineError: it was written without weights, or the disk is full.
    """
    with _opened(file) as archive:
        if not archive.has_weights:
            raise MachineError(
                f"{file}: {', '.join(f'{name}/' for name in HEAVY)} are not in it, since it was "
                f'archived with --no-weights; it can be read ("forge show {file}"), not resumed'
            )
        beside = file.resolve().parent
        with (
            _refusing(file),
            tempfile.TemporaryDirectory(
                prefix=".unpack-", dir=beside, ignore_cleanup_errors=True
            ) as scratch,
        ):
            paths = archive.unpack(archive.entries, Path(scratch))
            for folder in layout.FOLDERS:
                (paths.root / folder).mkdir(exist_ok=True)
            return layout.RunPaths(_place(paths.root, beside))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Archive:
    """An archive whose names and sizes were checked."""

    file: Path
    zip: zipfile.ZipFile
    name: str
    has_weights: bool
    entries: list[zipfile.ZipInfo]

    def unpack(
        self, entries: list[zipfile.ZipInfo], folder: Path, *, advice: str = ""
    ) -> layout.RunPaths:
        wanted, free = sum(info.file_size for info in entries), shutil.disk_usage(folder).free
        if wanted > free:
            sizes = f"{wanted / 1e9:.1f} GB unpacked, {free / 1e9:.1f} GB free"
            raise MachineError(f"{self.file}: {sizes} in {folder}{advice}")
        root = folder / self.name
        with _refusing(self.file):
            root.mkdir()
            for info in entries:
                path = root / info.filename
                path.parent.mkdir(parents=True, exist_ok=True)
                with _zip_errors(self.file):
                    with self.zip.open(info) as source, path.open("xb") as copy:
                        shutil.copyfileobj(source, copy, 1 << 20)
                    changed_at = time.mktime((*info.date_time, 0, 0, -1))
                os.utime(path, (changed_at, changed_at))
            paths = layout.RunPaths(root)
            if last_attempt := layout.next_attempt(paths) - 1:
                paths.logs(last_attempt)  # logs/latest
        return paths


@contextmanager
def _refusing(file: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise MachineError(f"{file}: cannot be unpacked: {why}") from error


@contextmanager
def _zip_errors(file: Path) -> Generator[None]:
    """Turns errors of the zip library into one line. Nothing else is called inside: an error of
    forge must not read as a damaged archive."""
    try:
        yield
    except BROKEN as error:
        raise ConfigError(f"{file}: damaged, or cut off: {str(error) or 'unreadable'}") from error


@contextmanager
def _opened(file: Path) -> Generator[_Archive]:
    """Opens an archive and checks its names. Raises ConfigError if it is not one of forge."""
    with _refusing(file):
        if not zipfile.is_zipfile(file):
            raise ConfigError(f"{file}: no archive of a run, or one that was cut off")
        with _zip_errors(file):
            opened = zipfile.ZipFile(file)
    with opened:
        with _refusing(file):
            manifest = _manifest(opened, file)
            entries = [info for info in opened.infolist() if info.filename != MANIFEST]
            _check(entries, file)
        yield _Archive(
            file=file, zip=opened, entries=entries, name=manifest["name"],
            has_weights=manifest["has_weights"],
        )  # fmt: skip


def _manifest(archive: zipfile.ZipFile, file: Path) -> dict[str, Any]:
    if MANIFEST not in archive.namelist():
        raise ConfigError(f"{file}: no archive of a run: it has no {MANIFEST}")
    with _zip_errors(file), archive.open(MANIFEST) as source:
        found: Any = json.loads(source.read(MAX_MANIFEST_BYTES))
    kinds = {"format": int, "name": str, "has_weights": bool}
    keys = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    if any(type(keys.get(name)) is not kind for name, kind in kinds.items()):
        raise ConfigError(f"{file}: no archive of a run: its {MANIFEST} has other keys")
    if keys["format"] != FORMAT:
        raise ConfigError(f"{file}: format {keys['format']} of archives; this forge knows {FORMAT}")
    name = keys["name"]
    if not NAME.fullmatch(name) or name.startswith(".") or not name.isprintable():
        raise ConfigError(f"{file}: its run has the name {keys['name'][:40]!r}")
    return keys


def _check(entries: list[zipfile.ZipInfo], file: Path) -> None:
    """Raises ConfigError for an entry that no archive of forge has."""
    names = Counter(info.filename for info in entries)
    for info in entries:
        name = info.filename
        parts = name.split("/")
        is_odd = names[name] > 1 or not all(NAME.fullmatch(part) for part in parts)
        is_odd = is_odd or any(LEFT_OUT.fullmatch(part) for part in parts)
        if is_odd or info.flag_bits & 1 or info.compress_type not in (0, zipfile.ZIP_DEFLATED):
            raise ConfigError(f"{file}: nothing is unpacked: it has an entry {name[:60]!r}")
    if "run.db" not in names:
        raise ConfigError(f"{file}: no archive of a run: it has no run.db")


def _place(unpacked: Path, store_dir: Path) -> Path:
    """Moves a directory to its name in `store_dir`, or to the first free number after it."""
    match = layout.RUN_NAME.match(unpacked.name)
    base, number = (match["name"], int(match["number"])) if match else (unpacked.name, 0)
    root = store_dir / unpacked.name
    while True:
        try:
            root.mkdir()  # atomic: of two simultaneous calls one gets FileExistsError
            break
        except FileExistsError:
            number += 1
            root = store_dir / f"{base}-{number}"
    return unpacked.rename(root)


def top_folder(name: str) -> str:
    """First part of a path in an archive."""
    return PurePosixPath(name).parts[0]


def write_archive(
    paths: layout.RunPaths, out: Path | None = None, *, with_weights: bool
) -> tuple[Path, int]:
    """Writes a run to a file, which is complete or absent: `<run>.forge.zip` beside its directory,
    or in or as `out`. Returns the file and the number of files in it.

    Raises:
        ConfigError: the file exists; the run is running and weights are wanted; its databases are
            damaged, or of another version.
        MachineError: a file cannot be read or written.
    """
    target = paths.root.parent if out is None else out
    if target.is_dir():
        target = target / f"{paths.name}{layout.ARCHIVE_SUFFIX}"
    if target.exists():
        raise ConfigError(f"{target}: exists; --out names another file")
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with closing(open_read_only(paths.run_db)[0]) as run:
            check_version(run, path=paths.run_db)
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
    return target, num_files


def _write(paths: layout.RunPaths, file: BinaryIO, part: Path, *, with_weights: bool) -> int:
    manifest = {"format": FORMAT, "name": paths.name, "has_weights": with_weights}
    num_files = 0
    with zipfile.ZipFile(
        file, "w", zipfile.ZIP_DEFLATED, compresslevel=1, strict_timestamps=False
    ) as archive:
        archive.writestr(MANIFEST, json.dumps(manifest))
        for path in _files(paths.root):
            name = path.relative_to(paths.root).as_posix()
            is_heavy = top_folder(name) in HEAVY
            if is_heavy and not with_weights:
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
def _undisturbed(paths: layout.RunPaths, *, is_needed: bool) -> Generator[None]:
    """Holds the run's lock, so that no supervisor writes or deletes weights meanwhile."""
    with ExitStack() as held:
        try:
            if is_needed and os.access(paths.root, os.W_OK):
                held.enter_context(layout.open_run_lock(paths))
        except ConfigError as error:
            advice = f'"forge archive {paths.name} --no-weights" archives its records as of now'
            raise ConfigError(f"{error}; {advice}") from error
        yield
