"""`python3 -m forge.install`: makes `.venv` with everything in it, or says why it cannot.

    stamp fresh? → machine checked → venv → torch → dependencies → llama.cpp → forge → stamp

Exit code: 0 done, 3 the machine cannot (one line a fault), 130 interrupted. This file must load
under an old Python, to say that it is too old: the rest is imported only after that check.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON_AT_LEAST = (3, 11)


def find_hopeless(platform, version):
    # type: (str, tuple) -> str | None
    """The one line that ends setup before anything of ours is imported, or None."""
    if not platform.startswith("linux"):
        return "forge runs on Linux only; this is {}".format(platform)
    if tuple(version[:2]) < PYTHON_AT_LEAST:
        return (
            "Python {}.{} is too old, forge needs {}.{} or newer; with another one installed:"
            " make setup PYTHON=python{}.{}"
        ).format(*version[:2], *PYTHON_AT_LEAST, *PYTHON_AT_LEAST)
    return None


@contextlib.contextmanager
def only_setup_here():
    """Two `make` in one checkout take turns; the lock ends with the process."""
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
    """Turns what `setup` raises into lines and an exit code."""
    hopeless = find_hopeless(sys.platform, sys.version_info)
    if hopeless:
        return fail(hopeless)
    from forge.errors import MachineError
    from forge.install.setup import setup

    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        with only_setup_here():
            setup(ROOT, os.environ)
    except MachineError as error:
        return fail(str(error))
    except KeyboardInterrupt:
        sys.stderr.write("\nsetup: interrupted; the next make setup goes on from here\n")
        return 130
    return 0


def fail(message):
    # type: (str) -> int
    """Exit code 3."""
    sys.stderr.write("setup: " + message.replace("\n", "\nsetup: ") + "\n")
    return 3


if __name__ == "__main__":
    sys.exit(main())
