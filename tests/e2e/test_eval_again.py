"""`forge eval RUN` repeats the run's own evaluation: the same answers, verdicts and rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.commands import forge, opened
from tests.e2e.experiments import GRPO_EXPERIMENT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]

STAGES = """\
[[stage]]
kind = "grpo"
steps = 1
learning_rate = 1e-4
[[stage]]
kind = "eval"
samples = 8
greedy = true
max_turns = 2
"""
EXPERIMENT = GRPO_EXPERIMENT.partition("[[stage]]")[0].replace("num_heldout = 1", "num_heldout = 2")
FIRST_ANSWERS = """\
SELECT problem_id, purpose, completion, status, reward FROM v_turns
WHERE purpose = 'eval' AND turn = 0 ORDER BY problem_id, purpose, completion, status
"""
RATES = """\
SELECT pass_at_1, ci_low, ci_high, pass_at_1_greedy, pass_at_1_multi, compile_rate, num_problems,
    num_samples, max_turns FROM v_evaluations
"""


def asked(root: Path, query: str) -> list[Any]:
    with opened(root) as db:
        return db.execute(query).fetchall()


def test_the_model_of_a_run_gets_its_own_evaluation_again(grpo_project: Path) -> None:
    (grpo_project / "grpo.toml").write_text(EXPERIMENT + STAGES)
    done = forge("run", "grpo.toml", cwd=grpo_project)
    assert done.returncode == 0, done.stderr
    again = forge("eval", "grpo-1", cwd=grpo_project)
    assert again.returncode == 0, again.stderr
    own, (other,) = grpo_project / "runs" / "grpo-1", (grpo_project / "runs").glob("eval-*")
    assert asked(other, RATES) == asked(own, RATES)
    answers = asked(own, FIRST_ANSWERS)
    assert asked(other, FIRST_ANSWERS) == answers
    assert len(answers) == 3 * (8 + 1)
    assert len({status for *_, status, _ in answers}) > 1
