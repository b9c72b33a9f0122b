"""`[notify]`: telling a person how an attempt ended, and of a new best while it goes on.

Opened by the run beside its store. What is new is read from the store every few seconds, in a
worker thread; each telling is a child process with a deadline (`notify_child`), so that neither a
command that hangs nor a webhook that is silent can hold the run up. What could not be told is an
event `notify_failed` and a warning line, and never fails a run.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from forge.errors import ForgeError
from forge.exits import Ending, ending_of
from forge.process.child import ChildSpec, open_child
from forge.process.environment import python_path
from forge.records import Event
from forge.runner.outlets.best_kernels import Bests
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from forge.config.schema.outlets import NotifyTable
    from forge.runner.live.console import Console
    from forge.store.layout import RunPaths
    from forge.store.write.writer import Writer

log = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0
START_S = 10.0
"""For the child's own start, beside `[notify] timeout_s`."""
LONGEST_MESSAGE = 1000
"""Characters; a failure may carry lines of a log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What a person is told."""

    run: str
    event: str
    """As `[notify] on` names it."""
    message: str
    run_dir: str
    at: float
    """Unix seconds, UTC."""
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The command's stdin and the webhook's body. `text` is what Slack and Mattermost show,
        `content` what Discord does.
        """
        line = f"forge: {self.run} {self.event}: {self.message}"
        return {**asdict(self), "text": line, "content": line}

    def to_env(self) -> dict[str, str]:
        """The command's variables."""
        return {
            "FORGE_RUN": self.run,
            "FORGE_EVENT": self.event,
            "FORGE_MESSAGE": self.message,
            "FORGE_RUN_DIR": self.run_dir,
        }


@asynccontextmanager
async def open_notifier(
    table: NotifyTable, paths: RunPaths, *, attempt: int, writer: Writer, console: Console
) -> AsyncIterator[None]:
    """Tells of new bests while inside, and at the end how it ended. Without `[notify]` nothing."""
    if not table.is_configured:
        yield
        return
    notifier = Notifier(table, paths, attempt=attempt, writer=writer, console=console)
    try:
        async with anyio.create_task_group() as tasks:
            if "best" in table.on:
                tasks.start_soon(notifier.follow)
            yield
            tasks.cancel_scope.cancel()
    except BaseException as error:
        await notifier.end(ending_of(error))
        raise
    await notifier.end(Ending(code=0, message=""))


class Notifier:
    """One attempt's."""

    def __init__(
        self,
        table: NotifyTable,
        paths: RunPaths,
        *,
        attempt: int,
        writer: Writer,
        console: Console,
    ) -> None:
        self._table, self._paths, self._attempt = table, paths, attempt
        self._writer, self._console = writer, console
        self._bests = Bests(paths)
        self._num_sent = 0

    async def follow(self) -> None:
        """Tells of what is better than all before, until cancelled."""
        while True:
            await self._tell_bests()
            await anyio.sleep(LOOK_EVERY_S)

    async def end(self, ending: Ending) -> None:
        """Tells what is left and how it ended. Returns within two deadlines, cancelled or not."""
        event = event_of(ending)
        with anyio.CancelScope(shield=True):
            if "best" in self._table.on:
                await self._tell_bests()
            if event in self._table.on:
                words = ending.message or await self._look(self._bests.summary) or "done"
                await self.tell(event, words, {"exit_code": ending.code})
            self._bests.close()

    async def tell(self, event: str, message: str, data: Mapping[str, Any]) -> None:
        """Runs the command and posts to the webhook. Never raises for what they do."""
        notice = Notice(
            run=self._paths.name, event=event, message=printable(message)[:LONGEST_MESSAGE],
            run_dir=str(self._paths.root), at=time.time(), data=data,
        )  # fmt: skip
        failure = await self._send(notice)
        if failure is None:
            log.info("told of %s: %s", event, message)
            return
        line = f"could not tell of {event}: {failure[-LONGEST_MESSAGE:]}"
        log.warning("%s", line)
        self._console.say(f"warning: [notify] {printable(line)}")
        with suppress(ForgeError):  # of the store: it may be what there was to tell
            await self._writer.put(
                Event(
                    at=time.time(), kind="notify_failed", message=line,
                    data={"event": event, "message": notice.message},
                )
            )  # fmt: skip

    async def _tell_bests(self) -> None:
        for message, data in await self._look(self._bests.look) or ():
            await self.tell("best", message, data)

    async def _look(self, call: Any) -> Any:
        """What a question to the store comes to; None where it has no answer. The boundary: a
        notification is never worth a run.
        """
        try:
            return await anyio.to_thread.run_sync(call)
        except Exception:
            log.warning("looking for a new best failed", exc_info=True)
            return None

    async def _send(self, notice: Notice) -> str | None:
        """Why it could not be told; None where it was."""
        self._num_sent += 1
        table = self._table
        url = table.webhook or (os.environ.get(table.webhook_env) if table.webhook_env else None)
        spec = ChildSpec(
            name=f"notify-{self._num_sent}",
            argv=(sys.executable, "-P", "-m", "forge.runner.outlets.notify_child"),
            log_path=self._paths.logs(self._attempt) / "notify.log",
            env={**os.environ, "PYTHONPATH": python_path()},
            socket_path=None,
            config={
                "command": table.command, "webhook": url, "timeout_s": table.timeout_s,
                "body": notice.to_json(), "env": notice.to_env(), "cwd": str(Path.cwd()),
            },
        )  # fmt: skip
        config = spec.log_path.parent / f"{spec.name}.json"
        try:
            return await self._run_child(spec)
        except (ForgeError, OSError) as error:
            return str(error)
        finally:
            config.unlink(missing_ok=True)  # a webhook's URL is a secret

    async def _run_child(self, spec: ChildSpec) -> str | None:
        limit_s = self._table.timeout_s + START_S
        async with open_child(spec) as child:
            with anyio.move_on_after(limit_s):
                reason = await child.wait()
                if reason == "exit 0":
                    return None
                return child.last_log_lines(3) or reason
        return f"silent for {limit_s:g} s"


def event_of(ending: Ending) -> str:
    """`done`, `stalled`, `stopped` or `failed`."""
    return {0: "done", 5: "stalled", 130: "stopped"}.get(ending.code, "failed")
