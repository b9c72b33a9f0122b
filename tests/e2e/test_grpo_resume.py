"""GRPO killed with all its processes and resumed: offered batches are trained again, once."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from forge.train.checkpoints import find_resume_point
from tests.e2e.commands import children_of_run, forge, last_trained, opened, start, wait_for
from tests.e2e.experiments import GRPO_EXPERIMENT, PROBLEM, teach

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]


def test_grpo_killed_between_checkpoints_trains_no_other_samples_when_resumed(
    tmp_path: Path,
) -> None:
    (tmp_path / "problems" / "level1").mkdir(parents=True)
    for name in ("tanh", "exp", "abs"):
        (tmp_path / "problems" / "level1" / f"{name}.py").write_text(PROBLEM.format(name))
    (tmp_path / "grpo.toml").write_text(GRPO_EXPERIMENT)
    teach(tmp_path / "model", problems=sorted((tmp_path / "problems" / "level1").iterdir()))
    root = tmp_path / "runs" / "grpo-1"

    killed = start(tmp_path, "run", "grpo.toml")
    wait_for(
        lambda: last_trained(root) >= 4 or killed.poll() is not None,
        timeout_s=100,
        what="step 4 to be trained",
    )
    assert killed.poll() is None, killed.communicate()[1]
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    wait_for(lambda: not children_of_run(root), timeout_s=5, what="the children to end")
    saved = find_resume_point(root / "checkpoints" / "stage-0").path
    assert saved is not None
    saved_step = int(saved.name.removeprefix("checkpoint-"))
    assert last_trained(root) < 9

    finished = forge("resume", "grpo-1", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    with opened(root) as db:
        trained = db.execute(
            "SELECT step, attempt, group_concat(sample_id) FROM "
            "(SELECT * FROM sample_uses ORDER BY sample_id) GROUP BY step, attempt ORDER BY 1, 2"
        ).fetchall()
        strangers = db.execute(
            "SELECT count(*) FROM sample_uses u LEFT JOIN samples s USING (sample_id) "
            "WHERE (s.group_id, s.rollout, s.turn) IS NOT (u.group_id, u.rollout, u.turn)"
        ).fetchone()
        once = db.execute(
            "SELECT count(*), count(DISTINCT sample_id), min(staleness), max(staleness), "
            "count(DISTINCT step) FROM v_samples"
        ).fetchone()
    again = {step: samples for step, attempt, samples in trained if attempt == 2}
    assert sorted(again) == list(range(saved_step + 1, 10))
    for step, attempt, samples in trained:
        if attempt == 1 and step > saved_step:
            assert again[step] == samples, f"step {step} was trained on other samples"
    assert strangers == (0,), "a sample id was given out twice"
    count, distinct, youngest, oldest, steps = once
    assert count == distinct
    assert steps == 9
    assert 0 <= youngest <= oldest <= 1
