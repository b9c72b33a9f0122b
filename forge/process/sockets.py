"""Where the Unix sockets of a run live: a private directory with a short path, removed at the end.

The kernel cuts a Unix socket's path at 107 bytes, so sockets never lie in a run directory, whose
path is the user's.
"""

from __future__ import annotations

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
LONGEST_NAME = "/longest-child-name.sock"
"""Room that every socket directory must leave for the names in it."""


@contextmanager
def open_socket_dir(*, base: Path | None = None) -> Iterator[Path]:
    """A new 0700 directory under `base` (default: TMPDIR, else /tmp).

    Raises ConfigError when the paths in it would be too long.
    """
    parent = Path(base if base is not None else tempfile.gettempdir())
    check_socket_path(Path(f"{parent}/forge-12345678{LONGEST_NAME}"))
    directory = Path(tempfile.mkdtemp(prefix="forge-", dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def check_socket_path(path: Path) -> Path:
    """Returns `path`, or raises ConfigError when the kernel could not bind it."""
    size = len(os.fsencode(path))
    if size > MAX_SOCKET_PATH_BYTES:
        raise ConfigError(
            f"{path}: a socket path of {size} bytes; the kernel allows {MAX_SOCKET_PATH_BYTES}. "
            f"Set TMPDIR to a shorter directory, e.g. TMPDIR=/tmp"
        )
    return path
