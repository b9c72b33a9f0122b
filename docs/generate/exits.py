"""The page of exit codes, from the errors of `forge.errors`."""

from __future__ import annotations

from docs.generate.markdown import code, page, table, text
from forge.errors import ChildDied, ConfigError, ForgeError, MachineError, Stalled, Stopped
from forge.exits import BUG, INTERRUPTED

KINDS: tuple[type[ForgeError], ...] = (ConfigError, MachineError, ChildDied, Stalled, Stopped)
ADVICE = {
    ConfigError: "Correct the file or the command line as the message says.",
    MachineError: "Run `forge doctor`; `forge plan` shows what a run needs.",
    ChildDied: "Read the log that the message names, then `forge resume`.",
    Stalled: "Read the message: it names the process that did not answer, or the stage that did "
    "not learn. `forge resume` continues.",
    Stopped: "`forge resume` continues. Ctrl-C ends other commands with this code, too.",
}
INTRO = """\
Every command ends with one of these codes, and every failure with one message on stderr: where,
what was found, what is allowed. A supervisor stores its code and message, too: `attempts` in the
[store](store.md#attempts), `forge status`. [Errors by their text](../how-to/troubleshooting.md).
"""
NOTES = f"""\
`forge judge` ends with 0 for every verdict on a candidate: the verdict is on stdout. A shell
reports {INTERRUPTED} for Ctrl-C, too. With several causes at once, the code is that of the first
one in this order: machine, configuration, child, stalled, stopped.
"""


def exits_page() -> str:
    """All exit codes."""
    rows = [("0", "Done.", "")]
    rows += [(str(kind.exit_code), text(kind.__doc__ or ""), text(ADVICE[kind])) for kind in KINDS]
    bug = "A bug in forge. The traceback is printed."
    rows.insert(-1, (str(BUG), bug, "Report it with the traceback."))
    cells = ((code(number), meaning, advice) for number, meaning, advice in rows)
    return page("Exit codes", INTRO, table(("Code", "Meaning", "What to do"), cells), NOTES)
