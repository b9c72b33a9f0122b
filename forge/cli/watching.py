"""`forge tui [RUN]` or `forge watch [RUN]`: the terminal monitor, which only reads the run."""

from __future__ import annotations

import logging
import os
import sys

from forge.cli.options import RUNS, RunName, Store, app, find
from forge.errors import ConfigError


@app.command("tui")
def tui_command(run: RunName = "last", store: Store = RUNS) -> int:
    """Monitor a run in the terminal, live or after its end. Also: watch."""
    _require_terminal()
    paths = find(run, store)
    from forge.exits import BUG
    from forge.tui.app import WatchApp

    # A warning on stderr would overwrite the screen.
    logging.basicConfig(handlers=[logging.NullHandler()], force=True)
    watch = WatchApp(paths)
    watch.run()
    code = watch.return_code or 0
    return BUG if code == 1 else code  # the traceback was printed when the screen closed


app.command("watch", hidden=True)(tui_command)


def _require_terminal() -> None:
    is_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    if not is_terminal or os.environ.get("TERM") == "dumb":
        raise ConfigError(
            "forge tui: needs a terminal; without one, "
            '"forge status RUN", "forge show RUN" and "forge logs -f RUN" print text'
        )
