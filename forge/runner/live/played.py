"""The steps of rollouts on the live line, read from the store once a second.

A grpo stage starts `follow_steps` beside its work; nothing waits for it. The store is the only
source, so that the console, `forge status` and the monitor show the same numbers.
"""

from __future__ import annotations

import logging
import sqlite3
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from forge.errors import ForgeError
from forge.store.reader import RunReader
from forge.views.run_state import load_played_steps

if TYPE_CHECKING:
    from forge.runner.live.progress import Progress
    from forge.store.layout import RunPaths

log = logging.getLogger(__name__)

READ_EVERY_S = 1.0


async def follow_steps(progress: Progress, paths: RunPaths, *, stage: int) -> None:
    """Keep `progress.played` current until cancelled. A store that cannot be read is logged; its
    writer decides what that means for the run."""
    try:
        reader = await anyio.to_thread.run_sync(RunReader, paths)
        try:
            while True:
                progress.played = await anyio.to_thread.run_sync(
                    lambda: load_played_steps(reader, stage=stage)
                )
                await anyio.sleep(READ_EVERY_S)
        finally:
            reader.close()
    except (sqlite3.Error, ForgeError) as error:
        log.warning("the steps of stage %d are not shown: %s", stage, error)
