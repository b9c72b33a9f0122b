"""From an error to a line and an exit code: `cli.main` prints it when a command raises, a run
records it with its attempt.

Exception groups are unwrapped here and nowhere else: of all that went wrong, what its reader can
mend best is told.
"""

from __future__ import annotations

import asyncio
import io
import os
import select
import sqlite3
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

import typer

from forge import __version__
from forge.errors import ChildDied, ConfigError, ForgeError, MachineError, Stalled, Stopped
from forge.process.disk import is_disk_full
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

RANK = (MachineError, ConfigError, ChildDied, Stalled, Stopped, ForgeError)
"""When several went wrong together, the first of these is the cause and the others its
consequences.
"""

CTRL_C = (KeyboardInterrupt, typer.Abort, asyncio.CancelledError)
"""asyncio turns Ctrl-C into a cancellation of its main task."""

BUG = 70
USAGE = 2
INTERRUPTED = 130

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""typer brings its own click or uses the installed one; this is the right class in both cases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What an error comes to."""

    code: int
    words: str

    @property
    def is_bug(self) -> bool:
        return self.code == BUG

    @property
    def is_stop(self) -> bool:
        return self.code == INTERRUPTED


def ending_of(error: BaseException) -> Ending:
    """The exit code of an error, of the worst in a group, and the words that tell it."""
    leaves = list(_leaves(error))
    if any(isinstance(leaf, CTRL_C) for leaf in leaves):
        return Ending(code=INTERRUPTED, words="stopped by Ctrl-C")
    full = next((leaf for leaf in leaves if _is_disk_full(leaf)), None)
    if full is not None and not any(isinstance(leaf, MachineError) for leaf in leaves):
        nameless = (
            "run.db" if isinstance(full, sqlite3.Error) else "stdout, or a file without a name"
        )
        where = getattr(full, "filename", None) or nameless
        words = f'{where}: the disk is full; what was recorded is safe, "forge resume" goes on'
        return Ending(code=MachineError.exit_code, words=words)
    damaged = next((leaf for leaf in leaves if _is_damaged(leaf)), None)
    if damaged is not None:
        words = f"run.db: damaged, or copied without its run.db-wal or in part: {damaged}"
        return Ending(code=MachineError.exit_code, words=words)
    for kind in RANK:
        for leaf in leaves:
            if isinstance(leaf, kind):
                return Ending(code=leaf.exit_code, words=str(leaf))
    return Ending(code=BUG, words=f"{type(leaves[0]).__name__}: {leaves[0]}")


def explain(error: BaseException) -> int:
    """Says what went wrong on stderr; returns the exit code."""
    # typer turns a broken pipe of its own process into SystemExit(1).
    cause = error.__context__ if isinstance(error, SystemExit) else error
    if cause is not None and _is_closed_stdout(cause):  # `forge sql ... | head`
        let_go(sys.stdout)
        return 0
    if isinstance(error, UsageError):
        error.show()  # pyright: ignore[reportAttributeAccessIssue]
        return USAGE
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else BUG
    ending = ending_of(error)
    if not ending.is_bug:
        return _tell(ending)
    with suppress(OSError):
        traceback.print_exception(error)
    words = f"this is a bug in forge {__version__}; please report the lines above"
    return _tell(Ending(code=BUG, words=words))


def let_go(stream: TextIO) -> None:
    """The reader of a stream has gone: it leads nowhere from now on, also for what Python flushes
    to it at exit."""
    with suppress(io.UnsupportedOperation):  # a stream of Python's own, without a descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, stream.fileno())
        finally:
            os.close(null)


def _is_closed_stdout(error: BaseException) -> bool:
    """Whether all that went wrong is that nobody reads our output any more."""
    if not all(isinstance(leaf, BrokenPipeError) for leaf in _leaves(error)):
        return False
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _is_disk_full(error: BaseException) -> bool:
    return not isinstance(error, ForgeError) and is_disk_full(error)


def _is_damaged(error: BaseException) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return isinstance(error, sqlite3.DatabaseError) and code in (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
    )


def _tell(ending: Ending) -> int:
    words = printable(ending.words)  # a file's name may be in it
    line = words if "\n" in words else f"forge: {words}"
    if sys.stderr is None:  # closed before we started
        return ending.code
    try:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    except OSError:  # nobody is left to be told; the exit code still is
        let_go(sys.stderr)
    return ending.code
