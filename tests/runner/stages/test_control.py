"""control.sock on a real socket: what the sender got wrong is refused, what we got wrong ends the
run."""

from __future__ import annotations

import json
import math
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from forge.errors import ConfigError
from forge.process.sockets import open_socket_dir
from forge.process.uds import open_client
from forge.runner.stages.control import Control, serve_control
from forge.runner.stages.trainer_desk import TrainerDesk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import httpx

pytestmark = pytest.mark.anyio


class Recorder:
    def __init__(self) -> None:
        self.records: list[Any] = []

    async def put(self, *records: Any) -> None:
        self.records += records


def new_control(**kwargs: Any) -> Control:
    stopped: list[str] = []
    return Control(**{"status": lambda: {"run": "x-1"}, "stop": stopped.append, **kwargs})


def new_desk(path: Path) -> TrainerDesk:
    return TrainerDesk(stage=1, last_step=5, batches_dir=path, sink=Recorder())


@asynccontextmanager
async def client_of(control: Control) -> AsyncIterator[httpx.AsyncClient]:
    with open_socket_dir() as folder:
        path = folder / "control.sock"
        async with serve_control(control, path), open_client(path, timeout_s=5) as client:
            yield client


async def test_it_answers_before_any_stage_runs() -> None:
    reasons: list[str] = []
    control = new_control(stop=reasons.append)
    async with client_of(control) as client:
        assert (await client.get("/status")).json() == {"ok": True, "run": "x-1"}
        assert (await client.post("/stop", json={"reason": "enough"})).status_code == 200
        refused = await client.post("/take", json={"step": 0})
    assert reasons == ["enough"]
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
    ],
)
async def test_what_makes_no_sense_is_refused_and_ends_nothing(
    path: str, body: str, tmp_path: Path
) -> None:
    control = new_control()
    control.desk = new_desk(tmp_path)
    async with client_of(control) as client:
        answer = await client.post(path, content=body)
    assert answer.status_code == 400, answer.text
    assert control.failure is None


async def test_an_error_of_ours_in_a_handler_ends_the_run(tmp_path: Path) -> None:
    control = new_control()
    control.desk = new_desk(tmp_path)
    async with client_of(control) as client:
        # No batch was offered for step 1, so acknowledging it is a KeyError of the desk's.
        answer = await client.post("/trained", json={"step": 1, "metrics": {}})
    assert answer.status_code == 500
    with pytest.raises(KeyError), anyio.fail_after(5):
        await control.raise_failure()


async def test_a_trainer_whose_weights_are_being_published_is_not_silent(tmp_path: Path) -> None:
    control, heard = new_control(), []
    desk = control.desk = new_desk(tmp_path)

    async def on_publish(path: Path, step: int, probe: object) -> int:
        heard.append(desk.last_heard)
        return 7

    control.on_publish = on_publish
    async with client_of(control) as client:
        answer = await client.post("/publish", content=json.dumps({"path": "w", "step": 2}))
    assert answer.json() == {"version": 7}
    assert heard == [math.inf]
    assert desk.last_heard <= time.monotonic()


async def test_a_batch_is_handed_out_while_weights_are_being_published(tmp_path: Path) -> None:
    control, served, versions = new_control(), anyio.Event(), list[int]()
    desk = control.desk = new_desk(tmp_path)
    desk._offered[3] = tmp_path / "3.npz"

    async def on_publish(path: Path, step: int, probe: object) -> int:
        await served.wait()
        return 7

    control.on_publish = on_publish
    async with client_of(control) as client:

        async def publish() -> None:
            answer = await client.post("/publish", json={"path": "w", "step": 2})
            versions.append(answer.json()["version"])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publish)
            with anyio.fail_after(5):
                while not desk._num_publishing:  # noqa: ASYNC110 - a request on a real socket
                    await anyio.sleep(0.001)
                taken = (await client.post("/take", json={"step": 2})).json()
            assert (taken["step"], versions) == (3, [])
            before = desk.idle_s(time.monotonic())
            await anyio.sleep(0.01)
            assert desk.idle_s(time.monotonic()) == before, "it trains beside the publish"
            assert desk.last_heard <= time.monotonic(), "and may be called silent"
            served.set()
    assert versions == [7]


async def test_a_checkpoint_is_wanted_until_there_is_one(tmp_path: Path) -> None:
    control = new_control(status=lambda: {"stage": "sft-1"})
    control.desk = desk = new_desk(tmp_path)

    async def heard(step: int, metrics: dict[str, float]) -> None:
        desk.reached(step)

    control.on_progress = heard
    report = {"step": 1, "metrics": {}}
    async with client_of(control) as client:
        assert (await client.post("/progress", json=report)).json()["save"] is False
        asked = await client.post("/save")
        assert asked.json() == {"message": "sft-1: saves a checkpoint after the step that runs"}
        assert (await client.post("/progress", json=report)).json()["save"] is True
        assert (await client.post("/progress", json=report)).json()["save"] is True, "not yet"
        await client.post("/checkpoint", json={"step": 1, "path": "x"})
        assert (await client.post("/progress", json=report)).json()["save"] is False
    (event,) = desk.sink.records  # pyright: ignore[reportAttributeAccessIssue]
    assert (event.kind, event.message) == ("asked", asked.json()["message"])


@pytest.mark.parametrize(
    ("path", "stage", "words"),
    [
        ("/save", None, "eval-0: no trainer runs now, so there is nothing to save"),
        ("/evaluate", None, "eval-0: no trainer runs now, so there is no policy that changes"),
        ("/evaluate", "sft", "eval-0: serves no policy while it trains; "),
        ("/evaluate", "last", "its last step runs"),
        ("/save", "stopping", "eval-0: it is stopping, and saves a checkpoint as it does"),
        ("/evaluate", "stopping", "eval-0: it is stopping, and saves a checkpoint as it does"),
    ],
)
async def test_what_a_stage_cannot_do_is_refused_in_a_line_and_ends_nothing(
    tmp_path: Path, path: str, stage: str | None, words: str
) -> None:
    def refuse() -> str:
        raise ConfigError("its last step runs")

    control = new_control(status=lambda: {"stage": "eval-0"})
    if stage is not None:
        control.desk = new_desk(tmp_path)
        control.desk.is_stopping = stage == "stopping"
        control.on_evaluate = refuse if stage == "last" else None
    async with client_of(control) as client:
        refused = await client.post(path)
    assert refused.status_code == 400
    assert refused.json()["error"].startswith(words)
    assert "\n" not in refused.json()["error"]
    assert control.failure is None
