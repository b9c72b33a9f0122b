"""Checkpoints that are known to be whole: a manifest with size and hash of every file, written
last. No torch.

    trainer ── files ── manifest.json ── rename ──▶ checkpoint-N      N is a step of the stage
    supervisor, trainer ── find_damage ──▶ "" or what is wrong        before anything is loaded

A directory (checkpoint, published weights, new model) is complete or absent: written under a
temporary name, fsynced, renamed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from forge.errors import MachineError

MANIFEST = "manifest.json"
"""File of a checkpoint: `{"files": {name: {"bytes": n, "xxh3": hex}}}`."""
BLOCK_BYTES = 1 << 22
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """The checkpoint that a stage continues from."""

    path: Path | None = None
    step: int = 0
    damages: tuple[str, ...] = ()
    """Newer checkpoints that cannot be used, newest first: path and what is wrong."""


def write_manifest(folder: Path) -> None:
    """Record size and hash of every file of a directory. Call it last."""
    files = {
        name: {"bytes": (folder / name).stat().st_size, "xxh3": _hash(folder / name)}
        for name in sorted(_files_of(folder))
    }
    (folder / MANIFEST).write_text(json.dumps({"files": files}, indent=1) + "\n")


def find_damage(folder: Path) -> str:
    """The first damage of a checkpoint, beginning with the file; empty if it is whole. Reads it
    completely."""
    if not folder.is_dir():
        return "missing"
    try:
        files = json.loads((folder / MANIFEST).read_bytes())["files"]
        wanted = {str(name): (int(e["bytes"]), str(e["xxh3"])) for name, e in files.items()}
    except FileNotFoundError:
        return f"{MANIFEST}: missing"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST}: not the JSON that a trainer writes"
    try:
        for name, (num_bytes, digest) in wanted.items():
            path = folder / name
            if not path.is_file():
                return f"{name}: missing"
            if path.stat().st_size != num_bytes:
                return f"{name}: {path.stat().st_size} of {num_bytes} bytes"
            if _hash(path) != digest:
                return f"{name}: its content has changed"
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return ""


def require_whole(folder: Path) -> None:
    if damage := find_damage(folder):
        raise MachineError(f"{folder}: {damage}")


def checkpoints(work_dir: Path) -> dict[int, Path]:
    """Directories of checkpoints by step, oldest first, whole or not."""
    if not work_dir.is_dir():
        return {}
    found = {int(m[1]): p for p in work_dir.iterdir() if (m := _CHECKPOINT.fullmatch(p.name))}
    return dict(sorted(found.items()))


def checkpoint_dir(work_dir: Path, step: int) -> Path:
    return work_dir / f"checkpoint-{step}"


def find_resume_point(work_dir: Path, *, last_saved: int = 0) -> ResumePoint:
    """The newest whole checkpoint of a stage, else its beginning; and what is wrong with newer
    ones. `last_saved`: Step of the last checkpoint that the trainer announced."""
    found = checkpoints(work_dir)
    steps = sorted({*found, last_saved} - {0}, reverse=True)
    damages: list[str] = []
    for step in steps:
        path = checkpoint_dir(work_dir, step)
        damage = find_damage(path)
        if not damage:
            return ResumePoint(path=path, step=step, damages=tuple(damages))
        damages.append(f"{work_dir.parent.name}/{work_dir.name}/{path.name}: {damage}")
    return ResumePoint(damages=tuple(damages))


def remove_checkpoints(work_dir: Path, steps: Iterable[int]) -> None:
    """Delete checkpoints, the newest first: a kill in between leaves the older ones."""
    for step in sorted(steps, reverse=True):
        shutil.rmtree(checkpoint_dir(work_dir, step))


def _files_of(folder: Path) -> list[str]:
    return [
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path != folder / MANIFEST
    ]


def _hash(path: Path) -> str:
    import xxhash  # 10 GB/s, ten times as fast as hashlib's: a checkpoint may have 100 GB

    digest = xxhash.xxh3_128()
    with path.open("rb") as stream:
        while block := stream.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


STAGING = ".staging"


@contextmanager
def whole_dir(path: Path, *, sync: bool = True) -> Generator[Path]:
    """An empty directory to fill; it replaces `path` when the block ends without an error.

    `sync = False` if it need not survive a power cut (weights deleted after the next publish).
    """
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    put_in_place(partial, path, sync=sync)


def put_in_place(partial: Path, path: Path, *, sync: bool = True) -> None:
    if sync:
        _sync_tree(partial)
    if path.exists():
        old = path.with_name(f".{path.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
        partial.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    else:
        partial.rename(path)
    if sync:
        _sync(path.parent)


def is_kept(step: int, *, steps: int, save_every: int) -> bool:
    """True if the weights of a step are kept when the next version replaces them: those of
    checkpoints and of the last step, for `forge eval RUN:STEP`. Kept weights are synced."""
    return step % save_every == 0 or step == steps


def link_or_copy(source: Path | str, target: Path | str) -> None:
    """Hard link, or copy without links on the file system: for files that never change. Of a
    symbolic link, as in the hub's cache, the file itself."""
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        shutil.copyfile(source, target)


def _sync_tree(path: Path) -> None:
    for folder, _, names in os.walk(path):
        for name in names:
            _sync(Path(folder, name))
        _sync(Path(folder))


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
