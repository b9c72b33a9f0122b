"""`python3 -m forge.install`: makes a complete `.venv`, or prints what prevents it.

    stamp fresh? → machine checked → venv → torch → dependencies → llama.cpp → forge → stamp

Exit code: 0 done, 3 the machine lacks something (one line per fault), 130 interrupted. This file
must load under an old Python, to report that it is too old; other modules are imported afterwards.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON_AT_LEAST = (3, 11)


def find_unsupported(platform, version):
    # type: (str, tuple) -> str | None
    """One line about an unsupported system or Python, or None."""
    if not platform.startswith("linux"):
        return "forge runs on Linux only; this is {}".format(platform)
    if tuple(version[:2]) < PYTHON_AT_LEAST:
        return (
            "Python {}.{} is too old, forge needs {}.{} or newer; if one is installed:"
            " make setup PYTHON=python{}.{}"
        ).format(*version[:2], *PYTHON_AT_LEAST, *PYTHON_AT_LEAST)
    return None


@contextlib.contextmanager
def only_setup_here():
    """Waits for other setups of this checkout; the lock ends with the process."""
    import fcntl

    with (ROOT / "pyproject.toml").open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.stderr.write("setup: waiting for another make in this checkout\n")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main():
    # type: () -> int
    """Runs setup; prints errors and returns the exit code."""
    unsupported = find_unsupported(sys.platform, sys.version_info)
    if unsupported:
        return fail(unsupported)
    from forge.errors import MachineError
    from forge.install.setup import setup

    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        with only_setup_here():
            setup(ROOT, os.environ)
    except MachineError as error:
        return fail(str(error))
    except KeyboardInterrupt:
        sys.stderr.write("\nsetup: interrupted; the next make setup continues from here\n")
        return 130
    return 0


def fail(message):
    # type: (str) -> int
    """Prints the message, and returns exit code 3."""
    sys.stderr.write("setup: " + message.replace("\n", "\nsetup: ") + "\n")
    return 3


if __name__ == "__main__":
    sys.exit(main())
