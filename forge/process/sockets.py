# pyright: strict
"""A private directory with a short path for the Unix sockets of a run, removed at the end.

The kernel limits a Unix socket's path to 107 bytes, so sockets are not in the run directory, whose
path the user chooses. The next process removes the directories of killed ones: the lock on the file
`owner` ended with its process.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from forge.errors import ConfigError

MAX_SOCKET_PATH_BYTES = 107
PREFIX = "forge-"
OWNER = "owner"
"""Empty file, locked by the process that owns the directory."""
LONGEST_NAME = "/longest-child-name.sock"
"""Longest name that must fit into every socket directory."""


@contextmanager
def open_socket_dir(*, base: Path | None = None) -> Generator[Path]:
    """A new 0700 directory under `base` (default: TMPDIR, else /tmp). Raises ConfigError if the
    paths in it would be too long."""
    parent = Path(base if base is not None else tempfile.gettempdir())
    check_socket_path(Path(f"{parent}/{PREFIX}12345678{LONGEST_NAME}"))
    with open_private_dir(parent) as directory:
        yield directory


@contextmanager
def open_private_dir(parent: Path, *, prefix: str = PREFIX) -> Generator[Path]:
    """A new 0700 directory in `parent` that ends with this process; if it is killed, with the next
    one that makes a directory of this prefix there."""
    remove_left_dirs(parent, prefix)
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    with (directory / "new").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (directory / "new").rename(directory / OWNER)  # so no process sees the file unlocked
        try:
            yield directory
        finally:
            remove_socket_dir(directory)


def remove_socket_dir(directory: Path) -> None:
    """Remove it with all sockets. For a process that ends without leaving `open_socket_dir`."""
    shutil.rmtree(directory, ignore_errors=True)


def remove_left_dirs(parent: Path | None = None, prefix: str = PREFIX) -> None:
    """Remove this user's directories whose owner is dead."""
    for directory in (parent or Path(tempfile.gettempdir())).glob(f"{prefix}*"):
        try:
            with (directory / OWNER).open() as lock:
                if os.fstat(lock.fileno()).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(directory, ignore_errors=True)
        except OSError:  # it is in use, or not a socket directory
            continue


def check_socket_path(path: Path) -> Path:
    """Return `path`. Raises ConfigError if it is too long for the kernel."""
    size = len(os.fsencode(path))
    if size > MAX_SOCKET_PATH_BYTES:
        raise ConfigError(
            f"{path}: a socket path of {size} bytes; the kernel allows {MAX_SOCKET_PATH_BYTES}. "
            f"Set TMPDIR to a shorter directory, e.g. TMPDIR=/tmp"
        )
    return path
