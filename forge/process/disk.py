"""Room on the disk: asked before something is written, and recognised when it has run out."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING

from forge.errors import MachineError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def free_bytes(path: Path) -> int:
    """Bytes that we may still write under `path`, which need not exist yet."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize


def require_free(path: Path, *, min_bytes: int, what: str) -> None:
    """Raises MachineError unless `min_bytes` are free under `path`. `what` names who needs them."""
    free = free_bytes(path)
    if free < min_bytes:
        raise MachineError(
            f"{path}: {what} needs {min_bytes / 1e9:.1f} GB of disk; {free / 1e9:.1f} GB are free. "
            f"Free some, or put runs elsewhere with --set store.dir=DIR"
        )


def is_disk_full(error: BaseException) -> bool:
    """Whether an error says that a disk or a quota is full."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    if isinstance(error, sqlite3.Error):
        return "disk is full" in str(error)
    return False


@contextmanager
def disk_faults(path: Path) -> Iterator[None]:
    """Turns a full disk inside the block into a MachineError that names `path`."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        if not is_disk_full(error):
            raise
        raise MachineError(f"{path}: the disk is full; nothing more can be recorded") from error
