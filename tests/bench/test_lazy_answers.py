"""No generated problem accepts an answer that omits work."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from forge.config.schema import ProblemsTable
from forge.data.compositions import Composition
from forge.data.families import FAMILIES
from forge.data.generator import generate_problems
from forge.records import Problem, Split

if TYPE_CHECKING:
    from types import ModuleType


@pytest.fixture
def lazy_answers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "bench")
    return import_module("lazy_answers")


def test_no_problem_accepts_an_answer_that_omits_work(lazy_answers: ModuleType) -> None:
    problems = generate_problems(ProblemsTable(num_problems=600), seed=1)[:200]
    found = lazy_answers.count(problems)
    assert {kind: ids for kind, (_, ids) in found.items() if ids} == {}
    assert found["any one number"][0] == 200
    assert found["the only step of a chain"][0] > 0
    assert found["parameters as they are made"][0] > 0


def rendered(problem_id: str) -> Problem:
    """Includes the problems that the generator excludes."""
    made = Composition.parse(problem_id)
    family = FAMILIES[made.family]
    sizes = family.draw_sizes(Random(0), scale=made.scale)
    source = family.render_problem(made.variant, made.chain, sizes=sizes)
    return Problem(
        problem_id=problem_id, source=source, family=made.family, level=1, split=Split.GRPO
    )


@pytest.mark.parametrize(
    ("problem_id", "kind"),
    [
        ("reduction-max-relu", "the only step of a chain"),
        ("reduction-max-tanh-relu", "the last step of a chain"),
        ("softmax-softmax-relu-abs", "the last step of a chain"),
    ],
)
def test_a_step_that_changes_nothing_is_found(
    lazy_answers: ModuleType, problem_id: str, kind: str
) -> None:
    """In one draw at least: the step may change something on a row by chance."""
    draws = (lazy_answers.count([rendered(problem_id)])[kind] for _ in range(5))
    assert (1, [problem_id]) in draws


@pytest.mark.parametrize(
    ("forward", "kinds"),
    [
        ("torch.ones_like(x)", {"any one number", "any constant tensor"}),
        ("x * 1", {"the input"}),
        ("x * (torch.arange(x.numel()) < 3).view(x.shape)", {"half of the output, the rest 0"}),
    ],
)
def test_a_forward_with_little_work_is_found(
    lazy_answers: ModuleType, forward: str, kinds: set[str]
) -> None:
    problem = rendered("elementwise-plain-relu")
    problem = replace(problem, source=problem.source.replace("torch.relu(x)", forward))
    found = lazy_answers.count([problem])
    assert kinds <= {kind for kind, (_, ids) in found.items() if ids}
