"""A run of rounds: search, SFT on its best answers, GRPO, evaluation; killed in round 2."""

import json
from pathlib import Path

import pytest

from tests.e2e.commands import forge, kill, opened, so_far, start, until
from tests.e2e.experiments import PROBLEM, SIZES, teach

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600)]

RELU = """\
import torch, triton
import triton.language as tl
@triton.jit
def k(x, y, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(y + i, tl.maximum(tl.load(x + i), 0.0))
class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        k[(1,)](x, y, 256)
        return y
"""
ANSWERS = tuple(f"```\n{code}```" for code in (RELU, RELU.replace("maximum", "minimum")))
"""Correct for ReLU alone, and wrong: of equal length, so that the model gives both about equally
often."""
EXPERIMENT = """\
name = "rounds"
[prompt]
preset = "tiny"
[model]
path = "model"
[[problems.sources]]
source = "dir"
path = "train"
use = "train"
[[problems.sources]]
source = "dir"
path = "heldout"
use = "heldout"
[judge]
workers = 1
[rollout]
group_size = 8
groups_per_step = 2
max_turns = 1
max_completion_tokens = 128
temperature = 0.3
max_replacements = 8.0
[eval]
samples = 1
greedy = false
max_turns = 1
temperature = 0.3
[[round]]
repeat = 2
[[round.stage]]
kind = "search"
problems = "train"
strategy = "best-of-n"
budget = "48"
[[round.stage]]
kind = "sft"
source = "search"
epochs = 2
batch_size = 1
learning_rate = 1e-5
[[round.stage]]
kind = "grpo"
steps = 4
learning_rate = 1e-6
save_every = 1
[[round.stage]]
kind = "eval"
"""
NAMES = [f"{kind}-{n} (round {1 + n // 4})" for n, kind in enumerate(
    ["search", "sft", "grpo", "eval"] * 2)]  # fmt: skip


def begun(root: Path) -> list[str]:
    rows = so_far(root, "SELECT message FROM events WHERE kind = 'stage_start'")
    return [name for (name,) in rows]


def test_rounds_that_were_killed_in_the_second_one_go_on(tmp_path: Path) -> None:
    for path in ("train/relu", "train/tanh", "heldout/exp"):
        file = tmp_path / f"{path}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(PROBLEM.format(file.stem))
    sizes = SIZES.model_copy(update={"vocab_size": 1024, "hidden_size": 64})
    problems = sorted(tmp_path.rglob("*.py"))
    teach(tmp_path / "model", problems=problems, answers=ANSWERS, sizes=sizes)
    (tmp_path / "rounds.toml").write_text(EXPERIMENT)
    root = tmp_path / "runs" / "rounds-1"

    planned = forge("plan", "rounds.toml", cwd=tmp_path)
    assert all(name in planned.stdout for name in NAMES)

    run = start(tmp_path, "run", "rounds.toml")
    until(run, lambda: NAMES[6] in begun(root), what="GRPO of round 2")
    kill(run, root)
    with opened(root) as db:
        kept = db.execute("SELECT count(*) FROM groups WHERE stage = 4").fetchone()
    forge("resume", "rounds-1", cwd=tmp_path)
    assert list(dict.fromkeys(begun(root))) == NAMES
    assert begun(root).count(NAMES[4]) == 1, "a finished stage is not played again"

    with opened(root) as db:
        searched = db.execute("SELECT count(*) FROM groups WHERE stage = 4").fetchone()
        rows = db.execute(
            "SELECT data FROM events WHERE kind = 'sft_rows' ORDER BY event_id"
        ).fetchall()
        evaluated = db.execute(
            "SELECT stage, stage_index, json_extract(detail, '$.num_trained_problems') "
            "FROM v_evaluations ORDER BY at"
        ).fetchall()
        steps = db.execute(
            "SELECT stage, max(step) FROM sample_uses GROUP BY stage ORDER BY stage"
        ).fetchall()
    assert searched == kept
    trained = [json.loads(data) for (data,) in rows]
    assert [(each["stage"], each["problems"]) for each in trained] == [(1, ["relu"]), (5, ["relu"])]
    assert evaluated == [(NAMES[3], 3, 0), (NAMES[7], 7, 0)]
    assert steps == [(2, 4), (6, 4)]

    shown = json.loads(forge("show", "rounds-1", "--json", cwd=tmp_path).stdout)
    assert [each["name"] for each in shown["stages"]] == NAMES
    forge("report", "rounds-1", "--out", "report.html", cwd=tmp_path)
    assert NAMES[7] in (tmp_path / "report.html").read_text()
