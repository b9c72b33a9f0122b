"""A GRPO run, killed between checkpoints, whose files were damaged: it goes back, says so in one
line, and trains no sample twice. What a stage decides without a trainer is in
`tests/runner/stages/test_stage_checkpoints.py`."""

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.commands import forge, kill, last_trained, opened, start, until
from tests.e2e.experiments import GRPO_EXPERIMENT, Taught

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

ONCE = (
    "SELECT count(*) = count(DISTINCT sample_id), count(DISTINCT step), min(staleness) >= 0, "
    "max(staleness) <= 1 FROM v_samples"
)
AGAIN = """
SELECT count(*) FROM sample_uses a JOIN sample_uses b USING (group_id, rollout, turn)
WHERE a.attempt = 1 AND b.attempt = 2
"""
"""Turns that both attempts trained."""


@pytest.fixture(scope="module")
def killed(taught: Taught, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints of steps 3 and 6, killed after step 7 or 8 of 9."""
    folder = taught.project(tmp_path_factory.mktemp("damage"))
    (folder / "grpo.toml").write_text(GRPO_EXPERIMENT)
    root = folder / "runs" / "grpo-1"
    run = start(folder, "run", "grpo.toml")
    until(run, lambda: last_trained(root) >= 7, what="step 7 to be trained")
    kill(run, root)
    assert last_trained(root) < 9
    return root


def resume(killed: Path, to: str, damage: Callable[[Path], object], *options: str) -> str:
    """Damage a copy and resume it; returns what it said."""
    root = killed.with_name(f"{to}-1")
    shutil.copytree(killed, root, symlinks=True)
    damage(root)
    done = forge("resume", str(root), *options, cwd=root.parents[1])
    return done.stderr


def check_once(db: sqlite3.Connection) -> None:
    assert db.execute(ONCE).fetchone() == (1, 9, 1, 1)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_one_flipped_byte_lets_the_run_train_the_same_samples_from_the_older_checkpoint(
    killed: Path,
) -> None:
    path = "checkpoints/stage-0/checkpoint-6"
    said = resume(killed, "flipped", lambda root: flip(root / path / "__0_0.distcp"))
    line = f"{path}: __0_0.distcp: its content has changed; grpo-0 continues from checkpoint-3"
    assert f"{line}, steps 4 to {last_trained(killed)} are trained again" in said
    with opened(killed.with_name("flipped-1")) as db:
        check_once(db)
        marked = "SELECT count(*) FROM groups WHERE purpose = 'abandoned'"
        abandoned = db.execute(marked).fetchone()
        changed = db.execute(
            "SELECT count(*) FROM sample_uses a WHERE attempt = 1 AND step > 3 AND NOT EXISTS "
            "(SELECT 1 FROM sample_uses b WHERE b.attempt = 2 AND b.step = a.step "
            "AND b.sample_id = a.sample_id)"
        ).fetchone()
    assert abandoned == changed == (0,)


def test_without_its_batches_a_run_plays_the_lost_steps_again(killed: Path) -> None:
    said = resume(killed, "batches", lambda root: shutil.rmtree(root / "batches"))
    assert "batches/0-000007.npz: missing; grpo-0 goes back to step 6, step" in said
    with opened(killed.with_name("batches-1")) as db:
        check_once(db)
        assert db.execute(AGAIN).fetchone() == (0,)


def test_from_an_earlier_step_nothing_of_later_steps_is_reused_also_without_weights(
    killed: Path,
) -> None:
    """`weights/` is deleted, too: the trainer publishes its checkpoint first."""
    said = resume(killed, "back", lambda root: shutil.rmtree(root / "weights"), "--from", "3")
    assert "grpo-0 goes back to step 3, steps 4 to" in said
    with opened(killed.with_name("back-1")) as db:
        check_once(db)
        assert db.execute(AGAIN).fetchone() == (0,)
        twice = db.execute(
            "SELECT count(*) FROM v_steps WHERE num_groups > (SELECT count(*) FROM groups g "
            "WHERE g.stage = v_steps.stage AND g.step = v_steps.step AND g.purpose = 'train')"
        ).fetchone()
    assert twice == (0,)


def test_a_fork_continues_the_checkpoint_in_a_run_of_its_own(killed: Path) -> None:
    done = forge("run", "--fork", "grpo-1:6", cwd=killed.parents[1])
    assert "missing" not in done.stderr
    with opened(killed.with_name("grpo-2")) as db:
        steps = [step for (step,) in db.execute("SELECT DISTINCT step FROM v_samples ORDER BY 1")]
        forked = db.execute("SELECT message FROM events WHERE kind = 'forked'").fetchall()
    assert steps == [7, 8, 9]
    assert forked == [("forked from grpo-1 after step 6 of grpo-0",)]
