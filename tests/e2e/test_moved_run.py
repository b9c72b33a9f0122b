"""A run that is renamed while it runs stops, and resumes there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.commands import children_of_run, forge, opened, start, until
from tests.e2e.experiments import LITTLE, TINY

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(400)]

EXPERIMENT = f"""\
name = "small"
{TINY}{LITTLE}[[stage]]
kind = "sft"
steps = 60
learning_rate = 1e-2
batch_size = 2
save_every = 5
[[stage]]
kind = "eval"
num_problems = 1
"""
FOREIGN = """
SELECT log_path FROM processes UNION ALL SELECT path FROM policies
UNION ALL SELECT data FROM events
"""


def test_a_run_that_is_moved_while_it_runs_resumes_there(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(EXPERIMENT)
    root, moved = tmp_path / "runs" / "small-1", tmp_path / "kept" / "a better name"
    moved.parent.mkdir()
    begun = start(tmp_path, "run", "small.toml")
    until(begun, lambda: any(root.glob("checkpoints/stage-0/checkpoint-*")), what="a checkpoint")
    root.rename(moved)
    errors = begun.communicate(timeout=60)[1]
    assert begun.returncode == 3, errors
    line = errors.splitlines()[-1]
    assert line.startswith(f"forge: {root}: moved to {moved} while its run wrote to it; ")
    assert f'"forge resume {moved}" continues' in line
    assert not children_of_run(moved)
    assert not (root / "run.db").exists()

    resumed = forge("resume", str(moved), cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    with opened(moved) as db:
        assert not [path for (path,) in db.execute(FOREIGN) if str(tmp_path) in (path or "")]
        ends = db.execute("SELECT exit_code FROM attempts ORDER BY attempt").fetchall()
        stages = db.execute("SELECT count(*) FROM events WHERE kind = 'stage_end'").fetchone()
    assert (ends, stages) == ([(3,), (0,)], (2,))
