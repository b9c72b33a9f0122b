"""`[notify]`: the ending and new bests of a run are sent, and never delay or fail the run; neither
the output of a command nor the answer of a webhook fills a disk or hides the other.
"""

import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from forge.config.schema import NotifyTable
from forge.errors import ConfigError, MachineError, Stalled, Stopped
from forge.exits import ending_of
from forge.records import Purpose, Status
from forge.runner.outlets.notify import LONGEST_MESSAGE, LONGEST_OUTPUT, Bests, open_notifier, send
from forge.store.layout import RunPaths
from forge.store.write.writer import open_writer
from tests.answering import Handler, answering
from tests.e2e.commands import is_alive
from tests.runner.outlets.said import Said, events
from tests.runner.supervised import Supervised
from tests.store.storefactory import Options, attempt, evaluation, group, problem, timing


@asynccontextmanager
async def notified(paths: RunPaths, console: Said | None = None, **keys: Any):
    """A store with a notifier beside it, as `run.py` opens them; yields the writer."""
    table = NotifyTable(**{"timeout_s": 5.0, **keys})
    async with open_writer(paths, Options()) as writer:
        await writer.put(attempt(), problem())
        await writer.flush()
        async with open_notifier(table, paths, attempt=1, writer=writer, console=console or Said()):
            yield writer


@contextmanager
def web_server(*, status: int = 200, delay_s: float = 0.0) -> Iterator[tuple[str, list[Any]]]:
    """A server on this machine: its URL, and the (content type, body) of each POST to it."""
    got: list[Any] = []

    class Hook(Handler):
        def do_POST(self) -> None:
            got.append((self.headers["Content-Type"], json.loads(self.read())))
            time.sleep(delay_s)
            self.send(b"", status=status)

        def handle(self) -> None:
            try:
                super().handle()
            except ConnectionError:  # the client's deadline passed
                return

    with answering(Hook) as url:
        yield f"{url}/hooks/s3cret", got


async def test_a_command_gets_variables_and_json(paths: RunPaths, tmp_path: Path) -> None:
    variables = '"$FORGE_RUN" "$FORGE_EVENT" "$FORGE_MESSAGE" "$FORGE_RUN_DIR"'
    command = f"cat > {tmp_path}/body; printf '%s|' {variables} > {tmp_path}/variables"
    async with notified(paths, command=command) as writer:
        await writer.put(evaluation())
        await writer.flush()
    values = (tmp_path / "variables").read_text().split("|")
    expected = "eval-0: pass@1 25.0 % (12.5 to 37.5)"
    assert values[:4] == ["toy-1", "done", expected, str(paths.root)]
    body = json.loads((tmp_path / "body").read_text())
    assert (body["run"], body["event"], body["message"]) == ("toy-1", "done", expected)
    assert body["data"] == {"exit_code": 0}
    assert body["text"] == body["content"] == f"forge: toy-1 done: {expected}"
    assert events(paths) == []


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (MachineError("no such GPU"), "failed"),
        (RuntimeError("a bug"), "failed"),
        (Stalled("judge-0 was silent for 60 s"), "stalled"),
        (Stopped("stopped at step 3"), "stopped"),
    ],
)
async def test_each_ending_has_its_event(
    paths: RunPaths, tmp_path: Path, error: Exception, event: str
) -> None:
    command = f'echo "$FORGE_EVENT: $FORGE_MESSAGE" > {tmp_path}/said'
    on = ["done", "failed", "stalled", "stopped", "best"]
    try:
        async with notified(paths, command=command, on=on):
            raise error
    except BaseException as raised:
        ended = ending_of(raised)
    assert str(error) in ended.message
    said = (tmp_path / "said").read_text()
    assert said.startswith(f"{event}: ")
    assert str(error) in said


async def test_events_that_are_not_configured_are_not_sent(paths: RunPaths, tmp_path: Path) -> None:
    async with notified(paths, command=f"touch {tmp_path}/sent", on=["failed"]):
        pass
    assert not (tmp_path / "sent").exists()


async def test_a_command_that_hangs_is_ended_with_all_it_started(
    paths: RunPaths, tmp_path: Path
) -> None:
    console = Said()
    began = time.monotonic()
    command = f"sleep 60 & echo $! > {tmp_path}/pid; echo $$ >> {tmp_path}/pid; wait"
    async with notified(paths, console, command=command, timeout_s=0.5):
        pass
    assert time.monotonic() - began < 45
    line = "could not notify of done: command: did not end in time"
    assert events(paths) == [("notify_failed", line)]
    assert console.lines == [f"warning: [notify] {line}"]
    for pid in (tmp_path / "pid").read_text().split():
        assert not is_alive(int(pid))


@pytest.mark.parametrize("is_variable", [False, True])
async def test_a_webhook_gets_the_json_and_its_url_may_come_from_a_variable(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, is_variable: bool
) -> None:
    with web_server() as (url, got):
        monkeypatch.setenv("OUR_HOOK", url)
        keys: dict[str, Any] = {"webhook_env": "OUR_HOOK"} if is_variable else {"webhook": url}
        async with notified(paths, **keys):
            pass
    [(content_type, body)] = got
    assert content_type == "application/json"
    assert (body["run"], body["event"], body["message"]) == ("toy-1", "done", "done")
    assert events(paths) == []


@pytest.mark.parametrize(
    ("keys", "line"), [({"status": 500}, "HTTP 500"), ({"delay_s": 1.5}, "ReadTimeout")]
)
async def test_a_failed_webhook_is_reported_without_its_secret(
    paths: RunPaths, keys: dict[str, Any], line: str
) -> None:
    console = Said()
    with web_server(**keys) as (url, _):
        async with notified(paths, console, webhook=url, timeout_s=1.0):
            pass
    assert events(paths) == [
        ("notify_failed", f"could not notify of done: webhook at 127.0.0.1: {line}")
    ]
    left = [
        path.read_text()
        for path in paths.root.rglob("*")
        if path.is_file() and "db" not in path.name
    ]
    assert "s3cret" not in "".join([*left, *console.lines])


