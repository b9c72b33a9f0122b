"""SFT rows that contain a held-out problem are refused or left out, under any name and size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forge.config.schema import Experiment
from forge.errors import ConfigError
from forge.records import Message, Pair, Problem, Split
from forge.runner.prepare.prepare import without_heldout
from tests.prompting import PROMPTS

SFT = {"kind": "sft", "steps": 1, "learning_rate": 1e-3}
EVAL = {"kind": "eval"}


def problem(op: str, *, name: str = "Model", size: int = 8, split: Split = Split.SFT) -> Problem:
    source = f"""import torch

class {name}(torch.nn.Module):
    def forward(self, x):
        return torch.{op}(x)

def get_inputs():
    return [torch.randn({size})]

def get_init_inputs():
    return []
"""
    return Problem(
        problem_id=f"held/{op}", source=source, family="x", level=1, split=split, entry_point=name
    )


def row(number: int, made: Problem, *, fenced: bool = False) -> Pair:
    system, user = PROMPTS.first_messages(made)
    if fenced:
        user = Message(role="user", content=f"Rewrite this.\n```python\n{made.source}```\nNow.")
    answer = Message(role="assistant", content="an answer")
    return Pair(problem_id=f"book/{number}", messages=(system, user, answer), num_turns=1)


def experiment(*stages: dict[str, Any], **problems: Any) -> Experiment:
    return Experiment.model_validate(
        {
            "name": "x",
            "model": {"init": "tiny"},
            "problems": problems,
            "data": {"source": "file", "path": Path("rows.jsonl")},
            "stage": list(stages or (SFT, EVAL)),
        }
    )


HELDOUT = [problem("abs", split=Split.HELDOUT)]
ROWS = [row(0, problem("exp")), row(1, problem("abs", name="Other", size=99))]


@pytest.mark.parametrize("planted", [ROWS[1], row(1, problem("abs", size=3), fenced=True)])
def test_a_planted_duplicate_is_refused_with_both_names(planted: Pair) -> None:
    with pytest.raises(ConfigError) as caught:
        without_heldout([ROWS[0], planted], HELDOUT, experiment())
    (line,) = str(caught.value).splitlines()
    assert line.startswith("data.path: rows.jsonl: row book/1 is to be trained on and held/abs is")
    assert 'problems.duplicates = "drop"' in line


def test_duplicates_may_be_dropped_or_allowed() -> None:
    assert without_heldout(ROWS, HELDOUT, experiment(duplicates="drop")) == ROWS[:1]
    assert without_heldout(ROWS, HELDOUT, experiment(duplicates="allow")) == ROWS
    with pytest.raises(ConfigError, match="row book/1"):
        without_heldout(ROWS[1:], HELDOUT, experiment(duplicates="drop"))


def test_rows_are_free_without_an_evaluation_after_them_or_without_heldout_problems() -> None:
    assert without_heldout(ROWS, HELDOUT, experiment(EVAL, SFT)) == ROWS
    assert without_heldout(ROWS, [problem("abs", split=Split.GRPO)], experiment()) == ROWS
