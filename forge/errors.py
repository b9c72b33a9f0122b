"""Errors raised on purpose, by who can fix them. `cli.py` turns each into one line and an exit
code.

    ForgeError
    ├── ConfigError     2   the experiment file or the command line
    ├── MachineError    3   the machine: GPU, memory, disk, a missing engine
    ├── ChildDied       4   a child process ended when it should not have
    ├── Stalled         5   somebody was silent past a deadline, or learning has no signal
    └── Stopped       130   the user asked for it; the run is saved

Everything else is our bug and keeps its traceback (exit 70).
"""


class ForgeError(Exception):
    """Base of every error with a message meant for the user. `exit_code` is what the process
    returns."""

    exit_code = 70


class ConfigError(ForgeError):
    """What the user wrote cannot be run. The message has one `file:line: key: found; allowed`
    line a mistake."""

    exit_code = 2


class MachineError(ForgeError):
    """The machine cannot do it: no such GPU, no memory, disk full, an engine that is not
    installed."""

    exit_code = 3


class ChildDied(ForgeError):
    """A child process ended unasked. The message names it, its exit reason and the last lines of
    its log."""

    exit_code = 4


class Stalled(ForgeError):
    """A wait passed its deadline. The message names who was silent, for how long, and what it
    was asked."""

    exit_code = 5


class Stopped(ForgeError):
    """The user stopped the run after a checkpoint. The message has the line that resumes it."""

    exit_code = 130
