"""`[sinks]`: numbers reach tensorboard, trackio and wandb (real if installed, else a fake package),
and a sink that fails, hangs or is missing does not affect the run."""

import importlib.util
import json
import sqlite3
import sys
import time
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forge.config.load import load_experiment
from forge.config.schema import SinksTable
from forge.errors import MachineError
from forge.records import Metrics
from forge.runner.outlets.sink_child import LATE_STEPS, Follower
from forge.runner.outlets.sinks import open_sinks
from forge.runner.plan.plan import plan
from forge.store.layout import RunPaths
from forge.store.reader import RunReader
from forge.store.write.writer import open_writer
from tests.runner.outlets.said import Said, events
from tests.store.storefactory import Options, attempt, evaluation

EXPERIMENT = 'name = "x"\n[model]\ninit = "tiny"\n[[stage]]\nkind = "eval"\n'

MADE_UP = """
import json, os, time
OUT = os.environ["MADE_UP_OUT"]

def put(*values):
    with open(OUT, "a") as file:
        file.write(json.dumps(values) + "\\n")

class Settings:
    def __init__(self, **keys): ...

class Run:
    def define_metric(self, name, step_metric=None):
        put("define", name, step_metric)
    def log(self, values):
        put("log", values)
        HOW_LOG
    def finish(self):
        HOW_FINISH
        put("finish")

def init(**keys):
    keys.pop("settings", None)
    put("init", keys)
    HOW_INIT
    return Run()
"""


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes a package of this name that writes its calls to a file; returns the file."""

    def make(name: str, *, init: str = "", log: str = "", finish: str = "") -> Path:
        text = MADE_UP
        for mark, code in (("HOW_INIT", init), ("HOW_LOG", log), ("HOW_FINISH", finish)):
            text = text.replace(mark, code or "pass")
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setenv("MADE_UP_OUT", str(tmp_path / "out"))
        return tmp_path / "out"

    return make


@asynccontextmanager
async def sunk(paths: RunPaths, console: Said | None = None, *, close_s: float = 60.0, **keys: Any):
    """A store with sinks beside it, as `run.py` opens them."""
    table = SinksTable(**keys)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("forge.runner.outlets.sinks.CLOSE_S", close_s)
        async with open_store(paths, table, console or Said()) as writer:
            yield writer


@asynccontextmanager
async def open_store(paths: RunPaths, table: SinksTable, console: Said):
    async with open_writer(paths, Options()) as writer:
        await writer.put(attempt())
        await writer.flush()
        async with open_sinks(table, paths, attempt=1, writer=writer, console=console):
            yield writer
            await writer.flush()


def step(number: int, *, stage: int = 1, **values: float) -> Metrics:
    named = {name.replace("_", "/"): value for name, value in values.items()}
    return Metrics(stage=stage, step=number, at=1_000.0 + number, values=named)


def late_evaluation() -> Any:
    return evaluation(step=4, at=time.time() + 60)


def read_out(path: Path) -> list[list[Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_tensorboard_has_every_number_at_its_step_and_time(paths: RunPaths) -> None:
    async with sunk(paths, to=["tensorboard"]) as writer:
        for number in (1, 2, 3):
            await writer.put(step(number, train_loss=1.0 / number, rollout_reward=0.1 * number))
        await writer.put(late_evaluation())
    found = read_tensorboard(paths.root / "sinks" / "tensorboard")
    assert found["grpo-1/train/loss"] == [(1, 1.0, 1_001.0), (2, 0.5, 1_002.0), (3, 1 / 3, 1_003.0)]
    assert [value for _, value, _ in found["grpo-1/rollout/reward"]] == [0.1, 0.2, 0.3]
    assert [(at, value) for at, value, _ in found["eval/pass_at_1"]] == [(4, 0.25)]
    assert events(paths) == []


def read_tensorboard(folder: Path) -> dict[str, list[Any]]:
    """Tag to (step, value, Unix seconds), as tensorboard itself reads them, in order."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    found: dict[str, list[Any]] = {}
    for path in folder.iterdir():
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                number = round(float(make_ndarray(value.tensor)), 6)
                row = (event.step, pytest.approx(number, rel=1e-5), event.wall_time)
                found.setdefault(value.tag, []).append(row)
    return found


async def test_wandb_gets_a_step_axis_for_each_group(paths: RunPaths, made_up) -> None:
    out = made_up("wandb")
    with paths.experiment.open("a") as file:
        file.write('[serve.env]\nHF_TOKEN = "s3cret"\n[notify]\nwebhook = "https://h/s3cret"\n')
    async with sunk(paths, to=["wandb"], project="ours", wandb_mode="offline") as writer:
        await writer.put(step(1, train_loss=1.0), step(2, train_loss=0.5), late_evaluation())
    (_, init), *calls = read_out(out)
    assert (init["project"], init["name"], init["id"], init["mode"]) == (
        *("ours", "toy-1", "toy-1", "offline"),
    )
    assert init["dir"] == str(paths.root / "sinks" / "wandb")
    assert init["config"]["model"] == {"init": "tiny"}
    assert "s3cret" not in out.read_text()
    assert calls[0] == ["define", "grpo-1/step", None]
    assert calls[1] == ["define", "grpo-1/*", "grpo-1/step"]
    logged = [call[1] for call in calls if call[0] == "log"]
    assert logged[:2] == [
        {"grpo-1/step": 1, "grpo-1/train/loss": 1.0},
        {"grpo-1/step": 2, "grpo-1/train/loss": 0.5},
    ]
    assert logged[2]["eval/step"] == 4
    assert calls[-1] == ["finish"]


