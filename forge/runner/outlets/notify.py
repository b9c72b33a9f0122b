"""`[notify]`: notifies a person how an attempt ended, and of each new best while it runs, which is
an evaluation or a kernel that beats all earlier ones.

Opened by the run beside its store. New bests are read from the store every few seconds, in a worker
thread; each look reads only new rows. Each notification is sent by a child process of this module
with a deadline, so that neither a command that hangs nor a silent webhook delays the run: exit 0 if
both succeed in time, else 1 and a line for each failure in its log. Processes that the command
leaves behind end with it. A notification that fails is an event `notify_failed` and a warning line,
and never fails a run.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from forge.config.schema import NotifyTable
from forge.errors import ForgeError
from forge.exits import Ending, ending_of
from forge.process.child import ChildSpec, open_child
from forge.process.environment import python_path
from forge.process.lease import hold_lease
from forge.records import Event
from forge.runner.live.progress import Console
from forge.store.layout import RunPaths
from forge.store.reader import RunReader
from forge.store.write.writer import Writer
from forge.views.run_state import EVALUATIONS, IN_ORDER, describe_evaluation
from forge.views.text import percent, printable

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_EVERY_S = 5.0
START_S = 10.0
"""Allowance for the start of the child, added to `[notify] timeout_s`."""
LONGEST_MESSAGE = 1000
"""Maximum characters; a failure may carry lines of a log."""
MARGIN = 1.1
"""A kernel is reported if it is this many times as fast as the best before it."""
LAST_TURN = "SELECT coalesce(max(turn_row), 0) FROM turns"
KERNELS = """
SELECT t.turn_row, t.turn_id, v.speedup, v.speedup_low,
    (SELECT problem_id FROM groups g WHERE g.group_id = t.group_id) AS problem_id
