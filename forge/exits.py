"""From an error to a line on stderr and an exit code: what `cli.main` calls when a command raises.

Exception groups are unwrapped here and nowhere else: of all that went wrong, what its reader can
mend best is told.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING

import typer

from forge import __version__
from forge.errors import ChildDied, ConfigError, ForgeError, MachineError, Stalled, Stopped
from forge.process.disk import is_disk_full

if TYPE_CHECKING:
    from collections.abc import Iterator

RANK = (MachineError, ConfigError, ChildDied, Stalled, Stopped, ForgeError)
"""When several went wrong together, the first of these is the cause and the others its
consequences.
"""

BUG = 70
USAGE = 2
INTERRUPTED = 130

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""typer brings its own click or uses the installed one; this is the right class in both cases."""


def explain(error: BaseException) -> int:
    """Says what went wrong on stderr; returns the exit code."""
    # typer turns a broken pipe of its own process into SystemExit(1).
    cause = error.__context__ if isinstance(error, SystemExit) else error
    if isinstance(cause, BrokenPipeError):
        # The reader of our output has gone (`forge sql ... | head`); Python must not flush to it
        # again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if isinstance(error, UsageError):
        error.show()  # pyright: ignore[reportAttributeAccessIssue]
        return USAGE
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else BUG
    leaves = list(_leaves(error))
    if any(isinstance(leaf, KeyboardInterrupt | typer.Abort) for leaf in leaves):
        return _tell("stopped by Ctrl-C", code=INTERRUPTED)
    if full := next((leaf for leaf in leaves if _is_disk_full(leaf)), None):
        where = getattr(full, "filename", None)
        return _tell(f"{where or 'run.db'}: the disk is full; what was recorded is safe", code=3)
    for kind in RANK:
        for leaf in leaves:
            if isinstance(leaf, kind):
                return _tell(str(leaf), code=leaf.exit_code)
    traceback.print_exception(error)
    return _tell(f"this is a bug in forge {__version__}; please report the lines above", code=BUG)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _is_disk_full(error: BaseException) -> bool:
    return not isinstance(error, ForgeError) and is_disk_full(error)


def _tell(line: str, *, code: int) -> int:
    sys.stderr.write(f"forge: {line}\n" if "\n" not in line else f"{line}\n")
    return code
