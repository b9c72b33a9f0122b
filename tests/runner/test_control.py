"""control.sock on a real socket: a wrong request is refused, a bug in a handler ends the run."""

import math
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.to_thread
import httpx
import pytest

from forge.errors import MachineError
from forge.process.ask import JSON_TYPE, open_client
from forge.process.sockets import open_socket_dir
from forge.records import Event
from forge.runner.control import ControlServer, serve_control
from forge.runner.live.progress import Progress
from forge.runner.live.stopping import StopRequest
from forge.runner.stages.desk import TrainerDesk
from forge.train.trainer.child.control import StopFlag, SupervisorClient
from tests.runner.stages.desks import Recorder, batch, can_record, make_desk


class Publishes:
    """Weights whose publishes wait until `may_publish` is set."""

    def __init__(self) -> None:
        self.may_publish = anyio.Event()
        self.may_publish.set()
        self.desk: TrainerDesk | None = None
        self.heard: list[float] = []

    async def publish(self, path: Path, **_: object) -> SimpleNamespace:
        self.heard.append(self.desk.last_heard)
        await self.may_publish.wait()
        return SimpleNamespace(version=7, publish_s=0.1, probe_gap=0.0)


async def saved(step: int, shelf: object) -> int:
    return step


def context(folder: Path | None = None) -> Any:
    """A run; in a training stage of five steps if there is a folder for its batches."""
    run = SimpleNamespace(
        desk=None,
        stop=StopRequest(resume="resume."),
        progress=Progress(run="x-1", num_stages=2, label="sft-1"),
        writer=Recorder(),
        weights=Publishes(),
        busy=dict,
    )
    can_record(run)
    if folder is not None:
        checkpoints = SimpleNamespace(saved=saved)
        desk = make_desk(folder, stage=1, last_step=5, run=run, checkpoints=checkpoints)
        run.desk = run.weights.desk = desk
    return run


def new_control(run: Any) -> ControlServer:
    return ControlServer(run, status=lambda: {"run": "x-1"})


@asynccontextmanager
async def client_of(control: ControlServer) -> AsyncIterator[httpx.AsyncClient]:
    with open_socket_dir() as folder:
        path = folder / "control.sock"
        async with serve_control(control, path), open_client(path, timeout_s=5) as client:
            yield client


async def test_status_and_stop_are_answered_before_any_stage_runs() -> None:
    run = context()
    control = new_control(run)
    async with client_of(control) as client:
        assert (await client.get("/status")).json() == {"ok": True, "run": "x-1"}
        assert (await client.post("/stop", json={"reason": "enough"})).status_code == 200
        refused = await client.post("/take", json={"step": 0})
    assert run.stop.reason == "enough"
    assert (refused.status_code, refused.json()) == (400, {"error": "no training stage is running"})
    assert control.failure is None


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/take", "{"),
        ("/take", "[1]"),
        ("/take", "{}"),
        ("/take", '{"step": "one"}'),
        ("/trained", '{"step": 1, "metrics": {"a": null}}'),
        ("/publish", '{"step": 1, "path": "x", "probe": {"prompt_ids": []}}'),
        ("/checkpoint", '{"step": null}'),
        ("/progress", '{"step": 1, "metrics": 7}'),
        ("/progress", '{"step": 6, "metrics": {}}'),
        ("/progress", '{"step": 1, "metrics": {"\\ud800": 1.0}}'),
        ("/progress", '{"step": 1, "metrics": {"a": 1e999}}'),
        ("/progress", '{"step": true, "metrics": {}}'),
        ("/trained", '{"step": 1, "metrics": {}}'),
        ("/take", '{"step": 100000000000000000000000000}'),
        ("/progress", '{"step": 1, "metrics": {"a\\nb": "x"}}'),
        ("/publish", '{"step": 1, "path": "nowhere"}'),
        ("/publish", f'{{"step": 1, "path": "{"x" * 5000}"}}'),
        ("/failed", '{"kind": "oom"}'),
        ("/stop", '{"reason": 5}'),
    ],
)
async def test_a_malformed_request_is_refused_and_the_run_continues(
    path: str, body: str, tmp_path: Path
) -> None:
    control = new_control(context(tmp_path))
    async with client_of(control) as client:
        answer = await client.post(path, content=body, headers=JSON_TYPE)
    assert answer.status_code == 400, answer.text
    assert "\n" not in answer.json()["error"]
    assert control.failure is None


