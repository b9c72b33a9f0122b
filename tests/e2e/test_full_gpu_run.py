"""A GRPO trainer that runs out of GPU memory once, in the middle.

It continues from its last checkpoint with half of the micro-batches, and trains each sample once.
"""

import json
import os
from pathlib import Path

import pytest

from tests.e2e.commands import children_of_run, forge, opened
from tests.e2e.experiments import GRPO_EXPERIMENT

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(200)]

FULL_AT_STEP_5 = """\
import sys
from pathlib import Path

if "forge.train.trainer" in sys.orig_argv:
    import accelerate.optimizer
    import torch

    fired, steps = Path(__file__).with_name("fired"), []
    update = accelerate.optimizer.AcceleratedOptimizer.step

    def step(self, closure=None):
        steps.append(None)
        if len(steps) == 5 and not fired.exists():
            fired.touch()
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return update(self, closure)

    accelerate.optimizer.AcceleratedOptimizer.step = step
"""
"""`sitecustomize` of every child process; it simulates a full GPU on a CPU."""


def test_a_trainer_out_of_memory_continues_from_its_checkpoint_and_trains_nothing_twice(
    grpo_project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (grpo_project / "grpo.toml").write_text(GRPO_EXPERIMENT + "restarts = 0\n")
    (grpo_project / "fault").mkdir()
    (grpo_project / "fault" / "sitecustomize.py").write_text(FULL_AT_STEP_5)
    inherited = [path for path in [os.environ.get("PYTHONPATH")] if path]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*inherited, str(grpo_project / "fault")]))
    root = grpo_project / "runs" / "grpo-1"

    ran = forge("run", "grpo.toml", cwd=grpo_project)
    assert ran.returncode == 0, ran.stderr
    assert (grpo_project / "fault" / "fired").exists()
    assert not children_of_run(root)
    with opened(root) as db:
        (told,) = db.execute("SELECT message FROM events WHERE kind = 'child_restart'").fetchall()
        served = [step for (step,) in db.execute("SELECT step FROM policies ORDER BY version")]
        batches = db.execute(
            "SELECT step, count(DISTINCT group_id) FROM sample_uses GROUP BY step"
        ).fetchall()
        count, distinct, youngest, oldest = db.execute(
            "SELECT count(*), count(DISTINCT sample_id), min(staleness), max(staleness) "
            "FROM sample_uses"
        ).fetchone()
        lost = db.execute(
            "SELECT count(*) FROM samples LEFT JOIN sample_uses u USING (sample_id) "
            "WHERE u.step IS NULL"
        ).fetchone()
        ends = db.execute(
            "SELECT reason FROM processes WHERE name = 'trainer' ORDER BY started_at"
        ).fetchall()
    assert told[0].startswith("trainer: GPU memory ran out in stage grpo-0, step 4 of 9: ")
    assert "micro-batches of 4096 tokens" in told[0]
    again = json.loads((root / "logs" / "attempt-1" / "trainer.json").read_text())
    assert again["micro_batch_scale"] == 0.5
    assert ends == [("exit 1",), ("exit 0",)]
    assert served[:3] == [1, 2, 3]
    assert served[-7:] == [3, 4, 5, 6, 7, 8, 9], "from the checkpoint of step 3"
    assert [step for step, _ in batches] == list(range(1, 10))
    assert all(0 < groups <= 2 for _, groups in batches), "step 4 was trained on other groups"
    assert count == distinct
    assert lost == (0,)
    assert 0 <= youngest <= oldest <= 1
