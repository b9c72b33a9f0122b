"""The supervisor around the work of a run: what is checked before it starts, background tasks, how
each ending is recorded, and a store that cannot be written: one line and exit 3.
"""

import errno
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from forge.config.load import load_experiment
from forge.config.schema import EvalStage, Experiment, LimitsTable, LoraTable, ModelTable, SftStage
from forge.errors import ChildDied, ConfigError, MachineError
from forge.exits import ending_of
from forge.process.child import ChildSpec, open_child
from forge.process.control import ControlClient
from forge.process.environment import child_env
from forge.records import Event
from forge.runner import run as run_module
from forge.runner import work as stages
from forge.runner.attempt import RunLog, keep_counters
from forge.runner.live.progress import Console, Progress
from forge.runner.live.stopping import StopRequest
from forge.runner.past import EarlierAttempts
from forge.runner.plan.placement import Placement
from forge.runner.run import resume_run, run_experiment
from forge.runner.stages.run_context import RunContext
from forge.runner.work import Work
from forge.store.layout import RunPaths, create_run, open_run_lock, read_status, write_status
from forge.store.write.writer import open_writer
from tests.gpus import make_gpu
from tests.runner.supervised import Supervised

QUICKSTART = Path(__file__).parents[2] / "experiments" / "quickstart.toml"
COMMIT = "5" * 40


@pytest.fixture
def supervised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Supervised:
    return Supervised(tmp_path, monkeypatch)


def make_work(experiment: Experiment, paths: RunPaths, placement: Placement) -> Work:
    absent: Any = dict.fromkeys(("writer", "observer", "stop"))
    run = RunContext(
        experiment=experiment, paths=paths, attempt=1, placement=placement,
        progress=Progress(run="x-1", num_stages=1), console=Console(quiet=True), **absent,
    )  # fmt: skip
    run.socket_dir = paths.root
    return Work(run=run, past=EarlierAttempts())


