"""Problems that cannot be judged: counted beside the denominator wherever rates are shown."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from forge.records import AttemptEnd, Group, Purpose, Reason, Status
from forge.runner.outlets.notify import Bests
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from forge.views import show
from forge.views.report.contents import PROBLEMS
from forge.views.run_state import load_run_state
from forge.views.sql.sql import QUERIES
from forge.views.statistics import evaluate_groups
from tests.store.storefactory import attempt, group, problem, with_turns, write_run
from tests.views.terminals import shown

LABEL = "1 of 3 problems judged; 2 unjudgeable (1 problem_too_large, 1 reference_failed)"
GOOD, WRONG, NONE = Status.CORRECT, Status.WRONG, Status.UNJUDGEABLE


def played(number: int, rows: list[list[Status]], reason: str = "", **how: Any) -> Group:
    made = group(number + 1, rows, problem_id=problem(number).problem_id, **how)
    if not reason:
        return made
    return with_turns(made, lambda t: replace(t, verdict=replace(t.verdict, reason=reason)))


def run(*, is_partial: bool = True) -> list[Any]:
    """An evaluation of three problems, two of them unjudgeable, and a trained group of each."""
    reasons = ("", Reason.REFERENCE_FAILED, Reason.PROBLEM_TOO_LARGE)
    groups = [
        played(
            number + 10 * (purpose is Purpose.TRAIN),
            [[GOOD], [WRONG]] if not reason else [[NONE], [NONE]],
            reason,
            purpose=purpose,
            stage=0,
            step=0,
        )
        for purpose in (Purpose.EVAL, Purpose.TRAIN)
        for number, reason in enumerate(reasons if is_partial else ("",))
    ]
    problems = [problem(number) for number in (0, 1, 2, 10, 11, 12)]
    evaluated = [each for each in groups if each.purpose is Purpose.EVAL]
    result = evaluate_groups(
        evaluated, problems, stage="eval-0", step=0, version=0, max_turns=1, at=1_000.0
    )
    result = replace(result, detail={**result.detail, "num_trained_problems": 0})
    end = AttemptEnd(attempt=1, ended_at=2_000.0, exit_code=0, reason="done")
    return [attempt(), *problems, *groups, result, end]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    anyio.run(lambda: write_run(tmp_path / "toy-1", run(), texts="plain"))
    return tmp_path / "toy-1"


def test_show_and_status_name_judged_and_unjudgeable_problems(root: Path) -> None:
    data = show.show_run(root)
    text = shown(show.render_show(data))
    assert f"eval-0: {LABEL}" in text
    assert data["evaluations"][0]["pass_at_1"] == 0.5
    with open_run(root) as reader:
        run = load_run_state(reader, now=3_000.0)
    assert (run.judged, run.is_judged_in_part) == (LABEL, True)
    assert f"latest evaluation: pass@1 50.0 %, {LABEL}" in run.to_lines()


def test_an_evaluation_of_which_all_problems_were_judged_says_so(tmp_path: Path) -> None:
    anyio.run(lambda: write_run(tmp_path / "toy-1", run(is_partial=False), texts="plain"))
    text = shown(show.render_show(show.show_run(tmp_path / "toy-1")))
    assert "eval-0: 1 of 1 problems judged" in text
    assert "unjudgeable" not in text
    with open_run(tmp_path / "toy-1") as reader:
        assert not load_run_state(reader, now=3_000.0).is_judged_in_part


def test_unjudgeable_problems_are_listed_with_reason_and_an_example(root: Path) -> None:
    with open_run(root) as reader:
        rows = reader.rows("SELECT * FROM v_unjudgeable WHERE purpose = 'eval' ORDER BY reason")
        found = reader.rows(QUERIES["unjudgeable"].sql)
    assert [(r["problem_id"], r["reason"], r["num_turns"], r["example"]) for r in rows] == [
        (problem(2).problem_id, "problem_too_large", 2, "g3.r0.t0"),
        (problem(1).problem_id, "reference_failed", 2, "g2.r0.t0"),
    ]
    assert "unjudgeable" in rows[0]["detail"]
    assert len(found) == 4


def test_training_counts_unjudgeable_turns_as_masked_and_their_problems_apart(root: Path) -> None:
    with open_run(root) as reader:
        step = reader.one("SELECT * FROM v_steps")
        assert (step["num_turns"], step["num_masked"]) == (6, 4)
        assert (step["pass_rate"], step["pass_rate_multi"]) == (0.5, 0.5)
        solved = {row["purpose"]: row for row in reader.rows(PROBLEMS)}["train"]
    assert (solved["num_problems"], solved["num_solved"], solved["num_unjudgeable"]) == (3, 1, 2)


def test_a_message_about_an_evaluation_names_its_denominator(root: Path) -> None:
    assert LABEL in Bests(RunPaths(root)).summary()
