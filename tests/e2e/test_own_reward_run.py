"""A whole GRPO run that the user's reward function rewards: refused before it starts, ended by a
fault of the function, continued after a repair.
"""

import json
from pathlib import Path

import pytest

from forge.train.checkpoints import find_damage
from tests.e2e.commands import children_of_run, forge, opened
from tests.e2e.experiments import GRPO_EXPERIMENT

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600)]

EXPERIMENT = GRPO_EXPERIMENT.replace("compile_error = -1.0", 'function = "mine.py:score"').replace(
    "steps = 9", "steps = 4"
)
GOOD = """\
def score(verdict):
    return {"broken": -2.0 * (verdict.status == "compile_error"), "base": 0.25}
"""
FAILING = """\
num = 0

def score(verdict):
    global num
    num += 1
    print("scored", num)
    if num == 20:
        return {"base": float("nan")}
    return {"broken": -2.0 * (verdict.status == "compile_error"), "base": 0.25}
"""
BY_GROUP = """\
def score(rollouts):
    num = sum(v.status == "compile_error" for row in rollouts for v in row)
    return [[{"rare": (v.status == "compile_error") / (1 + num)} for v in row] for row in rollouts]
"""


def test_a_run_ends_at_a_fault_of_its_function_and_continues_after_a_repair(grpo_project: Path):
    mine, root = grpo_project / "mine.py", grpo_project / "runs" / "grpo-1"
    (grpo_project / "grpo.toml").write_text(EXPERIMENT)
    mine.write_text("def score():\n    return {}\n")
    refused = forge("run", "grpo.toml", cwd=grpo_project, code=2)
    assert "mine.py:1: score raised TypeError" in refused.stderr
    assert not root.exists()

    mine.write_text(FAILING)
    failed = forge("run", "grpo.toml", cwd=grpo_project, code=2)
    (line,) = [line for line in failed.stderr.splitlines() if f"{mine}:3: score returned" in line]
    assert 'nan as "base"; a finite number (g' in line
    assert not children_of_run(root)
    with opened(root) as db:
        stored = dict(db.execute("SELECT turn_id, reward FROM v_turns").fetchall())
        ((last,),) = db.execute("SELECT reason FROM attempts").fetchall()
    turn_id = line.rpartition("(")[2].rstrip(")")
    assert stored.pop(turn_id) is None
    assert last in line

    mine.write_text(GOOD)
    resumed = forge("resume", "grpo-1", cwd=grpo_project)
    assert "it has changed since the last attempt" in resumed.stderr
    with opened(root) as db:
        rewards = db.execute(
            "SELECT status, reward, reward_terms FROM v_turns WHERE purpose = 'train' "
            "AND reward IS NOT NULL"
        ).fetchall()
        terms = {term for (term,) in db.execute("SELECT DISTINCT term FROM v_reward_terms")}
        kept = dict(db.execute("SELECT turn_id, reward FROM v_turns").fetchall())
        files = db.execute("SELECT data FROM events WHERE kind = 'reward_function'").fetchall()
        steps = db.execute("SELECT count(DISTINCT step) FROM v_samples").fetchone()
    assert terms == {"broken", "base"}
    assert {name: kept[name] for name in stored} == stored
    assert len({json.loads(data)["sha256"] for (data,) in files}) == 2
    assert steps == (4,)
    for status, reward, text in rewards:
        assert json.loads(text)["base"] == 0.25
        assert reward == (-1.75 if status == "compile_error" else 0.25)
    rewarded = next(name for name, reward in kept.items() if reward == 0.25)
    shown = forge("show", "grpo-1", "--turn", rewarded, cwd=grpo_project)
    assert "reward 0.25: broken 0, base 0.25" in shown.stdout.replace("-0", "0")


def test_a_group_is_rewarded_as_a_whole_and_its_step_can_be_replayed(grpo_project: Path):
    root = grpo_project / "runs" / "grpo-1"
    (grpo_project / "mine.py").write_text(BY_GROUP)
    (grpo_project / "grpo.toml").write_text(
        EXPERIMENT.replace(':score"', ':score"\nfunction_per = "group"')
    )
    forge("run", "grpo.toml", "--set", "stage.0.steps=2", cwd=grpo_project)
    with opened(root) as db:
        sums = db.execute(
            "SELECT sum(status = 'compile_error'), sum(reward) FROM v_turns GROUP BY group_id"
        ).fetchall()
        loss = dict(
            db.execute("SELECT step, value FROM v_metrics WHERE key = 'train/loss/mean'").fetchall()
        )
    assert sums
    for num, total in sums:
        assert total == pytest.approx(num / (1 + num))

    files = sorted(path for path in root.rglob("*") if path.is_file())
    for options in ([], ["--out", "kept"], ["--set", "stage.0.loss=grpo"]):
        done = forge("train", "--replay", "grpo-1:1", "--json", *options, cwd=grpo_project)
        found = json.loads(done.stdout)
        assert found["loss"]["recorded"] == loss[1]
        assert found["is_same"] == ("--set" not in options)
        if found["is_same"]:
            assert found["loss"]["replayed"] == loss[1]
            assert found["grad_norm"]["replayed"] == found["grad_norm"]["recorded"]
    assert [path.name for path in (grpo_project / "kept").iterdir()] == ["checkpoint-1"]
    assert find_damage(grpo_project / "kept" / "checkpoint-1") == ""
    assert sorted(path for path in root.rglob("*") if path.is_file()) == files