async def test_each_role_gets_the_gpus_of_its_placement(
    supervised: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = [make_gpu(index) for index in range(3)]
    seen: dict[str, Any] = {}

    @asynccontextmanager
    async def open_pool(table: Any, **keys: Any) -> AsyncIterator[None]:
        seen["judge"] = keys["gpus"]
        yield

    @asynccontextmanager
    async def open_replicas(table: Any, **keys: Any) -> AsyncIterator[None]:
        seen.update(keys, table=table)
        yield

    monkeypatch.setattr(stages, "open_pool", open_pool)
    monkeypatch.setattr(stages, "open_replicas", open_replicas)
    lora = supervised.experiment.model.model_copy(update={"lora": LoraTable(r=64)})
    placement = Placement(
        engine="vllm", serve=((cards[0],), (cards[1],)), judge=(cards[1], cards[2]),
        memory_share=0.4,
    )  # fmt: skip
    work = make_work(
        supervised.experiment.model_copy(update={"model": lora}), supervised.paths, placement
    )
    chat = SimpleNamespace(stop_token_ids=(1,))
    run: Any = work.run
    run.prompter, run.prompts = SimpleNamespace(chat=chat), SimpleNamespace(thinking="<think>")
    run.weights = SimpleNamespace(current=None)
    async with work._open_pool(), work._open_replicas():
        pass
    assert seen["judge"] == (cards[1], cards[2])
    assert seen["gpus"] == (("GPU-0",), ("GPU-1",))
    assert seen["shared"] == {"GPU-1"}
    assert (seen["table"].engine, seen["table"].memory_share) == ("vllm", 0.4)
    assert (seen["max_lora_rank"], seen["thinking"]) == (64, "<think>")


async def test_judges_do_not_get_the_api_key_of_servers_whatever_its_name(
    supervised: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    envs: list[dict[str, str]] = []

    @asynccontextmanager
    async def open_pool(table: Any, **_keys: Any) -> AsyncIterator[None]:
        envs.append(child_env(threads=1, extra=table.env))
        yield

    monkeypatch.setattr(stages, "open_pool", open_pool)
    monkeypatch.setenv("OUR_SERVER_PASS", "sesame")
    for name in ("OUR_SERVER_PASS", None):
        serve = supervised.experiment.serve.model_copy(update={"api_key_env": name})
        experiment = supervised.experiment.model_copy(update={"serve": serve})
        work = make_work(experiment, supervised.paths, Placement())
        async with work._open_pool():
            pass
    assert [env["OUR_SERVER_PASS"] for env in envs] == ["", "sesame"]


async def test_status_and_stop_are_answered_while_a_run_prepares(supervised: Supervised) -> None:
    heard = []

    async def work(self: Work) -> None:
        while "control_socket" not in read_status(self.run.paths):  # noqa: ASYNC110 - a file
            await anyio.sleep(0.01)
        client = ControlClient(read_status(self.run.paths)["control_socket"])
        heard.append(await anyio.to_thread.run_sync(client.status))
        await anyio.to_thread.run_sync(client.stop)
        await self.run.stop.wait()
        raise self.run.stop.stopped()

    ending = await supervised.end(work)
    assert ending.message.startswith('forge stop; everything is saved. "forge resume ')
    assert (heard[0].run, heard[0].stage) == ("x-1", "prepare")
    assert supervised.recorded == (130, ending.message)
    assert read_status(supervised.paths)["state"] == "stopped"


async def test_a_failure_after_a_stop_request_is_reported_as_that_failure(
    supervised: Supervised,
) -> None:
    async def work(self: Work) -> None:
        self.run.stop.set("stopped by SIGINT")
        async with anyio.create_task_group():
            raise ChildDied("trainer died: exit 1")

    ending = await supervised.end(work)
    assert supervised.recorded == (4, "trainer died: exit 1") == (ending.code, ending.message)
    assert read_status(supervised.paths)["state"] == "failed"


async def test_a_second_ctrl_c_cancels_the_work_and_records_how_its_children_ended(
    supervised: Supervised,
) -> None:
    async def work(self: Work) -> None:
        spec = ChildSpec(
            name="trainer",
            argv=(sys.executable, "-c", "import time; time.sleep(60)"),
            log_path=self.run.paths.root / "trainer.log",
            env={},
            socket_path=None,
            config={},
        )
        async with open_child(spec, observer=self.run.observer):
            os.kill(os.getpid(), signal.SIGINT)
            await self.run.stop.wait()
            os.kill(os.getpid(), signal.SIGINT)
            await anyio.sleep_forever()

    ending = await supervised.end(work)
    assert ending.code == 130
    assert ending.message.startswith("stopped at once; ")
    assert supervised.recorded == (130, ending.message)
    ended_at, reason = supervised.row("SELECT ended_at, reason FROM processes")
    assert ended_at is not None
    assert "stopped by forge" in reason


def test_a_third_ctrl_c_leaves_no_socket_directory_and_says_how_to_continue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []
    (tmp_path / "sockets").mkdir()
    run: Any = SimpleNamespace(
        observer=SimpleNamespace(kill_all=lambda: done.append("killed")),
        socket_dir=tmp_path / "sockets",
        console=Console(quiet=True),
        stop=StopRequest(resume='"forge resume x-1" continues'),
    )
    run_module._kill_all(run)
    assert done == ["killed"]
    assert not run.socket_dir.exists()
    said = capsys.readouterr().err
    assert said.startswith("forge: killed; what was recorded is safe")
    assert said.endswith('"forge resume x-1" continues\n')


async def test_a_bug_is_recorded_by_name_and_its_traceback_is_logged(
    supervised: Supervised, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(self: Work) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            raise KeyError("step")

    ending = await supervised.end(work)
    assert supervised.recorded == (70, "KeyError: 'step'") == (ending.code, ending.message)
    assert "in work" in caplog.text


async def test_a_failed_store_is_reported_before_the_stop_that_it_could_not_record(
    supervised: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*args: object) -> None:
        raise MachineError("run.db: the disk is full")

    async def work(self: Work) -> None:
        self.run.stop.set("stopped by SIGINT")
        raise self.run.stop.stopped()

    monkeypatch.setattr(run_module, "record_end", fail)
    ending = await supervised.end(work)
    assert (ending.code, ending.message) == (3, "run.db: the disk is full")


async def test_a_limit_stops_an_attempt_like_a_first_ctrl_c() -> None:
    stop, said = StopRequest(resume="resume."), []
    stats = SimpleNamespace(generated_tokens=100, num_judged=7)
    run: Any = SimpleNamespace(
        experiment=SimpleNamespace(limits=LimitsTable(tokens=100)),
        progress=Progress(run="x-1", num_stages=1),
        replicas=SimpleNamespace(stats=lambda: stats),
        pool=SimpleNamespace(stats=lambda: stats),
        busy=dict,
        stop=stop,
        console=SimpleNamespace(say=said.append),
    )
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep_counters, run)
            await stop.wait()
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    assert said == ["limits.tokens = 100 reached: finishing the step and saving"]
    assert str(stop.stopped()).startswith("limits.tokens = 100 reached; everything is saved.")


def replace_preparation(monkeypatch: pytest.MonkeyPatch) -> None:
    """No problems, no judges; weights of the name w0."""

    @asynccontextmanager
    async def nothing(*args: Any) -> AsyncIterator[None]:
        yield

    async def load_problems(self: Work) -> None:
        pass

    async def prepare_run(run: Any, *, state: object) -> None:
        run.weights = SimpleNamespace(serving=None, current="w0")

    monkeypatch.setattr(Work, "_open_pool", nothing)
    monkeypatch.setattr(Work, "_counted", nothing)
    monkeypatch.setattr(Work, "_load_problems", load_problems)
    monkeypatch.setattr(stages, "prepare_run", prepare_run)


@pytest.mark.parametrize(("sleeps", "expected"), [(True, [1, None, 2]), (False, [1, 1, 1])])
async def test_engines_that_do_not_fit_beside_the_trainer_are_closed_during_sft(
    supervised: Supervised,
    monkeypatch: pytest.MonkeyPatch,
    sleeps: bool,
    expected: list[int | None],
) -> None:
    seen: list[Any] = []
    opened = iter((1, 2))

    @asynccontextmanager
    async def open_replicas(self: Work) -> AsyncIterator[int]:
        yield next(opened)

    async def run_stage(self: Work, index: int, stage: Any) -> None:
        run: Any = self.run
        assert run.weights.serving == run.replicas
        seen.append(run.replicas)

    replace_preparation(monkeypatch)
    monkeypatch.setattr(Work, "_open_replicas", open_replicas)
    monkeypatch.setattr(Work, "_run_stage", run_stage)
    planned = [
        EvalStage(kind="eval"),
        SftStage(kind="sft", steps=1, learning_rate=1e-3),
        EvalStage(kind="eval"),
    ]
    work = make_work(
        supervised.experiment.model_copy(update={"stage": planned}),
        supervised.paths,
        Placement(sleeps=sleeps),
    )
    await work.run_to_end()
    assert seen == expected


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    seen: list[SimpleNamespace] = []

    async def supervise(paths, experiment, past, console, placement) -> None:
        seen.append(SimpleNamespace(paths=paths, experiment=experiment, past=past))
        assert not placement.gpus, "the quickstart needs none"

    monkeypatch.setattr(run_module, "_supervise", supervise)
    return seen


def start(folder: Path, *overrides: str) -> RunPaths:
    return run_experiment(
        QUICKSTART, overrides=(f"store.dir={folder}/runs", *overrides), quiet=True
    )


def make_past(folder: Path, begun: list[SimpleNamespace], *, num_finished: int) -> RunPaths:
    paths = start(folder)
    begun.clear()

    async def record() -> None:
        async with open_writer(paths, load_experiment(paths.experiment).store) as writer:
            for stage in range(num_finished):
                ended = Event(at=time.time(), kind="stage_end", message="", data={"stage": stage})
                await writer.put(ended)

    anyio.run(record)
    return paths


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        (["problems.num_problems=300"], ConfigError),
        (["model.init=x"], ConfigError),
        (["serve.python=/bin/false"], MachineError),
        (["devices.gpus=auto", "devices.train=99"], MachineError),
    ],
)
def test_an_experiment_that_cannot_start_leaves_no_run_directory(tmp_path, begun, overrides, error):
    with pytest.raises(error):
        start(tmp_path, *overrides)
    assert not begun
    assert not (tmp_path / "runs").exists()


