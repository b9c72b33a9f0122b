"""Honest answers to every family and variant of the generator are correct; styles take turns."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest

from forge.config.schema import ProblemsTable
from forge.data.compositions import Composition, Style, answer, answer_to
from forge.data.families import FAMILIES
from forge.data.families.sizes import Scale
from forge.data.generator import generate_problems
from forge.records import Status


@pytest.mark.parametrize("family", FAMILIES)
def test_honest_answers_are_correct(bench: Any, family: str) -> None:
    chosen = {}
    for problem in generate_problems(ProblemsTable(), seed=1):
        composition = Composition.parse(problem.problem_id)
        if composition.family == family:
            chosen.setdefault(composition.variant, problem)
    assert chosen
    for problem, style in zip(chosen.values(), cycle(Style), strict=False):
        large = replace(Composition.of(problem), scale=Scale.GPU)  # right for small sizes too
        for code in (answer(problem, style=style), answer_to(large)):
            verdict = bench.judge(code, problem=problem.source)
            assert verdict.status is Status.CORRECT, f"{problem.problem_id}: {verdict.detail}"
