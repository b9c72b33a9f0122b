"""Directories that are complete or absent: written under a temporary name, fsynced, renamed. No
torch.

Used by the trainer children for checkpoints, published weights and new models; the host uses
`is_kept` too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

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


def link_or_copy(source: Path | str, target: Path | str) -> None:
    """Hard link, or copy without links on the file system: for files that never change."""
    try:
        os.link(source, target)
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
