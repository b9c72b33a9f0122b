"""The command line. Each command calls a function of another room, imported only when it runs.

Exit codes: 0 done, 2 wrong input, 3 machine, 4 a child died, 5 stalled, 70 a bug (with traceback),
130 stopped by the user.
"""

from __future__ import annotations

import logging
import sys
from io import TextIOWrapper

# isort: off
from forge.cli import running, judging, results, exporting, data, installation
from forge.cli.options import app, opened

# isort: on
from forge.errors import ConfigError, Stopped

__all__ = ["app", "main", "run_command"]

COMMANDS = (running, judging, results, exporting, data, installation)
"""Modules that add their commands to the app when imported, in the order of --help."""


def main() -> None:
    """Runs a command and exits with its code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # None if it is closed
            stream.reconfigure(errors="replace")  # Latin-1 has no ┃ or →
    sys.exit(run_command(sys.argv[1:]))


def run_command(argv: list[str]) -> int:
    """Runs one command line and returns its exit code; errors are printed on stderr."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        if sys.stdout is None:  # the first file to be opened would get its number and the output
            raise ConfigError("stdout is closed; >/dev/null drops the output")
        with opened:
            code = app(argv, prog_name="forge", standalone_mode=False)
        sys.stdout.flush()
        if code == Stopped.exit_code:  # typer's answer to Ctrl-C, without a line
            raise KeyboardInterrupt
    except BaseException as error:
        from forge.cli.explaining import explain

        return explain(error)
    return code if isinstance(code, int) else 0
