"""GRPO with every kind of overlap: weights change during turns, groups are trained twice, problems
come by priority; killed and resumed in between.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.e2e.commands import children_of_run, forge, last_trained, opened, start, wait_for
from tests.e2e.experiments import GRPO_EXPERIMENT, PROBLEM, teach

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

OVERLAPPED = GRPO_EXPERIMENT.replace(
    "max_staleness = 1\n",
    'max_staleness = 2\nreplay = 2\nin_flight = "keep"\nsampler = "priority"\n'
    "groups_in_flight = 5\n",
)


def test_overlap_keeps_its_bounds_through_a_kill(tmp_path: Path) -> None:
    (tmp_path / "problems" / "level1").mkdir(parents=True)
    for name in ("tanh", "exp", "abs"):
        (tmp_path / "problems" / "level1" / f"{name}.py").write_text(PROBLEM.format(name))
    (tmp_path / "grpo.toml").write_text(OVERLAPPED)
    teach(tmp_path / "model", problems=sorted((tmp_path / "problems" / "level1").iterdir()))
    root = tmp_path / "runs" / "grpo-1"

    killed = start(tmp_path, "run", "grpo.toml")
    wait_for(
        lambda: last_trained(root) >= 4 or killed.poll() is not None,
        timeout_s=150,
        what="step 4 to be trained",
    )
    assert killed.poll() is None, killed.communicate()[1]
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    wait_for(lambda: not children_of_run(root), timeout_s=5, what="the children to end")
    finished = forge("resume", "grpo-1", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr

    with opened(root) as db:
        steps, youngest, oldest = db.execute(
            "SELECT count(DISTINCT step), min(staleness), max(staleness) FROM v_samples"
        ).fetchone()
        uses = db.execute(
            "SELECT max(uses) FROM (SELECT count(*) AS uses FROM v_samples GROUP BY sample_id)"
        ).fetchone()
        trained_late = db.execute(
            "SELECT count(*) FROM v_samples WHERE admitted_for_step - step > 2"
        ).fetchone()
        idle = db.execute(
            "SELECT role, min(idle_share), max(idle_share) FROM v_idle GROUP BY role"
        ).fetchall()
        counted = db.execute(
            "SELECT count(*) FROM v_metrics WHERE key = 'rollout/in_flight_groups/count'"
        ).fetchone()
    assert steps == 9
    assert 0 <= youngest <= oldest <= 2
    assert uses[0] <= 2
    assert trained_late == (0,)
    assert {role for role, _, _ in idle} == {"trainer", "serve", "judge"}
    assert all(0 <= low <= high <= 1 for _, low, high in idle)
    assert counted == (9,)
