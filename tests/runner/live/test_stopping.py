"""Repeated Ctrl-C with real signals: each acts before its message, also after the work ended. A
reader of the console that goes away ends the output, and nothing else."""

import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from forge.config.schema import LimitsTable
from forge.runner.live import progress as console_module
from forge.runner.live import stopping
from forge.runner.live.progress import Console, Progress
from forge.runner.live.stopping import StopRequest, StoreObserver, limit_reached, watch_signals
from forge.runner.work import Work
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from tests.runner.stages.desks import Recorder
from tests.runner.supervised import Supervised
from tests.views.terminals import shown

RESUME = '"forge resume x-1" continues'


def new_stop() -> StopRequest:
    return StopRequest(resume=RESUME)


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(5):
        while not condition():  # noqa: ASYNC110 - what a signal handler did has no event
            await anyio.sleep(0.005)


async def test_each_signal_acts_before_its_message_and_the_third_is_handled_while_work_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop, said, done = new_stop(), [], []
    monkeypatch.setattr(stopping.os, "_exit", done.append)
    working = anyio.CancelScope()

    def say(line: str) -> None:
        said.append((line.split(";")[0], stop.is_set, working.cancel_called))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(
            lambda: watch_signals(
                stop, say=say, cancel_work=working.cancel, kill_all=lambda: done.append("killed")
            )
        )
        await anyio.wait_all_tasks_blocked()
        with working:
            try:
                os.kill(os.getpid(), signal.SIGHUP)
                os.kill(os.getpid(), signal.SIGTERM)
                await until(lambda: said)
                assert said == [("stopping: finishing the step and saving", True, False)]
                os.kill(os.getpid(), signal.SIGINT)
                await anyio.sleep(5)
            finally:
                with anyio.CancelScope(shield=True):
                    await until(lambda: len(said) == 2)
                    os.kill(os.getpid(), signal.SIGINT)
                    await until(lambda: done)
        assert working.cancelled_caught
        tasks.cancel_scope.cancel()
    assert said[1] == ("stopping now", True, True)
    assert done == ["killed", 130]
    assert stop.reason == "stopped by SIGTERM"


def test_limits_are_reached_by_hours_or_tokens_and_absent_limits_never() -> None:
    assert limit_reached(LimitsTable(), hours=1e6, tokens=10**12) == ""
    limits = LimitsTable(hours=0.5, tokens=100)
    assert limit_reached(limits, hours=0.49, tokens=99) == ""
    assert limit_reached(limits, hours=0.5, tokens=0) == "limits.hours = 0.5 reached"
    assert limit_reached(limits, hours=0, tokens=100) == "limits.tokens = 100 reached"


async def test_the_devices_of_a_child_on_a_node_name_the_node() -> None:
    rows = Recorder()
    observer = StoreObserver(rows, 1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(observer.drain)
        observer.started(
            "judge-0", pid=7, devices="GPU-a", log_path=Path("x.log"), node="gpu-7 10.0.0.7"
        )
        observer.ended("judge-0", pid=7, reason="its host is gone: lost")
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    devices = [getattr(row, "devices", None) for row in rows.records]
    assert devices == ["gpu-7 10.0.0.7: GPU-a", None]
    assert observer.seen["judge-0"].reason == "its host is gone: lost"


def test_a_pid_of_another_machine_is_neither_killed_nor_forgotten_here() -> None:
    observer = StoreObserver(Recorder(), 1)
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True
    )
    try:
        observer.started(
            "judge-0", pid=child.pid, devices="cpu", log_path=Path("x"), node="gpu-7 10.0.0.7"
        )
        observer.kill_all()
        assert child.poll() is None, "the pid is the node's"
        observer.started("serve-0", pid=child.pid, devices="cpu", log_path=Path("y"))
        observer.ended("judge-0", pid=child.pid, reason="stopped")
        observer.kill_all()
        assert child.wait(10) == -9
    finally:
        child.kill()
        child.wait()