def test_a_run_records_the_hub_name_and_commit_and_uses_the_directory(tmp_path, begun, monkeypatch):
    def locate(table: ModelTable, *, say: object) -> ModelTable:
        return table.model_copy(update={"path": f"/cache/{table.path}", "revision": COMMIT})

    monkeypatch.setattr(run_module, "locate_model", locate)
    text = QUICKSTART.read_text().replace('init = "tiny"', 'path = "org/name"')
    (tmp_path / "x.toml").write_text(text)
    overrides = [f"store.dir={tmp_path}/runs"]
    paths = run_experiment(tmp_path / "x.toml", overrides=overrides, quiet=True)
    recorded = load_experiment(paths.experiment).model
    assert (recorded.path, recorded.revision) == ("org/name", COMMIT)
    assert begun[0].experiment.model.path == "/cache/org/name"


def test_earlier_attempts_are_read_only_under_the_runs_lock(tmp_path, begun, monkeypatch):
    paths = make_past(tmp_path, begun, num_finished=1)
    monkeypatch.setattr(run_module, "load_past", lambda *given: pytest.fail("read the past"))
    with open_run_lock(paths), pytest.raises(ConfigError, match="already running"):
        resume_run(paths, quiet=True)


def test_a_resumed_run_has_its_earlier_state_and_its_own_store_directory(
    tmp_path, begun, monkeypatch
):
    paths = make_past(tmp_path, begun, num_finished=2)
    monkeypatch.chdir("/")
    resume_run(paths, quiet=True)
    assert begun[0].past.state.finished_stages == (0, 1)
    assert begun[0].experiment.store.dir == tmp_path / "runs"


