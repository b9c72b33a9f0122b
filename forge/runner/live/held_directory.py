"""Notices that the run directory is moved, deleted or replaced while its run writes to it.

The supervisor and its children use absolute paths, so such a run cannot go on: it ends, and can be
resumed from where the directory is now. Its rows still reach the store, which holds its files open.
"""

from __future__ import annotations

import os
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from forge.errors import MachineError
from forge.store.layout import RunPaths

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

LOOK_EVERY_S = 0.2
"""Seconds between two looks, of 5 us each. What children write between a move and a look goes into
a new directory of the old name."""


class HeldDirectory:
    """A run directory held open."""

    def __init__(self, paths: RunPaths, fd: int) -> None:
        self._start, self._fd = paths, fd

    @property
    def is_moved(self) -> bool:
        """True if its path no longer leads to it."""
        try:
            found = os.stat(self._start.root)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # a network disk may refuse for a moment
            return False
        # Some file systems give a directory another inode now and then; its name is kept.
        return not os.path.samestat(found, os.fstat(self._fd)) and self._name() != self._start.root

    @property
    def paths(self) -> RunPaths:
        """Paths of the directory where it is now; as at first if it was deleted."""
        now = self._name()
        return RunPaths(now) if self.is_moved and now.is_dir() else self._start

    def error(self) -> MachineError:
        """The error of a run whose directory has moved."""
        now, before = self.paths.root, self._start.root
        if now == before:
            return MachineError(
                f"{before}: deleted, or moved to another disk, while its run wrote to it; "
                '"forge resume" continues a moved run from its new place'
            )
        return MachineError(
            f"{before}: moved to {now} while its run wrote to it; what was recorded is safe, "
            f'training since the last checkpoint is done again. "forge resume {now}" continues'
        )

    async def watch(self, kill_all: Callable[[], None]) -> None:
        """Raises MachineError once the directory has moved. `kill_all` ends the children at once:
        they would write to the old path."""
        while True:
            await anyio.sleep(LOOK_EVERY_S)
            if self.is_moved:
                kill_all()
                raise self.error()

    @contextmanager
    def explaining(self) -> Generator[None]:
        """Raises the move instead of any error in the block, of which it is the cause."""
        try:
            yield
        except Exception as error:
            if not self.is_moved:
                raise
            raise self.error() from error

    def _name(self) -> Path:
        return Path(os.readlink(f"/proc/self/fd/{self._fd}"))


@asynccontextmanager
async def hold_directory(paths: RunPaths) -> AsyncGenerator[HeldDirectory]:
    """Holds a run directory open while inside, and explains errors there."""
    fd = os.open(paths.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        home = HeldDirectory(paths, fd)
        with home.explaining():
            yield home
    finally:
        os.close(fd)
