"""Turns of tests in a parallel run: many at once, or one alone.

Workers are processes, so turns are locks on two files: every running test holds `room` shared, one
that runs alone holds it exclusively. `door` is held while a test waits for the room, so that tests
that start later queue behind one that waits to be alone. Locks end with their process.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def take_turn(config: pytest.Config, *, is_alone: bool) -> Iterator[None]:
    """Runs the body beside other tests, or with `is_alone` while no other test runs."""
    if not hasattr(config, "workerinput"):  # not a worker of pytest-xdist
        yield
        return
    base = Path(config.rootpath) / ".pytest_cache"
    base.mkdir(exist_ok=True)
    with open(base / "door", "w") as door, open(base / "room", "w") as room:
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            # Explicitly: a forked child that is still alive shares the lock, not only the file.
            fcntl.flock(room, fcntl.LOCK_UN)
