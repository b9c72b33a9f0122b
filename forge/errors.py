"""Errors with a message for the user. `forge/exits.py` maps each to one line and an exit code.

    ForgeError
    ├── ConfigError     2   the experiment file or the command line is wrong
    ├── MachineError    3   the machine lacks something: GPU, memory, disk, an engine
    │   └── NoRoom      3   no other machine has room now
    ├── ChildDied       4   a child process ended unexpectedly
    ├── Stalled         5   a deadline passed without an answer, or learning has no signal
    └── Stopped       130   the user stopped the run, which is saved

Any other exception is a bug in forge and keeps its traceback (exit 70).
"""

DISTRIBUTION = "forge-kernels"
"""Name of forge on PyPI, where `forge` is another project."""


def pip_install(extra: str) -> str:
    """Command in messages that installs an extra of pyproject.toml."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


class ForgeError(Exception):
    """Base of all errors with a message for the user, and the exit code of the process."""

    exit_code = 70


class ConfigError(ForgeError):
    """The user's input cannot be run. The message has one line per mistake:
    `file:line: key: found; allowed`."""

    exit_code = 2


class MachineError(ForgeError):
    """The machine lacks something: a GPU, memory, disk space, an installed engine."""

    exit_code = 3


class NoRoom(MachineError):
    """No machine of the cluster has room for a process now; one may have later."""


class ChildDied(ForgeError):
    """A child process ended unexpectedly. The message has its name, its exit reason and the last
    lines of its log."""

    exit_code = 4


class Stalled(ForgeError):
    """A deadline passed without an answer. The message has the silent process, the request and the
    time."""

    exit_code = 5


class Stopped(ForgeError):
    """The user stopped the run after a checkpoint. The message has the command that resumes it."""

    exit_code = 130


def unwritable(what: str, error: OSError) -> ForgeError:
    """The error for an output that the user named: the user's if no such path can be, else the
    machine's."""
    is_path = isinstance(error, FileNotFoundError | FileExistsError | NotADirectoryError)
    kind = ConfigError if is_path or isinstance(error, IsADirectoryError) else MachineError
    return kind(f"{what}: cannot be written: {error.strerror}")
