"""Rows of Inductor: their problems, their time limit, and what a stopped measurement reports."""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING

import pytest

from bench import inductor_problems, inductor_workers
from bench.inductor import Result, Session, choose_tasks, report
from bench.inductor_problems import lowered
from bench.inductor_workers import Made, Task, make

if TYPE_CHECKING:
    from pathlib import Path

POINTWISE = Made(name="a", problem="", answer="triton_poi_fused_add_0.run()", code="x")


def test_constants_above_the_largest_are_lowered() -> None:
    source = "batch, dim = 4096, 16\nname = 'x'\nshape = (dim, 1 << 30)\n\ndef f(): return 9999\n"
    made = lowered(source, 64)
    assert "64, 16" in made
    assert "9999" in made


@pytest.mark.parametrize("missing", [True, False])
def test_half_of_the_rows_of_each_source_are_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: bool
) -> None:
    monkeypatch.setattr(inductor_problems, "NUM_GENERATED", 128)
    for level in ("level1", "level2"):
        (tmp_path / level).mkdir()
        for number in range(20):
            (tmp_path / level / f"{number}.py").write_text("n = 1\n")
    given = argparse.Namespace(
        device="cuda", max_mb=1.0, largest=None, num=39, seed=1,
        kernelbench=tmp_path / "none" if missing else tmp_path,
    )  # fmt: skip
    if missing:
        with pytest.raises(SystemExit, match="no folder level1"):
            choose_tasks(given)
        return
    tasks = choose_tasks(given)
    files = [one for one in tasks if one.name.startswith("level")]
    assert len(tasks) == 43
    assert sum(one.trains for one in files) == len(files) // 2
    assert sum(one.trains for one in tasks) == 21


def test_a_row_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor_workers, "ROW_S", 0.05)
    monkeypatch.setattr(inductor_workers, "_row", lambda _: time.sleep(5))
    began = time.monotonic()
    made = make(Task(name="slow", problem=""))
    assert made.error.startswith("takes over")
    assert time.monotonic() - began < 2


def test_rows_that_were_not_judged_are_left_out_of_the_shares(
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = [Result(made=POINTWISE, status="correct"), Result(made=POINTWISE)]
    assert report(results) == 1.0
    assert "pointwise     1 rows     1 rewritten     1 judged correct" in capsys.readouterr().out


def test_a_stopped_measurement_has_written_all_rows(tmp_path: Path) -> None:
    session = Session(until=time.monotonic() + 60, out=tmp_path / "rows.json")
    session.results = {"a": Result(made=POINTWISE)}
    session.tell("half")
    session.stop(15, None)
    assert session.is_over
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert (row["kind"], row["status"], row["code"]) == ("pointwise", "", "x")
