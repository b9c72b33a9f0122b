"""Honest answers to every family and variant of the generator are correct; styles take turns."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from typing import TYPE_CHECKING, Any

import pytest

from forge.config.schema import ProblemsTable
from forge.data.families import FAMILIES
from forge.data.families.sizes import Scale
from forge.data.generator import Composition, Style, answer, answer_to, generate_problems, sizes_of
from forge.evalpool.judge.trial.trial import CORRECTNESS_ALONE
from forge.records import Problem, Status
from tests.evalpool.benches import RUNNER_UID

if TYPE_CHECKING:
    from collections.abc import Sequence

HALF = ("fp16", "bf16")


def drawn(family: str, dtypes: Sequence[str]) -> list[Problem]:
    """A problem of each variant, as far as those drawn have it. A second family makes up for one
    that has few in half precision."""
    values = {"families": [family, "broadcast"], "dtypes": list(dtypes), "num_problems": 256}
    chosen: dict[str, Problem] = {}
    for problem in generate_problems(ProblemsTable.model_validate(values), seed=1):
        if problem.family == family:
            chosen.setdefault(Composition.of(problem).variant, problem)
    return list(chosen.values())


def forms(problem: Problem) -> list[str]:
    """The answer in both styles, at both scales: those for a GPU are right for small sizes, too."""
    large = replace(Composition.of(problem), scale=Scale.GPU)
    return [
        *(answer(problem, style=style) for style in Style),
        answer_to(large),
        answer_to(large, sizes=sizes_of(problem)),
    ]


def judge(bench: Any, problem: Problem, code: str) -> None:
    verdict = bench.trials.judge(problem, code, uid=RUNNER_UID, options=CORRECTNESS_ALONE)
    assert verdict.status is Status.CORRECT, f"{problem.problem_id}: {verdict.detail}\n{code}"


@pytest.mark.parametrize("family", FAMILIES)
def test_honest_answers_are_correct(bench: Any, family: str) -> None:
    problems = drawn(family, ["fp32"])
    assert {Composition.of(one).variant for one in problems} == set(FAMILIES[family].variants)
    for problem, turn in zip(problems, cycle(range(4)), strict=False):
        judge(bench, problem, forms(problem)[turn])


@pytest.mark.parametrize("family", FAMILIES)
def test_an_honest_answer_in_half_precision_is_correct(bench: Any, family: str) -> None:
    problem = drawn(family, HALF)[0]
    assert problem.precision in HALF
    judge(bench, problem, answer(problem))


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["fp32", *HALF])
def test_every_form_of_an_honest_answer_is_correct(bench: Any, family: str, dtype: str) -> None:
    for problem in drawn(family, [dtype]):
        for code in forms(problem):
            judge(bench, problem, code)