async def test_a_failed_store_does_not_hide_the_reason(paths: RunPaths, tmp_path: Path) -> None:
    try:
        async with notified(paths, command="exit 1") as writer:
            writer._thread.failure = MachineError("disk full")
            raise ConfigError("the cause")
    except BaseException as error:
        ended = ending_of(error)
    assert ended.message == "the cause"


async def test_a_new_best_is_sent_while_the_run_continues(
    paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forge.runner.outlets.notify.LOOK_EVERY_S", 0.05)
    said = tmp_path / "said"
    command = f'echo "$FORGE_EVENT: $FORGE_MESSAGE" >> {said}'
    async with notified(paths, command=command) as writer:
        await anyio.sleep(0.2)
        await writer.put(
            evaluation("eval-0", at=1.0), evaluation("eval-2", step=5, at=2.0, pass_at_1=0.5)
        )
        await writer.flush()
        with anyio.fail_after(20):
            while not said.exists():  # noqa: ASYNC110 - written by another process
                await anyio.sleep(0.05)
    lines = said.read_text().splitlines()
    assert lines[0] == "best: eval-2: pass@1 50.0 % (25.0 to 75.0); 25.0 % was the best so far"
    assert lines[1].startswith("done: ")


async def test_only_a_result_better_than_all_earlier_ones_is_a_best(paths: RunPaths) -> None:
    def kernel(number: int, speed: float, status: Status = Status.CORRECT) -> Any:
        played = group(number, [[status]], purpose=Purpose.TRAIN, speed=timing(speed))
        return dataclasses.replace(played, step=number)

    bests = Bests(paths)
    async with open_writer(paths, Options()) as writer:

        async def after(*records: Any) -> list[str]:
            await writer.put(*records)
            await writer.flush()
            return [message for message, _ in bests.look()]

        assert await after(attempt(), problem(), kernel(1, 2.0)) == []  # the past
        assert await after(kernel(2, 2.1)) == []  # not by a tenth
        assert await after(kernel(3, 2.5), kernel(4, 3.0)) == [
            "softmax-0000: 3.00 times as fast (g4.r0.t0)"
        ]
        assert await after(kernel(5, 9.0, Status.WRONG)) == []
        assert await after(kernel(6, 2.9)) == []
        assert await after(evaluation("eval-0", at=1.0, pass_at_1=0.4)) == []  # the first
        assert await after(evaluation("a", step=1, at=2.0, pass_at_1=0.3)) == []
        [line] = await after(evaluation("b", step=2, at=3.0, pass_at_1=0.5))
        assert line.startswith("b: pass@1 50.0 %")
        assert await after(evaluation("c", step=3, at=4.0, pass_at_1=0.5)) == []
        small = dataclasses.replace(evaluation("d", step=4, at=5.0, pass_at_1=0.9), num_problems=1)
        assert await after(small) == []  # the first of its size
        [line] = await after(evaluation("e", step=5, at=6.0, pass_at_1=0.6))
        assert line.endswith("50.0 % was the best so far")
    bests.close()


async def test_the_ending_is_sent_after_it_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uses the supervisor itself: run.py opens the notifier beside the store."""
    supervised = Supervised(tmp_path, monkeypatch)
    select = f"sqlite3.connect('{supervised.paths.run_db}').execute('SELECT reason FROM attempts')"
    command = f'{sys.executable} -c "import sqlite3; print({select}.fetchone()[0])" > {tmp_path}/r'
    notify = NotifyTable(command=command, timeout_s=20.0)
    supervised.experiment = supervised.experiment.model_copy(update={"notify": notify})

    async def work(self: Any) -> None:
        raise MachineError("the GPU fell off the bus")

    ended = await supervised.end(work)
    assert ended.message == "the GPU fell off the bus"
    assert (tmp_path / "r").read_text() == "the GPU fell off the bus\n"


async def test_a_command_that_prints_without_end_fills_no_disk(paths: RunPaths) -> None:
    async with notified(paths, command="yes; exit 0", timeout_s=1.0):
        pass
    assert events(paths)[0][1].endswith("command: did not end in time")
    size = (paths.logs(1) / "notify.log").stat().st_size
    assert LONGEST_OUTPUT <= size < LONGEST_OUTPUT + 1000


async def test_the_event_of_a_command_that_prints_garbage_is_printable(paths: RunPaths) -> None:
    console = Said()
    garbage = r"head -c 50000 /dev/zero | tr '\0' '\377'; printf '\033[2J'; exit 1"
    async with notified(paths, console, command=garbage):
        pass
    message = events(paths)[0][1]
    assert message.endswith("command: exit 1")
    assert len(message) < LONGEST_MESSAGE + 100
    assert "\x1b" not in console.lines[0]


def config(**keys: Any) -> dict[str, Any]:
    return {"command": None, "webhook": None, "timeout_s": 5.0, "body": {}, "env": {}, **keys}


@pytest.mark.parametrize("url", ["http://[::s3cret/x", "https://xn--/s3cret"])
def test_an_invalid_url_is_reported_and_the_command_still_runs(tmp_path: Path, url: str) -> None:
    command = f"touch {tmp_path}/message"
    failures = list(send(config(webhook=url, command=command, cwd=str(tmp_path))))
    assert failures == ["webhook: its URL is invalid"]
    assert (tmp_path / "message").exists()
