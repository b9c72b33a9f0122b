"""Weights and checkpoints on their way through Ray's object store: packed once, unpacked on nodes.

The broker puts each file in chunks; a node fetches each chunk once, from any node that has it, and
its hosts write it to their disks. Promise: an unpacked directory is complete, or the call failed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import anyio
import anyio.to_thread
import numpy as np

from forge.errors import MachineError

CHUNK_BYTES = 32 << 20
"""Bytes of one object. Two fit into the smallest object store that Ray makes (75 MB): for an object
that is larger than a store Ray waits two seconds before it takes a disk, on each node."""

Manifest = Sequence[tuple[str, Sequence[Any]]]
"""Name of each file, relative to the directory, and the objects of its chunks."""


def weights_key(source: Path) -> str:
    """Identifies the content of a directory or file, by names, sizes and times. Raises
    MachineError."""
    found = hashlib.sha256(str(source.absolute()).encode())
    with _readable(source):
        for name, path in _files(source).items():
            stat = path.stat()
            found.update(f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    return found.hexdigest()[:16]


def pack(source: Path, put: Callable[[Any], Any]) -> Manifest:
    """The files of a directory, or one file, as objects. `put` stores one object. Raises
    MachineError."""
    with _readable(source):
        return [
            (name, [put(chunk) for chunk in _chunks(path)]) for name, path in _files(source).items()
        ]


@contextmanager
def _readable(source: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise MachineError(f"{source}: it cannot be read for a node: {error}") from error


async def unpack(manifest: Manifest, folder: Path) -> None:
    """Writes the files of a manifest into a new directory. Raises MachineError."""
    for name, chunks in manifest:
        path = folder / _checked(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                for chunk in chunks:
                    await anyio.to_thread.run_sync(file.write, memoryview(await chunk))
        except OSError as error:
            raise MachineError(f"{path}: weights cannot be written: {error}") from error


def _files(source: Path) -> dict[str, Path]:
    """The files by their name on the other side."""
    if not source.is_dir():
        return {source.name: source}
    paths = sorted(path for path in source.rglob("*") if path.is_file())
    return {path.relative_to(source).as_posix(): path for path in paths}


def _chunks(path: Path) -> list[Any]:
    size = path.stat().st_size
    starts = range(0, max(size, 1), CHUNK_BYTES)
    return [
        np.fromfile(path, np.uint8, count=min(CHUNK_BYTES, size - start), offset=start)
        for start in starts
    ]


def _checked(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise MachineError(f"weights: found the file name {name!r}; a name below the directory")
    return name


def touch(kept: dict[str, Any], key: str, *, num: int) -> list[Any]:
    """Makes a key the latest of those kept; returns the values that it drops to keep `num`."""
    kept[key] = kept.pop(key)
    return [kept.pop(old) for old in list(kept)[:-num]]
