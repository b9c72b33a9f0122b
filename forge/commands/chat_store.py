"""The store of one chat: `<store>/chats/<run>-<n>/`, a run directory of its own.

Opened by `chat`. The run that is asked is only read, also while it trains, and any number of chats
may go on at once. The chat's event names the run and the policy version that answered; `forge show
chats/<run>-<n>` and every other command that reads a run read it too.
"""

# pyright: strict
from __future__ import annotations

import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from forge.exits import INTERRUPTED, Ending, ending_of, iter_leaves
from forge.records import AttemptEnd, Event
from forge.runner.attempt import describe_attempt
from forge.store.identity import read_identity
from forge.store.layout import RunPaths, create_run
from forge.store.ownership import open_run_lock
from forge.store.write.writer import open_writer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from forge.config.schema import StoreTable
    from forge.process.devices import Gpu
    from forge.serve.weights import Weights
    from forge.store.write.writer import Writer

FOLDER = "chats"
ATTEMPT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatStore:
    """An open store."""

    paths: RunPaths
    writer: Writer
    work_dir: Path
    """Place for whole models that an engine converts, too large for the /tmp of sockets; deleted at
    the end."""

    @property
    def log_dir(self) -> Path:
        """Logs of engine and judge."""
        return self.paths.logs(ATTEMPT)


@asynccontextmanager
async def open_chat_store(
    asked: RunPaths,
    weights: Weights,
    table: StoreTable,
    *,
    store_dir: Path,
    seed: int,
    gpus: Sequence[Gpu],
) -> AsyncGenerator[ChatStore]:
    """Creates the store of a chat with a run, and records how the chat ended: also one that Ctrl-C
    or a closed pipe cuts off.

    Raises:
        MachineError: `store_dir` cannot be written.
    """
    paths = create_run(asked.name, store_dir=store_dir / FOLDER)
    with open_run_lock(paths):
        async with open_writer(paths, table) as writer:
            await writer.put(
                await anyio.to_thread.run_sync(
                    lambda: describe_attempt(ATTEMPT, seed=seed, gpus=gpus)
                ),
                _event(asked, weights),
            )
            try:
                with TemporaryDirectory(prefix=".chat-", dir=paths.root) as work_dir:
                    yield ChatStore(paths=paths, writer=writer, work_dir=Path(work_dir))
            except BaseException as error:
                await _end(writer, _ending(error))
                raise
            await _end(writer, Ending(code=0, message="done"))


def _event(asked: RunPaths, weights: Weights) -> Event:
    identity = read_identity(asked)
    return Event(
        at=time.time(),
        kind="chat",
        message=f"with {asked.name}, policy version {weights.version}",
        data={
            "run": asked.name,
            "run_id": None if identity is None else identity.id,
            "path": str(asked.root),
            "policy_version": weights.version,
            "weights": weights.to_json(),
        },
    )


def _ending(error: BaseException) -> Ending:
    if all(isinstance(leaf, BrokenPipeError) for leaf in iter_leaves(error)):  # chat | head
        return Ending(code=INTERRUPTED, message="the reader of its output went away")
    return ending_of(error)


async def _end(writer: Writer, ending: Ending) -> None:
    row = AttemptEnd(
        attempt=ATTEMPT, ended_at=time.time(), exit_code=ending.code, reason=ending.message
    )
    with anyio.CancelScope(shield=True):
        await writer.put(row)
