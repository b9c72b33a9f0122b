"""Model directories of GGUF files, made once for each content and kept in this user's cache.

Called by `hub.py` before a run has a directory. A directory is complete or absent, and one process
makes it while others wait. Its name is the SHA-256 of the file, which is recorded with the run as
`model.revision`: a run continues when the file has been moved, and is refused if it was changed.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from forge.errors import ConfigError, MachineError, Stalled
from forge.process.machine import free_bytes
from forge.runner.plan.machine import count_cores
from forge.train.gguf import GgufModel, made_dir, read_gguf
from forge.train.handle import run_from_gguf
from forge.views.text.numbers import duration, parameters, size

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from forge.config.schema import ModelTable

MAX_THREADS = 8
WIDTH_BYTES = 2
FREE_FACTOR = 1.1
WAIT_S = 3600.0
"""Time for another process to make the directory."""


def locate_gguf(table: ModelTable, *, say: Callable[[str], None] | None) -> ModelTable:
    """The table with `path` set to the model directory of a GGUF file, made if it is not there, and
    `revision` to the file's SHA-256.

    Raises:
        ConfigError: no such file, another one than the revision, or one that is not read.
        MachineError: the disk has no room.
    """
    path, revision = Path(table.path or "").expanduser().absolute(), table.revision
    if not path.is_file():
        if revision is None or not made_dir(revision).is_dir():
            raise ConfigError(
                f"model.path: {path}: not there, and no model that was made of it; put it back"
            )
        return table.model_copy(update={"path": str(made_dir(revision))})
    model, digest = read_gguf(path), _digest(path)
    if revision not in (None, digest):
        raise ConfigError(
            f"model.path: {path}: its SHA-256 is {digest}, and model.revision names {revision}; "
            "the same file"
        )
    folder = made_dir(digest)
    with alone(folder):
        if not folder.is_dir():
            _make(model, folder, say=say)
    return table.model_copy(update={"path": str(folder), "revision": digest})


def find_made(table: ModelTable) -> Path | None:
    """The model directory of a GGUF file, if there is one."""
    path, digest = Path(table.path or "").expanduser(), table.revision
    if digest is None and path.is_file():
        digest = _digest(path)
    found = made_dir(digest or "")
    return found if found.is_dir() else None


def _make(model: GgufModel, folder: Path, *, say: Callable[[str], None] | None) -> None:
    needed, free = model.num_params * WIDTH_BYTES, free_bytes(folder.parent)
    if needed * FREE_FACTOR > free:
        raise MachineError(
            f"model.path: {model.path}: {size(needed)} to write, {size(free)} free in "
            f"{folder.parent}; set XDG_CACHE_HOME to a larger disk"
        )
    facts = f"{model.architecture}, {model.quantization}, {parameters(model.num_params)} parameters"
    if say:
        say(f"{model.path.name}: {facts}: dequantized once, into {folder}")
    began = time.monotonic()
    threads = min(MAX_THREADS, count_cores())
    try:
        anyio.run(partial(run_from_gguf, model.path, out_dir=folder, threads=threads))
    finally:  # what a child that ended left
        shutil.rmtree(folder.with_name(f".{folder.name}.partial"), ignore_errors=True)
    if say:
        sizes = f"{size(model.num_bytes)} → {size(needed)} in bf16"
        say(f"{model.path.name}: {facts}, {sizes}, {duration(time.monotonic() - began)}")


@contextmanager
def alone(folder: Path) -> Generator[None]:
    """No other process makes this directory. Raises Stalled if one does for an hour."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_suffix(".lock").open("a")
    except OSError as error:
        raise MachineError(f"{folder.parent}: {error.strerror}; XDG_CACHE_HOME names it") from error
    began = time.monotonic()
    with lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() - began > WAIT_S:
                    raise Stalled(f"{lock.name}: held by another process for an hour") from None
                time.sleep(0.2)
        yield


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
