"""A run that saves and evaluates on request, then is killed.

It resumes from the requested checkpoint, on the same samples, and does not evaluate again.
"""

import json
from pathlib import Path

import pytest

from forge.train.checkpoints import checkpoints
from tests.e2e.commands import forge, kill, last_trained, opened, start, until
from tests.e2e.experiments import GRPO_EXPERIMENT

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(200)]

ASKED = GRPO_EXPERIMENT.replace("save_every = 3", "save_every = 1000").replace(
    "steps = 9", "steps = 30"
)
"""Saves only on request."""


def test_a_requested_checkpoint_and_evaluation_survive_a_kill(grpo_project: Path) -> None:
    (grpo_project / "grpo.toml").write_text(ASKED)
    root = grpo_project / "runs" / "grpo-1"

    asked = start(grpo_project, "run", "grpo.toml")
    until(asked, lambda: last_trained(root) >= 1, what="step 1 to be trained")
    for command, words in (
        ("save", "grpo-0: saves a checkpoint after the step that runs"),
        ("evaluate", "grpo-0: evaluates after the step that runs"),
    ):
        assert forge(command, "grpo-1", cwd=grpo_project).stdout.strip() == words
    status = json.loads(forge("status", "grpo-1", "--json", cwd=grpo_project).stdout)
    assert {"supervisor", "trainer", "serve-0", "judge-0"} == {
        c["name"] for c in status["components"]
    }
    assert all(c["memory_bytes"] > 1 << 20 for c in status["components"])
    stage = root / "checkpoints" / "stage-0"
    until(
        asked,
        lambda: bool(evaluations(root)) and bool(checkpoints(stage)),
        what="a checkpoint and an evaluation",
    )
    kill(asked, root)
    (saved_step,) = checkpoints(root / "checkpoints" / "stage-0")
    refused = forge("save", "grpo-1", cwd=grpo_project, code=2)
    assert "grpo-1 is not running" in refused.stderr

    finished = forge("resume", "grpo-1", cwd=grpo_project)
    assert len(evaluations(root)) == 1
    assert f"report: {root.resolve()}/report.html" in finished.stderr
    assert (root / "report.html").stat().st_size > 10_000
    with opened(root) as db:
        trained = db.execute(
            "SELECT step, attempt, group_concat(sample_id) FROM "
            "(SELECT * FROM sample_uses ORDER BY sample_id) GROUP BY step, attempt ORDER BY 1, 2"
        ).fetchall()
        purposes = db.execute("SELECT purpose, count(*) FROM groups GROUP BY purpose").fetchall()
        strangers = db.execute(
            "SELECT count(*) FROM sample_uses u LEFT JOIN samples s USING (sample_id) "
            "WHERE (s.group_id, s.rollout, s.turn) IS NOT (u.group_id, u.rollout, u.turn)"
        ).fetchone()
        count, distinct, youngest, oldest, steps = db.execute(
            "SELECT count(*), count(DISTINCT sample_id), min(staleness), max(staleness), "
            "count(DISTINCT step) FROM v_samples"
        ).fetchone()
        reads = db.execute("SELECT count(*) FROM events WHERE kind = 'asked'").fetchone()
    again = {step: samples for step, attempt, samples in trained if attempt == 2}
    assert sorted(again) == list(range(saved_step + 1, 31)), "it goes on from what was asked for"
    for step, attempt, samples in trained:
        if attempt == 1 and step > saved_step:
            assert again[step] == samples, f"step {step} was trained on other samples"
    assert strangers == (0,), "a sample id was given out twice"
    assert (count, steps) == (distinct, 30)
    assert 0 <= youngest <= oldest <= 1
    assert dict(purposes)["eval"] == 1, "one held-out problem, played once"
    assert reads == (2,)


def evaluations(root: Path) -> list[tuple[str, int]]:
    with opened(root) as db:
        return db.execute("SELECT stage, step FROM evaluations").fetchall()
