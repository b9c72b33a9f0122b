"""Maps an error to an exit code and a message.

Called by the command line, which prints them, and by the supervisor, which stores and sends them.
Exception groups are unwrapped here and nowhere else: of several errors, the one that the user can
fix is the cause.
"""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard, cast

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

if TYPE_CHECKING:
    from collections.abc import Iterator

RANK = (MachineError, ConfigError, ChildDied, Stalled, Stopped, ForgeError)
"""Errors by rank: of several, the first kind here is the cause and the others are consequences."""

CTRL_C = (KeyboardInterrupt, typer.Abort, asyncio.CancelledError)
"""asyncio turns Ctrl-C into a cancellation of its main task."""

DENIALS = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EIO)
"""Refusals of the file system: read-only, no permission, above the limit of a file, a bad disk."""

_OUT_OF_DESCRIPTORS = (
    'no more files can be opened: raise the limit of the process ("ulimit -n") or of the machine '
    '(fs.file-max); all recorded data is safe, continue with "forge resume"'
)
_OUT_OF_MEMORY = (
    "no memory is left for this process, or for another thread: free some, or raise its limit "
    '("ulimit -v", "ulimit -u", that of the container); all recorded data is safe, continue with '
    '"forge resume"'
)
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
    full = next((leaf for leaf in leaves if _is_disk_full(leaf)), None)
    if full is not None and not any(isinstance(leaf, MachineError) for leaf in leaves):
        return Ending(code=MachineError.exit_code, message=_disk_full_message(full))
    denied = next((leaf for leaf in leaves if _is_denied(leaf)), None)
    if denied is not None and not any(isinstance(leaf, MachineError) for leaf in leaves):
        message = f"{denied.filename or 'a file without a name'}: {denied.strerror}"
        return Ending(code=MachineError.exit_code, message=message)
    starved = next((leaf for leaf in leaves if _lacks_descriptors(leaf)), None)
    if starved is not None and not any(isinstance(leaf, MachineError) for leaf in leaves):
        return Ending(code=MachineError.exit_code, message=_OUT_OF_DESCRIPTORS)
    squeezed = next((leaf for leaf in leaves if _lacks_memory(leaf)), None)
    if squeezed is not None and not any(isinstance(leaf, MachineError) for leaf in leaves):
        return Ending(code=MachineError.exit_code, message=_OUT_OF_MEMORY)
    damaged = next((leaf for leaf in leaves if _is_damaged(leaf)), None)
    if damaged is not None:
        message = f"run.db: damaged, incomplete, or copied without its run.db-wal: {damaged}"
        return Ending(code=MachineError.exit_code, message=message)
    for kind in RANK:
        for leaf in leaves:
            if isinstance(leaf, kind):
                return Ending(code=leaf.exit_code, message=str(leaf))
    unnamed = next((leaf for leaf in leaves if _is_too_long(leaf)), None)
    if unnamed is not None:
        message = f"{unnamed.filename!s:.60}…: {unnamed.strerror}"
        return Ending(code=ConfigError.exit_code, message=message)
    if any(isinstance(leaf, RuntimeError) and NO_HOME in str(leaf) for leaf in leaves):
        return Ending(code=MachineError.exit_code, message="no home directory: set HOME")
    missing = next(filter(None, map(_missing_package, leaves)), None)
    if missing is not None:
        return Ending(code=MachineError.exit_code, message=missing)
    return Ending(code=BUG, message=f"{type(leaves[0]).__name__}: {leaves[0]}")


def iter_leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors of a group and its subgroups; any other error alone."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        for inner in group.exceptions:
            yield from iter_leaves(inner)
    else:
        yield error


def _missing_package(error: BaseException) -> str | None:
    """One line about a package of an extra that is not installed; None for another error."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    for extra, modules in EXTRAS.items():
        if name in modules:
            return f"{name} is not installed: {pip_install(extra)}, or make setup"
    return None


def _disk_full_message(error: BaseException) -> str:
    unnamed = "run.db" if isinstance(error, sqlite3.Error) else "stdout, or a file without a name"
    where = getattr(error, "filename", None) or unnamed
    return f'{where}: the disk is full; all recorded data is safe, continue with "forge resume"'


def _is_disk_full(error: BaseException) -> bool:
    return not isinstance(error, ForgeError) and is_disk_full(error)


def _is_denied(error: BaseException) -> TypeGuard[OSError]:
    return isinstance(error, OSError) and error.errno in DENIALS


def _is_too_long(error: BaseException) -> TypeGuard[OSError]:
    return isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG


def _lacks_descriptors(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def _lacks_memory(error: BaseException) -> bool:
    """True for a failed allocation, and for a thread without room for its stack."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_NOMEM
    return isinstance(error, MemoryError) or str(error) == "can't start new thread"


def _is_damaged(error: BaseException) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return isinstance(error, sqlite3.DatabaseError) and code in (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
    )
