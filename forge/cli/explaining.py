"""Prints what went wrong on stderr, and returns the exit code. Called by `cli.run_command`."""

from __future__ import annotations

import select
import sys
import traceback
from contextlib import suppress
from typing import Any, cast

import typer

from forge.exits import BUG, Ending, ending_of, iter_leaves
from forge.version import __version__
from forge.views.text import printable, redirect_to_null

USAGE = 2

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""typer includes its own click or uses the installed one; this is the right class either way."""


def explain(error: BaseException) -> int:
    """Prints an error on stderr, with a traceback if it is a bug; returns the exit code."""
    # typer turns its own broken pipe into SystemExit(1).
    cause = error.__context__ if isinstance(error, SystemExit) else error
    if cause is not None and _is_closed_stdout(cause):  # `forge sql ... | head`
        redirect_to_null(sys.stdout)
        return 0
    if isinstance(error, UsageError):
        cast("Any", error).show()
        return USAGE
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else BUG
    ending = ending_of(error)
    if not ending.is_bug:
        return _print(ending)
    with suppress(OSError):
        traceback.print_exception(error)
    message = f"this is a bug in forge {__version__}; please report the lines above"
    return _print(Ending(code=BUG, message=message))


def _is_closed_stdout(error: BaseException) -> bool:
    """True if nothing went wrong except that the reader of stdout has gone."""
    if not all(isinstance(leaf, BrokenPipeError) for leaf in iter_leaves(error)):
        return False
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _print(ending: Ending) -> int:
    message = printable(ending.message)  # it may contain a file's name
    is_named = "\n" in message or message.startswith("forge ")  # by files, or by the command
    line = message if is_named else f"forge: {message}"
    if sys.stderr is None:  # closed before the start
        return ending.code
    try:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    except OSError:  # the reader of stderr has gone; the exit code remains
        redirect_to_null(sys.stderr)
    return ending.code
