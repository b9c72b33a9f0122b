"""What a person sees when a run ends."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from forge.records import Status
from forge.runner.console import Console
from forge.runner.summary import show_summary
from forge.store.layout import RunPaths
from tests.store.storefactory import attempt, evaluation, group, problem, turn, write_run

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

EVIL = "x = 1  # \x1b[2J\x1b]0;title\x07 \x9b31m \u202e\n"


def test_the_summary_shows_the_best_kernel_and_obeys_none_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    played = group(0, [[Status.CORRECT]], step=1)
    best = replace(played.trajectories[0], turns=(turn(0, code=EVIL),))
    records = [attempt(), problem(0), replace(played, trajectories=(best,)), evaluation()]
    anyio.run(write_run, tmp_path / "toy-1", records)
    show_summary(RunPaths(tmp_path / "toy-1"), Console())
    shown = capsys.readouterr().err
    assert "best kernel: softmax-0000, 1 launch(es), g0.r0.t0" in shown
    assert "x = 1  # ␛[2J␛]0;title" in shown
    assert not set("\x1b\x07\x9b\u202e") & set(shown)
    assert "25.0 %" in shown
    assert "forge show" in shown
