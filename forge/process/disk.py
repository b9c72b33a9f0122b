"""Room on the disk: asked before something is written, and recognised when it has run out."""

from __future__ import annotations

import errno
import os
import sqlite3
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def free_bytes(path: Path) -> int:
    """Bytes that we may still write under `path`, which need not exist yet."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize


def is_disk_full(error: BaseException) -> bool:
    """Whether an error says that a disk or a quota is full."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    if isinstance(error, sqlite3.Error):
        return "disk is full" in str(error)
    return False
