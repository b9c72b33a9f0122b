"""Maps an error to an exit code and a message.

Called by the command line, which prints them, and by the supervisor, which stores and sends them.
Exception groups are unwrapped here and nowhere else: of several errors, the one that the user can
fix is the cause.
"""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import typer

from forge.errors import (
    ChildDied,
    ConfigError,
    ForgeError,
    MachineError,
    Stalled,
    Stopped,
    pip_install,
)
from forge.process.machine import is_disk_full

RANK = (MachineError, ConfigError, ChildDied, Stalled, Stopped, ForgeError)
"""Errors by rank: of several, the first kind here is the cause and the others are consequences."""

CTRL_C = (KeyboardInterrupt, typer.Abort, asyncio.CancelledError)
"""asyncio turns Ctrl-C into a cancellation of its main task."""

DENIALS = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EIO)
"""Refusals of the file system: read-only, no permission, above the limit of a file, a bad disk."""

EXTRAS = {
    "judge": ("torch", "triton"),
    "train": (
        "textual", "textual_plotext", "sqlite_utils", "xxhash", "matplotlib", "pygments", "regex",
        "tokenizers", "safetensors", "huggingface_hub", "pyarrow", "transformers", "trl", "peft",
        "datasets",
    ),
}  # fmt: skip
"""Modules of the packages in the extras of pyproject.toml, by extra."""
NO_HOME = "Could not determine home directory"
"""Text of pathlib's error for a user without HOME and without an account."""
CONTINUE = 'all recorded data is safe, continue with "forge resume"'
BUG = 70
INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Exit code and message of a command or an attempt that has ended."""

    code: int
    message: str

    @property
    def is_bug(self) -> bool:
        """True if the error is a bug in forge."""
        return self.code == BUG

    @property
    def is_stop(self) -> bool:
        """True if the user stopped it."""
        return self.code == INTERRUPTED


def ending_of(error: BaseException) -> Ending:
    """The exit code and message of an error, or of the cause among a group of errors."""
    leaves = list(iter_leaves(error))
    if any(isinstance(leaf, CTRL_C) for leaf in leaves):
        return Ending(code=INTERRUPTED, message="stopped by Ctrl-C")
    is_named = any(isinstance(leaf, MachineError) for leaf in leaves)
    for find in (_damaged,) if is_named else (_full_disk, _denied, _starved, _damaged):
        if found := [message for leaf in leaves if (message := find(leaf))]:
            return Ending(code=MachineError.exit_code, message=found[0])
    for kind in RANK:
        for leaf in leaves:
            if isinstance(leaf, kind):
                return Ending(code=leaf.exit_code, message=str(leaf))
    for leaf in leaves:
        if isinstance(leaf, OSError) and leaf.errno == errno.ENAMETOOLONG:
            message = f"{leaf.filename!s:.60}…: {leaf.strerror}"
            return Ending(code=ConfigError.exit_code, message=message)
    if missing := [message for leaf in leaves if (message := _missing(leaf))]:
        return Ending(code=MachineError.exit_code, message=missing[0])
    return Ending(code=BUG, message=f"{type(leaves[0]).__name__}: {leaves[0]}")


def iter_leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors of a group and its subgroups; any other error alone."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        for inner in group.exceptions:
            yield from iter_leaves(inner)
    else:
        yield error


def _missing(error: BaseException) -> str:
    """A package of an extra that is not installed, or no home directory; empty if neither."""
    if isinstance(error, RuntimeError) and NO_HOME in str(error):
        return "no home directory: set HOME"
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    for extra, modules in EXTRAS.items():
        if name in modules:
            return f"{name} is not installed: {pip_install(extra)}, or make setup"
    return ""


def _full_disk(error: BaseException) -> str:
    if isinstance(error, ForgeError) or not is_disk_full(error):
        return ""
    unnamed = "run.db" if isinstance(error, sqlite3.Error) else "stdout, or a file without a name"
    where = getattr(error, "filename", None) or unnamed
    return f"{where}: the disk is full; {CONTINUE}"


def _denied(error: BaseException) -> str:
    if not isinstance(error, OSError) or error.errno not in DENIALS:
        return ""
    return f"{error.filename or 'a file without a name'}: {error.strerror}"


def _starved(error: BaseException) -> str:
    """No file descriptors, a failed allocation, or a thread without room for its stack."""
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.EMFILE, errno.ENFILE):
        return (
            'no more files can be opened: raise the limit of the process ("ulimit -n") or of the '
            f"machine (fs.file-max); {CONTINUE}"
        )
    is_squeezed = isinstance(error, MemoryError) or str(error) == "can't start new thread"
    if is_squeezed or number == errno.ENOMEM or _sqlite_code(error) == sqlite3.SQLITE_NOMEM:
        return (
            "no memory is left for this process, or for another thread: free some, or raise its "
            f'limit ("ulimit -v", "ulimit -u", that of the container); {CONTINUE}'
        )
    return ""


def _damaged(error: BaseException) -> str:
    if _sqlite_code(error) not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return ""
    return f"run.db: damaged, incomplete, or copied without its run.db-wal: {error}"


def _sqlite_code(error: BaseException) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF if isinstance(error, sqlite3.Error) else 0
