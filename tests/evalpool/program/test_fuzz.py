"""Mutated programs end as InvalidProgram, as a refusal, or as a program to be judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.evalpool.judge.program.wire import dumps
from tests.evalpool.program.mutations import mutated, outcome
from tests.evalpool.program.programs import addition, everything, tuned

if TYPE_CHECKING:
    from random import Random

BASES = [dumps(program) for program in (addition(), tuned(), everything())]


@settings(max_examples=60)
@given(base=st.sampled_from(BASES), random=st.randoms(use_true_random=False))
def test_mutated_programs_are_refused_or_judged(base: bytes, random: Random) -> None:
    outcome(mutated(base, random))


@settings(max_examples=60)
@given(data=st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    assert outcome(data) == "refused"


@pytest.mark.parametrize("base", BASES)
def test_the_bases_are_programs(base: bytes) -> None:
    assert outcome(base) != "refused"
