"""`forge archive`, and archives where a RUN is named: `forge show RUN.forge.zip`.

An archive is read from a private folder in TMPDIR, which ends with the command; the next command
removes those of killed ones (`process.sockets`).
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any

from forge.errors import ConfigError, ForgeError
from forge.process.sockets import open_private_dir
from forge.store.archive import (
    WrittenArchive,
    is_archive,
    list_archives,
    unpack_to_read,
    write_archive,
)
from forge.store.layout import ARCHIVE_SUFFIX, RunPaths
from forge.views.runs import load_run, load_runs

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence


def archive(paths: RunPaths, *, out: Path | None, with_weights: bool) -> WrittenArchive:
    """Writes the archive of a run: `<run>.forge.zip` beside its directory, or in or as `out`."""
    target = paths.root.parent if out is None else out
    if target.is_dir():
        target = target / f"{paths.name}{ARCHIVE_SUFFIX}"
    return write_archive(paths, target, with_weights=with_weights)


def describe(written: WrittenArchive, *, with_weights: bool) -> str:
    """The line after an archive was written."""
    again = ", forge resume continues it" if with_weights else ""
    held = f"{written.num_files} files, {written.num_bytes / 1e6:.1f} MB"
    return f"{written.path}: {held}; forge show, report and sql read it{again}"


@contextmanager
def open_archive(file: Path) -> Generator[RunPaths]:
    """The archived run without its weights, while inside. Raises ConfigError, MachineError."""
    with open_private_dir(Path(gettempdir())) as folder:
        (folder / "run").mkdir()
        yield unpack_to_read(file, folder / "run")


def load_all(store_dir: Path, places: Sequence[Path] = ()) -> list[dict[str, Any]]:
    """Rows of `forge runs`: the runs and archives of a store, or of the given places."""
    found: list[dict[str, Any]] = []
    for place in places or [store_dir]:
        if is_archive(place):
            found.append(_load_archive(place))
        elif (place / "run.db").is_file():
            found.append(load_run(RunPaths(place.resolve())))
        elif place.is_dir() or not places:
            found += load_runs(place)
            found += [_load_archive(file) for file in list_archives(place)]
        else:
            raise ConfigError(f"{place}: no such file or directory")
    return found


def _load_archive(file: Path) -> dict[str, Any]:
    """The row of an archive, or the reason why it cannot be read."""
    try:
        with open_archive(file) as paths:
            row = load_run(paths)
        row["state"] += ", archived"
    except ForgeError as error:
        row = {"state": f"unreadable: {error}"}
    return {**row, "name": file.name, "path": str(file.absolute())}
