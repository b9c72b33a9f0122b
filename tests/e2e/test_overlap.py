"""GRPO with every kind of overlap: weights change during turns, groups are trained twice, problems
come by priority; killed and resumed in between.
"""

from pathlib import Path

import pytest

from tests.e2e.commands import forge, kill, last_trained, opened, start, until
from tests.e2e.experiments import GRPO_EXPERIMENT

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(300)]

OVERLAPPED = GRPO_EXPERIMENT.replace(
    "max_staleness = 1\n",
    'max_staleness = 2\nreplay = 2\nin_flight = "keep"\nsampler = "priority"\n'
    "groups_in_flight = 5\n",
)


def test_overlap_keeps_its_bounds_through_a_kill(grpo_project: Path) -> None:
    (grpo_project / "grpo.toml").write_text(OVERLAPPED)
    root = grpo_project / "runs" / "grpo-1"

    killed = start(grpo_project, "run", "grpo.toml")
    until(killed, lambda: last_trained(root) >= 4, what="step 4 to be trained")
    kill(killed, root)
    finished = forge("resume", "grpo-1", cwd=grpo_project)
    assert finished.returncode == 0, finished.stderr

    with opened(root) as db:
        steps, youngest, oldest = db.execute(
            "SELECT count(DISTINCT step), min(staleness), max(staleness) FROM v_samples"
        ).fetchone()
        trained = db.execute(
            "SELECT step, attempt, group_concat(sample_id) FROM "
            "(SELECT * FROM sample_uses ORDER BY sample_id) GROUP BY step, attempt ORDER BY 1, 2"
        ).fetchall()
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
    first = {step: samples for step, attempt, samples in trained if attempt == 1}
    again = {step: samples for step, attempt, samples in trained if attempt == 2}
    assert all(again[step] == first[step] for step in again.keys() & first.keys())
    assert again.keys() | first.keys() == set(range(1, 10))
    assert 0 <= youngest <= oldest <= 2
    assert uses[0] <= 2
    assert trained_late == (0,)
    assert {role for role, _, _ in idle} == {"trainer", "serve", "judge"}
    assert all(0 <= low <= high <= 1 for _, low, high in idle)
    assert counted == (9,)
