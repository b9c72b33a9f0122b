"""The summary at the end of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from forge.process.devices import Gpu, Vendor
from forge.records import Metrics, Status
from forge.runner.live.console import Console
from forge.runner.outlets.summary import show_summary
from forge.runner.plan.placement import Placement
from forge.store.layout import RunPaths
from tests.store.storefactory import attempt, evaluation, group, problem, turn, write_run

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

EVIL = "x = 1  # \x1b[2J\x1b]0;title\x07 \x9b31m \u202e\n"


def test_the_summary_shows_the_best_kernel_without_its_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    played = group(0, [[Status.CORRECT]], step=1)
    best = replace(played.trajectories[0], turns=(turn(0, code=EVIL),))
    records = [attempt(), problem(0), replace(played, trajectories=(best,)), evaluation()]
    anyio.run(write_run, tmp_path / "toy-1", records)
    show_summary(RunPaths(tmp_path / "toy-1"), Console())
    shown = capsys.readouterr().err
    assert "best kernel: softmax-0000, 1 launch, g0.r0.t0" in shown
    assert "x = 1  # ␛[2J␛]0;title" in shown
    assert not set("\x1b\x07\x9b\u202e") & set(shown)
    assert "25.0 %" in shown
    assert "forge show" in shown


def test_the_summary_shows_measured_and_planned_gpu_memory_of_the_trainer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = [{"train/peak_bytes/max": peak} for peak in (9e9, 11.25e9, 10e9)]
    steps = [Metrics(stage=3, step=i, at=1.0, values=value) for i, value in enumerate(values)]
    anyio.run(write_run, tmp_path / "toy-1", [attempt(), *steps])
    card = Gpu(
        vendor=Vendor.NVIDIA, index=0, uuid="GPU-0", name="H200", memory_bytes=1, free_bytes=1
    )
    placement = Placement(train=(card,), bytes_by_gpu={"GPU-0": {"train": 12_000_000_000}})
    show_summary(RunPaths(tmp_path / "toy-1"), Console(), placement)
    message = "trainer of stage 3: 11.2 GB of a GPU at its peak, 12.0 GB planned"
    assert message in capsys.readouterr().err
    show_summary(RunPaths(tmp_path / "toy-1"), Console(), Placement())
    assert "of a GPU at its peak" not in capsys.readouterr().err