FROM turns t JOIN verdicts v USING (group_id, rollout, turn)
WHERE t.turn_row > ? AND v.status = 'correct' AND v.speedup_low > ?
ORDER BY t.turn_row
"""


@asynccontextmanager
async def open_notifier(
    table: NotifyTable, paths: RunPaths, *, attempt: int, writer: Writer, console: Console
) -> AsyncGenerator[None]:
    """Notifies of new bests while open, and of the ending. Does nothing without `[notify]`."""
    if not table.is_configured:
        yield
        return
    notifier = Notifier(
        table=table, paths=paths, attempt=attempt, writer=writer, console=console,
        bests=Bests(paths),
    )  # fmt: skip
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


@dataclass(slots=True, kw_only=True)
class Notifier:
    table: NotifyTable
    paths: RunPaths
    attempt: int
    writer: Writer
    console: Console
    bests: Bests
    num_sent: int = 0

    async def follow(self) -> None:
        while True:
            await self._send_bests()
            await anyio.sleep(LOOK_EVERY_S)

    async def end(self, ending: Ending) -> None:
        """Notifies of the last bests and of the ending. Returns within two deadlines, even if
        cancelled."""
        event = {0: "done", 5: "stalled", 130: "stopped"}.get(ending.code, "failed")
        with anyio.CancelScope(shield=True):
            if "best" in self.table.on:
                await self._send_bests()
            if event in self.table.on:
                message = ending.message or await self._read(self.bests.summary) or "done"
                await self.send(event, message, {"exit_code": ending.code})
            self.bests.close()

    async def send(self, event: str, message: str, data: Mapping[str, Any]) -> None:
        """Runs the command and posts to the webhook. Never raises if they fail."""
        shown = printable(message)[:LONGEST_MESSAGE]
        failure = await self._run_sender(event, shown, data)
        if failure is None:
            log.info("notified of %s: %s", event, message)
            return
        line = f"could not notify of {event}: {failure[-LONGEST_MESSAGE:]}"
        log.warning("%s", line)
        self.console.say(f"warning: [notify] {printable(line)}")
        about = {"event": event, "message": shown}
        with suppress(ForgeError):  # of the store, which may be the reason of the ending
            await self.writer.put(
                Event(at=time.time(), kind="notify_failed", message=line, data=about)
            )

    async def _send_bests(self) -> None:
        for message, data in await self._read(self.bests.look) or ():
            await self.send("best", message, data)

    async def _read(self, call: Callable[[], T]) -> T | None:
        """Result of a call that reads the store; None if it fails. Any exception ends here, since
        no notification may fail a run."""
        try:
            return await anyio.to_thread.run_sync(call)
        except Exception:
            log.warning("could not read the store for a notification", exc_info=True)
            return None

    async def _run_sender(self, event: str, message: str, data: Mapping[str, Any]) -> str | None:
        """Sends a notice by a child process. Returns why it failed; None if it did not."""
        self.num_sent += 1
        table, run, root = self.table, self.paths.name, str(self.paths.root)
        try:
            log_dir = self.paths.logs(self.attempt)
        except (ForgeError, OSError) as error:  # the run directory was deleted
            return str(error)
        limit_s = table.timeout_s + START_S
        url = table.webhook or (os.environ.get(table.webhook_env) if table.webhook_env else None)
        line = f"forge: {run} {event}: {message}"
        body = {
            "run": run, "event": event, "message": message, "run_dir": root, "at": time.time(),
            "data": data, "text": line, "content": line,  # Slack and Mattermost; Discord
        }  # fmt: skip
        env = {
            "FORGE_RUN": run, "FORGE_EVENT": event, "FORGE_MESSAGE": message, "FORGE_RUN_DIR": root,
        }  # fmt: skip
        spec = ChildSpec(
            name=f"notify-{self.num_sent}",
            argv=(sys.executable, "-P", "-m", "forge.runner.outlets.notify"),
            log_path=log_dir / "notify.log",
            env={**os.environ, "PYTHONPATH": python_path()},
            socket_path=None,
            config={
                "command": table.command, "webhook": url, "timeout_s": table.timeout_s,
                "body": body, "env": env, "cwd": str(Path.cwd()),
            },
        )  # fmt: skip
        config = spec.log_path.parent / f"{spec.name}.json"
        try:
            async with open_child(spec) as child:
                with anyio.move_on_after(limit_s):
                    reason = await child.wait()
                    return None if reason == "exit 0" else child.last_log_lines(3) or reason
            return f"silent for {limit_s:g} s"
        except (ForgeError, OSError) as error:
            return str(error)
        finally:
            config.unlink(missing_ok=True)  # a webhook's URL is a secret


class Bests:
    """The best results so far. Results before the first look are not reported."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._reader: RunReader | None = None
        self._evaluated = set[tuple[str, int, int]]()
        self._last_turn = 0
        self._pass_at_1: dict[tuple[int, int, int], float] = {}
        """Best pass@1 by problems, samples and turns, since other sizes are not comparable."""
        self._speedup = 1.0

    def look(self) -> list[tuple[str, dict[str, Any]]]:
        """New bests since the last look: a message and its figures each."""
        if self._reader is not None:
            return [*self._new_evaluations(self._reader), *self._new_kernels(self._reader)]
        reader = self._reader = RunReader(self._paths)
        self._last_turn = reader.value(LAST_TURN)
        fastest = reader.value("SELECT max(speedup_low) FROM verdicts WHERE status = 'correct'")
        self._speedup = max(1.0, fastest or 0.0)
        self._new_evaluations(reader)
        return []

    def summary(self) -> str:
        """Message of the last evaluation; empty without one."""
        with RunReader(self._paths) as reader:
            row = reader.one(f"{EVALUATIONS} ORDER BY at DESC LIMIT 1")
        return "" if row is None else describe_evaluation(row)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def _new_evaluations(self, reader: RunReader) -> list[tuple[str, dict[str, Any]]]:
        found = list[tuple[str, dict[str, Any]]]()
        for row in reader.rows(IN_ORDER):
            key = row["stage"], row["step"], row["policy_version"]
            if key in self._evaluated:
                continue
            self._evaluated.add(key)
            size = row["num_problems"], row["num_samples"], row["max_turns"]
            before, now = self._pass_at_1.get(size), row["pass_at_1"]
            if before is not None and now > before:
                data = {name: row[name] for name in ("stage", "pass_at_1", "ci_low", "ci_high")}
                line = f"{describe_evaluation(row)}; {percent(before)} was the best so far"
                found.append((line, data))
            self._pass_at_1[size] = now if before is None else max(before, now)
        return found

    def _new_kernels(self, reader: RunReader) -> list[tuple[str, dict[str, Any]]]:
        """The fastest kernel since the last look, if it beats the best so far by MARGIN."""
        since, self._last_turn = self._last_turn, reader.value(LAST_TURN)
        rows = reader.rows(KERNELS, (since, MARGIN * self._speedup))
        if not rows:
            return []
        best = max(rows, key=lambda row: row["speedup_low"])
        self._speedup = best["speedup_low"]
        line = f"{best['problem_id']}: {best['speedup']:.2f} times as fast ({best['turn_id']})"
        return [(line, {name: best[name] for name in ("problem_id", "turn_id", "speedup")})]


