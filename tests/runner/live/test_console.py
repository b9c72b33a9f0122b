"""A reader that goes away ends the output, and nothing else."""

import io
import os
import pty
import sys

import anyio
import anyio.to_thread
import pytest
from rich.console import Console as RichConsole

from forge.runner.live import progress as console_module
from forge.runner.live.progress import Console, Progress


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
    out = io.StringIO()
    RichConsole(file=out, width=80).print(console_module._render(progress))
    first, second = out.getvalue().splitlines()
    assert first.rstrip().endswith("5/10 steps ETA 1:00")
    assert second.endswith("…")
    assert list(progress.idle) == ["trainer"], "engines have no work in the stage"