def test_a_finished_run_starts_nothing_when_resumed(tmp_path, begun):
    paths = make_past(tmp_path, begun, num_finished=5)
    assert resume_run(paths, quiet=True) == paths
    assert not begun


def test_a_run_without_a_database_cannot_be_resumed(tmp_path):
    with pytest.raises(ConfigError):
        resume_run(create_run("x", store_dir=tmp_path), quiet=True)


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    mounted = subprocess.run(["mount", "--bind", str(path), str(path)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting needs root")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(path)], check=True)
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


def test_lock_and_status_of_a_read_only_run_are_one_line_of_exit_3(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    write_status(paths, {"state": "running"})
    with read_only(tmp_path):
        with (
            pytest.raises(MachineError, match=r"cannot be written: Read-only file system"),
            open_run_lock(paths),
        ):
            pass
        with pytest.raises(MachineError, match=r"STATUS\.json: cannot be written: Read-only"):
            write_status(paths, {"state": "done"})
    assert read_status(paths) == {"state": "running"}
    assert not list(tmp_path.glob(".STATUS*"))


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EFBIG, errno.EIO])
def test_a_refusal_of_the_file_system_is_exit_3_before_the_deaths_that_follow(number: int) -> None:
    refused = OSError(number, os.strerror(number), "runs/x-1/batches/0-000001.npz")
    ending = ending_of(BaseExceptionGroup("", [ChildDied("trainer died"), refused]))
    assert (ending.code, ending.message) == (
        3,
        f"runs/x-1/batches/0-000001.npz: {os.strerror(number)}",
    )


def test_a_log_that_cannot_be_written_prints_nothing_and_raises_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = logging.LogRecord("forge", logging.INFO, "x.py", 1, "step %d", (1,), None)
    absent = RunLog(tmp_path / "absent" / "supervisor.log", delay=True)
    absent.handle(record)
    full = RunLog("/dev/full")
    full.handle(record)
    mistake = logging.LogRecord("forge", logging.INFO, "x.py", 1, "step %d", ("x",), None)
    good = RunLog(tmp_path / "supervisor.log")
    assert capsys.readouterr().err == ""
    good.handle(mistake)
    assert "Logging error" in capsys.readouterr().err, "a mistake of ours is still shown"
    for handler in (absent, full, good):
        with suppress(OSError):
            handler.close()
