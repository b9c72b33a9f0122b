"""Honest answers to every family and variant of the generator are correct; styles take turns."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest

from forge.config.schema import ProblemsTable
from forge.data.families import FAMILIES
from forge.data.generator import Composition, Style, answer, generate_problems
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
        verdict = bench.judge(answer(problem, style=style), problem=problem.source)
        assert verdict.status is Status.CORRECT, f"{problem.problem_id}: {verdict.detail}"