LONGEST_OUTPUT = 64_000
"""Bytes of the command's output that the log keeps."""
LAST_OUTPUT_S = 0.5
"""Wait for the last output of a command; processes that it left behind may hold the pipe open."""


def main() -> None:
    config = hold_lease()
    failures = list(send(config))
    sys.exit("\n".join(failures) if failures else 0)


def send(config: Mapping[str, Any]) -> Iterator[str]:
    """Runs the command and posts to the webhook within `timeout_s`; yields each failure."""
    deadline = time.monotonic() + config["timeout_s"]
    body = json.dumps(config["body"])
    command = _start(config) if config["command"] else None
    if config["webhook"]:
        yield from _post(config["webhook"], body, timeout_s=config["timeout_s"])
    if isinstance(command, str):
        yield command
    elif command is not None:
        yield from _finish(*command, body, deadline=deadline)


def _start(config: Mapping[str, Any]) -> tuple[subprocess.Popen[bytes], threading.Thread] | str:
    """The process and the reader of its output, or why it cannot be started."""
    try:
        output, write_end = os.pipe()
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", config["command"]],
                stdin=subprocess.PIPE,
                stdout=write_end,
                stderr=write_end,
                cwd=config["cwd"],
                env={**os.environ, **config["env"]},
            )
        finally:
            os.close(write_end)
    except OSError as error:
        return f"command: cannot be started: {error.strerror}"
    reader = threading.Thread(target=_copy_output, args=(output,), daemon=True)
    reader.start()
    return process, reader


def _copy_output(output: int) -> None:
    """Copies the first output to the log and drops the rest: a command that prints without end must
    not fill the disk."""
    left = LONGEST_OUTPUT
    while part := os.read(output, 1 << 16):
        os.write(sys.stderr.fileno(), part[:left])
        left -= min(left, len(part))


def _finish(
    process: subprocess.Popen[bytes], reader: threading.Thread, body: str, *, deadline: float
) -> Iterator[str]:
    try:
        process.communicate(body.encode(), timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        yield "command: did not end in time"
        return
    reader.join(LAST_OUTPUT_S)
    if process.returncode:
        yield f"command: exit {process.returncode}"


def _post(url: str, body: str, *, timeout_s: float) -> Iterator[str]:
    """Posts to the webhook. Errors name only the host, since the path of a URL may be secret."""
    import httpx

    try:
        host = httpx.URL(url).host
    except (ValueError, httpx.InvalidURL):
        yield "webhook: its URL is invalid"
        return
    headers = {"Content-Type": "application/json"}
    try:
        # The response body is not read: it may be long or endless.
        with httpx.stream("POST", url, content=body, headers=headers, timeout=timeout_s) as answer:
            if not answer.is_success:
                yield f"webhook at {host}: HTTP {answer.status_code}"
    except (httpx.HTTPError, ValueError) as error:
        yield f"webhook at {host}: {type(error).__name__}"


if __name__ == "__main__":
    main()
