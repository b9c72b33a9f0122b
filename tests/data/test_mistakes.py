"""Broken answers: in the requested style, and with the mistakes of first answers."""

import re
from random import Random

import pytest

from forge.data.generator import Style, answer
from forge.data.pairs.generated import break_answer
from forge.records import Problem

STEP = re.compile(r"^    [a-f] = .*$", flags=re.MULTILINE)


@pytest.fixture(scope="module")
def problems(generated: list[Problem]) -> list[Problem]:
    return generated[::20]


def steps(code: str) -> list[str]:
    return STEP.findall(code.split("class ")[0])


@pytest.mark.parametrize("style", list(Style))
def test_a_broken_answer_differs_from_the_honest_one(problems: list[Problem], style: Style) -> None:
    rng = Random(0)
    for problem in problems:
        assert break_answer(problem, style=style, rng=rng) != answer(problem, style=style)
