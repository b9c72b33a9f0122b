"""Directories that are complete or absent: written under a temporary name, fsynced, renamed. No
torch.

Used by the trainer children for checkpoints, published weights and new models; the host uses
`find_last_checkpoint` and `is_kept` too.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

STAGING = ".staging"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


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
    """Move a finished directory to its name, replacing an existing one."""
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
    checkpoints and of the last step, for `forge chat RUN@step`. Kept weights are synced."""
    return step % save_every == 0 or step == steps


def find_last_checkpoint(work_dir: Path) -> Path | None:
    """The whole checkpoint with the highest step; None if there is none."""
    found = checkpoints(work_dir)
    return found[-1] if found else None


def checkpoints(work_dir: Path) -> list[Path]:
    """Whole checkpoints, oldest first."""
    if not work_dir.is_dir():
        return []
    steps = {p: int(m[1]) for p in work_dir.iterdir() if (m := _CHECKPOINT.fullmatch(p.name))}
    return sorted(steps, key=lambda p: steps[p])


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
