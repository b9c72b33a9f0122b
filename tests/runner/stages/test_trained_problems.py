"""Problems that were trained on are counted: by rollouts, by rows of SFT, under any name."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from forge.config.schema import EvalStage, SftStage
from forge.records import Message, Pair, Status
from forge.runner.stages.evaluate import count_trained
from forge.store.layout import RunPaths
from tests.prompting import PROMPTS
from tests.store import storefactory
from tests.store.storefactory import attempt, group, samples, use, write_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.records import Problem

EVAL = EvalStage(kind="eval")
SFT = SftStage(kind="sft", steps=1, learning_rate=1e-3)


def problem(number: int, *, name: str = "Model", size: int = 4) -> Problem:
    source = (
        f"class {name}:\n    def forward(self, x):\n        return x + {number}\n"
        f"def get_inputs():\n    return [{size}]\n"
    )
    return replace(storefactory.problem(number), source=source, entry_point=name)


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """A run that trained rollouts of problem 0, played problem 1 only, and has SFT rows of 2."""
    paths = RunPaths(tmp_path / "toy-1")
    trained = group(0, [[Status.CORRECT], [Status.WRONG]], stage=2)
    offered = samples(trained, first_id=0)
    played = group(1, [[Status.CORRECT]], problem_id="softmax-0001", stage=2)
    records = [attempt(), *(problem(n) for n in range(4)), trained, played, *offered]
    anyio.run(write_run, paths.root, [*records, use(offered[0], stage=2)])
    answer = Message(role="assistant", content="an answer")
    row = Pair(problem_id="7", messages=(*PROMPTS.first_messages(problem(2)), answer), num_turns=1)
    (paths.root / "data").mkdir()
    (paths.root / "data" / "pairs.jsonl").write_text(json.dumps(asdict(row)) + "\n")
    every = [problem(n) for n in range(4)]
    stages = SimpleNamespace(stage=[EVAL, SFT, EVAL])
    return SimpleNamespace(paths=paths, problems=every, experiment=stages, prompts=PROMPTS)


COUNTS: dict[str, tuple[Callable[[], list], int, int]] = {
    "before SFT": (lambda: [problem(n) for n in range(4)], 0, 1),
    "after SFT": (lambda: [problem(n) for n in range(4)], 2, 2),
    "others": (lambda: [problem(3)], 2, 0),
    "the same text under another name": (
        lambda: [replace(problem(2), problem_id="copy")], 2, 1,
    ),
    "the code of a row under other names and sizes": (
        lambda: [replace(problem(2, name="Net", size=9), problem_id="copy")], 2, 1,
    ),
    "the code of a played problem under other names": (
        lambda: [replace(problem(0, name="Net"), problem_id="copy")], 2, 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTS)
def test_problems_that_were_trained_on_are_counted(name: str, run: Any) -> None:
    problems, stage, expected = COUNTS[name]
    assert count_trained(run, problems(), stage=stage) == expected