@pytest.fixture
def supervised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Supervised:
    return Supervised(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("is_renamed", "is_made_again"), [(True, False), (False, False), (True, True)]
)
async def test_a_run_whose_directory_is_moved_or_deleted_stops_with_3(
    supervised: Supervised, is_renamed: bool, is_made_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`is_made_again`: by a trainer, which writes a checkpoint by its path."""
    killed: list[bool] = []
    monkeypatch.setattr(StoreObserver, "kill_all", lambda _self: killed.append(True))
    root = supervised.paths.root
    now = root.with_name("renamed")

    async def work(self: Work) -> None:
        root.rename(now) if is_renamed else shutil.rmtree(root)
        if is_made_again:
            (root / "checkpoints").mkdir(parents=True)
        await anyio.sleep_forever()

    ending = await supervised.end(work)
    assert (ending.code, str(root) in ending.message) == (3, True)
    assert "moved or deleted while its run wrote to it" in ending.message
    left = [path.name for path in root.iterdir()] if root.exists() else []
    assert left == ["checkpoints"] * is_made_again, "nothing of the run is under the old name"
    assert killed == [True]
    if is_renamed:
        with open_run(RunPaths(now)) as reader:
            code, reason = reader.query("SELECT exit_code, reason FROM attempts").rows[0]
        assert (code, reason) == (3, ending.message)


def read_all(fd: int) -> str:
    return os.read(fd, 1 << 16).decode()


async def follow_for(console: Console, progress: Progress, seconds: float) -> None:
    with anyio.move_on_after(seconds):
        await console.follow(progress)


async def test_a_closed_pipe_ends_neither_lines_nor_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", buffering=1) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        console, progress = Console(), Progress(run="x-1", num_stages=1)
        console.say("read")
        assert read_all(reader) == "read\n"
        os.close(reader)
        console.say("not read")
        console.show("nor this")
        await follow_for(console, progress, 0.02)
        stream.write("discarded, at exit too\n")


async def test_a_lost_terminal_does_not_end_the_live_display(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    reader, terminal = pty.openpty()
    with os.fdopen(terminal, "w", buffering=1) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        console, progress = Console(), Progress(run="x-1", num_stages=1, label="sft-1")
        shown = ""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(console.follow, progress)
            with anyio.fail_after(10):
                while "sft-1" not in shown:
                    shown += await anyio.to_thread.run_sync(read_all, reader)
            tasks.cancel_scope.cancel()
        os.close(reader)
        await follow_for(console, progress, 0.02)
        console.say("not read")


def test_the_pace_of_a_resumed_stage_counts_only_steps_of_its_own_trainer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("forge.runner.live.progress.time.monotonic", lambda: now)
    progress = Progress(run="x-1", num_stages=1)
    progress.enter("sft-1", stage=1, total=100, unit="steps", busy={})
    now = 130.0  # imports, the model, the checkpoint
    progress.begin_at(80)
    assert progress.eta_s() is None
    now, progress.done = 140.0, 90
    assert progress.eta_s() == 10.0


def test_a_terminal_of_80_columns_shows_the_time_left_and_cuts_other_numbers() -> None:
    progress = Progress(run="x-1", num_stages=2)
    progress.enter("sft-0", stage=0, total=10, unit="steps", busy={}, roles=["trainer"])
    progress.stage_started_at -= 60.0
    progress._paced_from = (progress.stage_started_at, 0)
    progress.done, progress.numbers = 5, {f"number_{n}": float(n) for n in range(20)}
    progress.measure_idle({"trainer": 60.0, "serve": 0.0})
    first, second = shown(console_module._render(progress), width=80).splitlines()
    assert first.rstrip().endswith("5/10 steps ETA 1:00")
    assert second.endswith("…")
    assert list(progress.idle) == ["trainer"], "engines have no work in the stage"