async def test_a_bug_in_a_handler_ends_the_run() -> None:
    run = context()
    run.stop = SimpleNamespace(set=lambda reason: {}["absent"])
    control = new_control(run)
    async with client_of(control) as client:
        answer = await client.post("/stop", json={})
    assert answer.status_code == 500
    with pytest.raises(KeyError), anyio.fail_after(5):
        await control.raise_failure()


async def test_a_socket_that_somebody_removes_is_made_again(tmp_path: Path) -> None:
    control = new_control(context(tmp_path))
    with open_socket_dir() as folder:
        path = folder / "control.sock"
        settings: Any = SimpleNamespace(
            control_socket=path, publish_timeout_s=5.0, is_elsewhere=False
        )
        trainer = SupervisorClient(settings, stop=StopFlag())
        async with serve_control(control, path), open_client(path, timeout_s=5) as client:
            assert (await client.get("/status")).status_code == 200
            path.unlink()
            with anyio.fail_after(15):
                await anyio.to_thread.run_sync(lambda: trainer.checkpoint(step=1, path=path))
            assert (await client.get("/status")).status_code == 200, "its connection is open"


async def test_a_removed_socket_directory_is_named() -> None:
    with open_socket_dir() as folder, pytest.RaisesGroup(
        pytest.RaisesExc(MachineError, match="somebody removed this directory"),
        flatten_subgroups=True,
    ):  # fmt: skip
        async with serve_control(new_control(context()), folder / "control.sock"):
            shutil.rmtree(folder)
            with anyio.fail_after(15):
                await anyio.sleep_forever()


async def test_a_batch_is_handed_out_while_weights_are_being_published(tmp_path: Path) -> None:
    run, versions = context(tmp_path), list[int]()
    run.weights.may_publish = anyio.Event()
    desk = run.desk
    await desk.offer(batch(3))
    async with client_of(new_control(run)) as client:

        async def publish() -> None:
            answer = await client.post("/publish", json={"path": str(tmp_path), "step": 2})
            versions.append(answer.json()["version"])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publish)
            with anyio.fail_after(5):
                while not desk.is_publishing:  # noqa: ASYNC110 - a request on a real socket
                    await anyio.sleep(0.001)
                taken = (await client.post("/take", json={"step": 2})).json()
            assert (taken["step"], versions) == (3, [])
            before = desk.idle_s(time.monotonic())
            await anyio.sleep(0.01)
            assert desk.idle_s(time.monotonic()) == before, "it trains beside the publish"
            assert desk.last_heard <= time.monotonic(), "and its silence counts again"
            run.weights.may_publish.set()
    assert versions == [7]
    assert run.weights.heard == [math.inf], "not silent while its weights are published"


async def test_a_checkpoint_is_wanted_until_there_is_one(tmp_path: Path) -> None:
    run = context(tmp_path)
    report = {"step": 1, "metrics": {}}
    async with client_of(new_control(run)) as client:
        assert (await client.post("/progress", json=report)).json()["save"] is False
        asked = await client.post("/save", json={})
        assert asked.json() == {"message": "sft-1: saves a checkpoint after the step that runs"}
        later = {"step": 2, "metrics": {}}
        assert (await client.post("/progress", json=later)).json()["save"] is True
        await client.post("/checkpoint", json={"step": 1, "path": "x"})  # begun before the request
        assert (await client.post("/progress", json=later)).json()["save"] is True, "not yet"
        await client.post("/checkpoint", json={"step": 2, "path": "x"})
        assert (await client.post("/progress", json=later)).json()["save"] is False
    (event,) = [each for each in run.writer.records if isinstance(each, Event)]
    assert (event.kind, event.message) == ("asked", asked.json()["message"])


@pytest.mark.parametrize(
    ("path", "stage", "words"),
    [
        ("/save", "none", "sft-1: no trainer runs now, so there is nothing to save"),
        ("/evaluate", "none", "sft-1: no trainer runs now, so there is no policy that changes"),
        ("/evaluate", "sft", "sft-1: serves no policy while it trains; a grpo stage is evaluated"),
        ("/save", "stopping", "sft-1: it is stopping, and saves a checkpoint as it does"),
        ("/evaluate", "stopping", "sft-1: it is stopping, and saves a checkpoint as it does"),
    ],
)
async def test_an_impossible_request_is_refused_in_one_line_and_the_run_continues(
    tmp_path: Path, path: str, stage: str, words: str
) -> None:
    run = context(None if stage == "none" else tmp_path)
    if run.desk is not None:
        run.desk.is_stopping = stage == "stopping"
    control = new_control(run)
    async with client_of(control) as client:
        refused = await client.post(path, json={})
    assert refused.status_code == 400
    assert refused.json()["error"].startswith(words)
    assert control.failure is None
