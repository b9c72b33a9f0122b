"""Where the Unix sockets of a run live: a private directory with a short path, removed at the end.

The kernel cuts a Unix socket's path at 107 bytes, so sockets never lie in a run directory, whose
path is the user's. What a killed process left behind, the next one removes: its owner's lock on
`owner` in it has ended with it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from forge.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_SOCKET_PATH_BYTES = 107
PREFIX = "forge-"
OWNER = "owner"
"""Empty file, locked by the process that the directory belongs to."""
LONGEST_NAME = "/longest-child-name.sock"
"""Room that every socket directory must leave for the names in it."""


@contextmanager
def open_socket_dir(*, base: Path | None = None) -> Iterator[Path]:
    """A new 0700 directory under `base` (default: TMPDIR, else /tmp).

    Raises ConfigError when the paths in it would be too long.
    """
    parent = Path(base if base is not None else tempfile.gettempdir())
    check_socket_path(Path(f"{parent}/{PREFIX}12345678{LONGEST_NAME}"))
    _sweep(parent)
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    with (directory / "new").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (directory / "new").rename(directory / OWNER)  # nobody sees the file without its lock
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def _sweep(parent: Path) -> None:
    """Remove our own directories whose owner is dead; those of other users are theirs."""
    for directory in parent.glob(f"{PREFIX}*"):
        try:
            with (directory / OWNER).open() as lock:
                if os.fstat(lock.fileno()).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(directory, ignore_errors=True)
        except OSError:  # it is owned, or it is none of these
            continue


def check_socket_path(path: Path) -> Path:
    """Returns `path`, or raises ConfigError when the kernel could not bind it."""
    size = len(os.fsencode(path))
    if size > MAX_SOCKET_PATH_BYTES:
        raise ConfigError(
            f"{path}: a socket path of {size} bytes; the kernel allows {MAX_SOCKET_PATH_BYTES}. "
            f"Set TMPDIR to a shorter directory, e.g. TMPDIR=/tmp"
        )
    return path