@pytest.mark.parametrize(
    ("how", "ending"),
    [
        ({"init": "raise RuntimeError('no API key')"}, "RuntimeError: no API key"),
        ({"log": "raise OSError('no network')"}, "OSError: no network"),
        ({"finish": "os._exit(9)"}, "exit 9"),
    ],
)
async def test_a_failed_sink_is_an_event_and_the_run_continues(
    paths: RunPaths, made_up, how: dict[str, str], ending: str
) -> None:
    made_up("wandb", **how)
    console = Said()
    async with sunk(paths, console, to=["wandb"]) as writer:
        await writer.put(step(1, train_loss=1.0))
    [(kind, message)] = events(paths)
    assert kind == "sink_failed"
    assert message.startswith(
        "sink-wandb failed; the run continues, and its store has all numbers: "
    )
    assert message.endswith(ending)
    assert console.lines == [f"warning: {message}"]


@pytest.mark.parametrize("where", ["log", "finish"])
async def test_a_sink_that_hangs_delays_the_end_only_by_its_deadline(
    paths: RunPaths, made_up, where: str
) -> None:
    made_up("wandb", **{where: "time.sleep(100)"})
    async with sunk(paths, to=["wandb"], close_s=1.0) as writer:
        began = time.monotonic()
        for number in range(200):
            await writer.put(step(number, train_loss=1.0))
        await writer.flush()
        assert time.monotonic() - began < 50
        began = time.monotonic()
    assert time.monotonic() - began < 50
    [(kind, message)] = events(paths)
    assert kind == "sink_failed"
    assert "did not end within 1 s" in message


async def test_an_error_of_the_run_passes_through_its_sinks(paths: RunPaths, made_up) -> None:
    out = made_up("wandb")
    with pytest.raises(BaseExceptionGroup) as raised:
        async with sunk(paths, to=["wandb"]):
            raise MachineError("the cause")
    assert raised.group_contains(MachineError, match="the cause")
    assert read_out(out)[-1] == ["finish"]


async def test_each_number_is_sent_once_even_if_it_is_late(paths: RunPaths) -> None:
    async with open_writer(paths, Options()) as writer:

        async def after(*records: Any) -> list[tuple[str, int, dict[str, float]]]:
            await writer.put(*records)
            await writer.flush()
            return [(point.group, point.step, point.values) for point in follower.fresh()]

        await writer.put(attempt())
        await writer.flush()
        with RunReader(paths) as reader:
            follower = Follower(reader, attempt=1, since=0.0)
            assert await after(step(1, rollout_reward=0.1)) == [
                ("grpo-1", 1, {"rollout/reward": 0.1})
            ]
            assert await after(step(2, rollout_reward=0.2), step(1, train_loss=3.0)) == [
                ("grpo-1", 1, {"train/loss": 3.0}),
                ("grpo-1", 2, {"rollout/reward": 0.2}),
            ]
            assert await after() == []
            many = [step(number, train_loss=1.0) for number in range(3, 60)]
            assert len(await after(*many)) == 57
            late = step(59 - LATE_STEPS, rollout_reward=0.5)
            assert await after(late) == [("grpo-1", 59 - LATE_STEPS, {"rollout/reward": 0.5})]
            assert await after(step(1, stage=2, train_loss=9.0)) == [
                ("stage-2", 1, {"train/loss": 9.0})
            ]
            assert len(follower._sent) < 200


async def test_a_later_attempt_sends_only_its_own_numbers(paths: RunPaths) -> None:
    async with open_writer(paths, Options()) as writer:
        await writer.put(attempt(), step(1, train_loss=1.0), evaluation(at=5.0))
        later = evaluation("b", step=2, at=50.0)
        sources = {"by_source": {"made": {"pass_at_1": 0.97}, "bench": {"pass_at_1": 0.0}}}
        later = replace(later, detail={**later.detail, **sources})
        await writer.put(attempt(2), step(1, train_loss=2.0), later)
        await writer.flush()
    with RunReader(paths) as reader:
        points = Follower(reader, attempt=2, since=20.0).fresh()
    assert [(p.group, p.step) for p in points] == [("grpo-1", 1), ("eval", 2)]
    assert points[0].values == {"train/loss": 2.0}
    values = points[1].values
    assert (values["made/pass_at_1"], values["bench/pass_at_1"]) == (0.97, 0.0)


def test_a_sink_that_is_not_installed_is_refused_by_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.toml"
    path.write_text(EXPERIMENT)
    experiment = load_experiment(path, overrides=['sinks.to=["trackio"]'])
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "trackio" else real(name)
    )
    with pytest.raises(MachineError) as raised:
        plan(experiment)
    assert str(raised.value) == (
        'sinks.to = "trackio" needs trackio, which is not installed; '
        f"{sys.executable} -m pip install trackio"
    )


async def test_the_real_wandb_writes_a_run_offline(paths: RunPaths) -> None:
    pytest.importorskip("wandb")
    async with sunk(paths, to=["wandb"], wandb_mode="offline") as writer:
        await writer.put(step(1, train_loss=1.0), step(2, train_loss=0.5))
    assert events(paths) == []
    assert list((paths.root / "sinks" / "wandb").rglob("run-toy-1.wandb"))


async def test_the_real_trackio_has_the_run(
    paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    async with sunk(paths, to=["trackio"]) as writer:
        await writer.put(step(1, train_loss=1.0), step(2, train_loss=0.5))
    assert events(paths) == []
    [database] = (tmp_path / "trackio").glob("forge*.db")
    with closing(sqlite3.connect(database)) as db:
        stored = db.execute("SELECT metrics FROM metrics").fetchall()
    assert len(stored) == 2
