"""`[sinks]`: the numbers of each step, copied to tensorboard, trackio or wandb.

Each sink is a child process (`sink_child`) that reads the store at its own pace. The store is the
queue between run and sink: it never fills and drops nothing, so a sink that hangs, crashes or has
no network never delays the run. At the end a sink has CLOSE_S to write the rest.
A sink that fails or is cut off is an event `sink_failed` and a warning line.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import anyio

from forge.config.schema import SinksTable
from forge.errors import ForgeError
from forge.process.child import Child, ChildSpec, open_child
from forge.process.environment import child_env
from forge.records import Event
from forge.runner.live.progress import Console
from forge.store.layout import RunPaths
from forge.store.write.writer import Writer
from forge.views.text import printable

log = logging.getLogger(__name__)

KEYS = {"wandb": ("WANDB_API_KEY",), "trackio": ("HF_TOKEN",), "tensorboard": ()}
"""Secret environment variables that a sink gets."""

CLOSE_S = 30.0
"""Maximum wait at the end of a run for what a sink has not written yet."""
GRACE_S = 0.5
"""Time between TERM and KILL for a sink that did not write the rest in time."""


@asynccontextmanager
async def open_sinks(
    table: SinksTable, paths: RunPaths, *, attempt: int, writer: Writer, console: Console
) -> AsyncGenerator[None]:
    """Runs the sinks of `[sinks] to` while open."""
    if not table.to:
        yield
        return
    watch = _SinkWatch(writer, console)
    async with AsyncExitStack() as opened:
        alive = list[Child]()
        for name in table.to:
            spec = _spec(name, table, paths, attempt=attempt)
            try:
                alive.append(await opened.enter_async_context(open_child(spec)))
            except ForgeError as error:
                await watch.report(spec.name, str(error))
        try:
            async with anyio.create_task_group() as tasks:
                for child in alive:
                    tasks.start_soon(watch.wait, child)
                yield
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await watch.close(alive)


class _SinkWatch:
    def __init__(self, writer: Writer, console: Console) -> None:
        self._writer, self._console = writer, console
        self._reported: set[str] = set()

    async def wait(self, child: Child) -> None:
        """Waits for a sink that ends before the run."""
        reason = await child.wait()
        await self.report(child.spec.name, _last_line(child, reason))

    async def close(self, children: Sequence[Child]) -> None:
        """Asks all sinks at once to write the rest, and waits up to the timeout."""
        async with anyio.create_task_group() as tasks:
            for child in children:
                if child.is_alive:
                    tasks.start_soon(self._close, child)

    async def _close(self, child: Child) -> None:
        stop_file = Path(child.spec.config["stop_file"])
        stop_file.touch()
        reason = f"did not end within {CLOSE_S:g} s"
        with anyio.move_on_after(CLOSE_S):
            reason = _last_line(child, await child.wait())
        stop_file.unlink()
        if child.exit_reason != "exit 0":
            await self.report(child.spec.name, reason)

    async def report(self, name: str, why: str) -> None:
        """Records and shows a failure, the first of a sink only."""
        if name in self._reported:
            return
        self._reported.add(name)
        line = f"{name} failed; the run continues, and its store has all numbers: {why}"
        log.warning("%s", line)
        self._console.say(f"warning: {printable(line)}")
        with suppress(ForgeError):
            event = Event(at=time.time(), kind="sink_failed", message=line, data={"sink": name})
            await self._writer.put(event)


def _spec(name: str, table: SinksTable, paths: RunPaths, *, attempt: int) -> ChildSpec:
    secrets = {key: os.environ[key] for key in KEYS[name] if key in os.environ}
    log_path = paths.logs(attempt) / f"sink-{name}.log"
    return ChildSpec(
        name=f"sink-{name}",
        argv=(sys.executable, "-m", "forge.runner.outlets.sink_child"),
        log_path=log_path,
        env=child_env(threads=1, extra=secrets),
        socket_path=None,
        config={
            "sink": name, "run": paths.root, "attempt": attempt, "project": table.project,
            "wandb_mode": table.wandb_mode, "since": time.time(),
            "stop_file": log_path.with_suffix(".stop"),
        },
        stop_grace_s=GRACE_S,
    )  # fmt: skip


def _last_line(child: Child, reason: str) -> str:
    return (child.last_log_lines(1) or reason)[:300]
