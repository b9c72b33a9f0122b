"""SFT pairs: their source does not depend on what other stages need."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from forge.config.load import load_experiment
from forge.data.problems import load_problems
from forge.records import Status, Verdict
from forge.runner.live.progress import Progress
from forge.runner.prepare.prepare import load_pairs, prepare_pairs
from forge.store.layout import create_run
from tests.prompting import PROMPTS

if TYPE_CHECKING:
    from pathlib import Path

    from forge.records import Problem

MODULE = """\
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.rand(4, 4)]

def get_init_inputs():
    return []
"""
ROW = {
    "id": "mine",
    "messages": [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "answer"}],
}
STAGES = """
[[stage]]
kind = "sft"
steps = 1
learning_rate = 1e-3

[[stage]]
kind = "eval"
"""


async def no_judge(problem: Problem, code: str) -> None:
    raise AssertionError("rows of a file are not judged")


@pytest.mark.anyio
@pytest.mark.parametrize("problems", ["generated", "dir"])
async def test_rows_of_a_file_are_trained_on_even_if_a_later_stage_has_judges(
    problems: str, tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
    folder = tmp_path / "level1"
    folder.mkdir()
    (folder / "1_relu.py").write_text(MODULE)
    model, table = 'init = "tiny"', "num_problems = 64\nnum_heldout = 24"
    if problems == "dir":
        model, table = f'path = "{folder}"', f'source = "dir"\npath = "{tmp_path}"'
    file = tmp_path / "file_then_eval.toml"
    file.write_text(
        f'name = "x"\n[model]\n{model}\n[problems]\n{table}\n'
        f'[data]\nsource = "file"\npath = "{tmp_path / "rows.jsonl"}"\n{STAGES}'
    )
    experiment = load_experiment(file)
    paths = create_run("x", store_dir=tmp_path / "runs")

    pairs = await prepare_pairs(
        experiment,
        load_problems(experiment.problems, seed=0),
        prompts=PROMPTS,
        paths=paths,
        judge=no_judge,  # type: ignore[arg-type]
        progress=Progress(run="x", num_stages=2),
    )

    assert [pair.problem_id for pair in pairs] == ["mine"]
    assert load_pairs(paths) == pairs


@pytest.mark.anyio
async def test_the_live_line_counts_judged_broken_answers(tmp_path: Path) -> None:
    file = tmp_path / "few.toml"
    file.write_text(
        'name = "x"\n[model]\ninit = "tiny"\n[problems]\nnum_problems = 64\nnum_heldout = 24\n'
        f"sft_by_level = [2, 2, 2, 2]\n[data]\nrepair_share = 1.0\n"
        f"[rollout]\nmax_turns = 2\n{STAGES}"
    )
    experiment = load_experiment(file)
    progress = Progress(run="x", num_stages=2)
    asked: list[str] = []

    async def judge(problem: Problem, code: str) -> Verdict:
        asked.append(code)
        return Verdict(status=Status.WRONG, reason="mismatch", detail="words")

    await prepare_pairs(
        experiment,
        load_problems(experiment.problems, seed=0),
        prompts=PROMPTS,
        paths=create_run("x", store_dir=tmp_path / "runs"),
        judge=judge,
        progress=progress,
    )
    assert progress.label == f"prepare: broken answers {len(asked)} of {len(asked)}"
    assert len(asked) > 1
