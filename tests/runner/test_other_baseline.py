"""An evaluation against the other baseline: one judgement a solved problem, kept over a resume."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from forge.config.schema import JudgeTable
from forge.records import Purpose, Status, Verdict
from forge.runner.stages import evaluate as module
from forge.runner.stages.evaluate import KIND, with_other_baseline
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from forge.store.write.writer import open_writer
from forge.views.statistics import evaluate_groups
from tests.runner.stages.desks import can_record
from tests.store.storefactory import Options, attempt, group, problem, timing, verdict, write_run

CORRECT, WRONG = Status.CORRECT, Status.WRONG
PROBLEMS = [problem(number) for number in range(4)]
SPEEDUPS = (2.0, 4.0, None, 3.0)
"""Speed-ups of the correct kernel of each problem against eager; None for a problem without one."""
COMPILED_US = {"softmax-0000": 50.0, "softmax-0001": 200.0}
"""Times of the other baseline; eager takes 100 us. The last problem's cannot be measured."""


class TimingPool:
    """Judges every kernel as correct, with the other baseline's time if the problem has one."""

    def __init__(self, table: JudgeTable) -> None:
        self.table = table
        self.asked: list[str] = []

    async def judge(self, problem: Any, code: str) -> Verdict:
        self.asked.append(problem.problem_id)
        if problem.problem_id not in COMPILED_US:
            return verdict(Status.UNJUDGEABLE)
        return verdict(timing=replace(timing(1.0), baseline_us=COMPILED_US[problem.problem_id]))


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[TimingPool]:
    opened: list[TimingPool] = []

    @asynccontextmanager
    async def open_pool(table: JudgeTable, **options: Any) -> AsyncIterator[TimingPool]:
        opened.append(TimingPool(table))
        yield opened[-1]

    monkeypatch.setattr(module, "open_pool", open_pool)
    return opened


async def measured(root: Path) -> dict[str, Any]:
    """The detail of the evaluation after both baselines were measured, twice."""
    groups = [
        group(
            number, [[CORRECT], [WRONG]] if speedup else [[WRONG], [WRONG]], purpose=Purpose.EVAL,
            problem_id=PROBLEMS[number].problem_id, stage=0, step=0,
            speed=timing(speedup) if speedup else None,
        )
        for number, speedup in enumerate(SPEEDUPS)
    ]  # fmt: skip
    result = evaluate_groups(
        groups, PROBLEMS, stage="eval-0", step=0, version=0, max_turns=1, at=1.0
    )
    result = replace(result, detail={**result.detail, "baseline": "eager"})
    await write_run(root, [attempt(), *PROBLEMS, *groups, result])
    async with open_writer(root, Options()) as writer:
        run: Any = SimpleNamespace(
            paths=RunPaths(root), problems=PROBLEMS, writer=writer, observer=None, log_dir=root,
            placement=SimpleNamespace(judge=("gpu",)), weights=SimpleNamespace(step=0),
            progress=SimpleNamespace(enter=lambda *args, **kwargs: None, done=0), busy=dict,
        )  # fmt: skip
        can_record(run)
        await with_other_baseline(run, result, JudgeTable(), stage=0)
        await writer.flush()
        found = await with_other_baseline(run, result, JudgeTable(), stage=0)
        await writer.flush()
    return dict(found.detail)


def test_each_solved_problem_is_judged_once_against_the_other_baseline(
    tmp_path: Path, pools: list[TimingPool]
) -> None:
    detail = anyio.run(measured, tmp_path / "toy-1")
    first, again = pools
    assert first.table.baseline == "compile"
    assert sorted(first.asked) == ["softmax-0000", "softmax-0001", "softmax-0003"]
    assert again.asked == ["softmax-0003"], "what was measured is kept"
    other = detail["speed_other"]
    assert (other["baseline"], other["num_left_out"]) == ("compile", 1)
    figures = other["by_turn"]["0"]
    assert (figures["num_problems"], figures["num_timed"]) == (3, 2)
    assert figures["fast_p"]["1"][0] == pytest.approx((0.0 + 0.5 + 0.0) / 3)
    assert figures["geomean_correct"][0] == pytest.approx(math.sqrt(1.0 * 8.0))
    with open_run(tmp_path / "toy-1") as reader:
        rows = reader.rows(
            "SELECT baseline, is_own, fast_p FROM v_fast_p_by_turn "
            "WHERE answers = 'turn' AND p = 1 ORDER BY is_own"
        )
        own = reader.value("SELECT count(*) FROM v_fast_p WHERE p = 1")
        means = reader.value("SELECT count(*) FROM v_geomean WHERE baseline = 'compile'")
        failed = reader.value(
            "SELECT message FROM events WHERE kind = ? AND message LIKE '%no time%'", (KIND,)
        )
    assert [(row["baseline"], row["is_own"]) for row in rows] == [("compile", 0), ("eager", 1)]
    assert [row["fast_p"] for row in rows] == [pytest.approx(1 / 6), pytest.approx(3 / 8)]
    assert (own, means) == (1, 4)
    assert failed.startswith("softmax-0003: no time against compile: unjudgeable")


def test_without_times_nothing_is_judged_again(tmp_path: Path, pools: list[TimingPool]) -> None:
    async def untimed() -> None:
        groups = [
            group(0, [[CORRECT]], purpose=Purpose.EVAL, problem_id="softmax-0000", stage=0, step=0)
        ]
        result = evaluate_groups(
            groups, PROBLEMS, stage="eval-0", step=0, version=0, max_turns=1, at=1.0
        )
        await write_run(tmp_path / "toy-1", [attempt(), *PROBLEMS, *groups, result])
        run: Any = SimpleNamespace(paths=RunPaths(tmp_path / "toy-1"))
        assert await with_other_baseline(run, result, JudgeTable(), stage=0) is result

    anyio.run(untimed)
    assert pools == []
