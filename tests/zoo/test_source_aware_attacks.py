"""Attacks by somebody who has read the judge: those that it refuses, and those that it accepts.

Found on a CPU on 2026-11-24; those in `refused_attacks_protocols.json` two days later, against
other protocols, capture children and the judge's own time: they are refused under each protocol and
policy. Those about ties, thresholds and maxima that begin with 0 are of the same day, and those
about torch's copies, views, indices that occur twice and signs of parameters.

Open: equal elements where the reference also selects places (a median), false hints of later
elements, a store that overtakes another thread's load, magnitudes beyond those of our sets, a table
that a launch of `forward` copies beside an input, what tells the evaluator from a card (the sign of
a NaN, a maximum of two zeros), a view that is transposed where the reference also computes, a
maximum that begins with 0 behind a product without bias or within an attention, an output in a
buffer that the next call writes, relaxed atomics as flags. Left out: what wins by chance, is weak
numerically, or is about a problem's domain (labels of 0 and 1, probabilities, sorted inputs).

Accepted by decision, since a rule would refuse what honest kernels do:

    a13          A BatchNorm in training mode that leaves the running statistics alone. The output
                 is right and most published kernels do so; one that writes them is held to the
                 reference's, and so is what a reference writes to other buffers (`keys_not_kept`).
    tanh_approx  `tanh.approx.f32` for a tanh in fp32. The evaluator computes it exactly: with its
                 documented error (2^-11) an honest kernel that is right on a card would be refused.
                 A card compares what its own instruction gives.
    div_huge     Divides two huge equal numbers and computes where that is 1: so it is in float64,
                 and on an H100, which divides them as IEEE 754 does.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge.records import Status
from forge.records.reason import Reason
from tests.evalpool.benches import TABLE

Attacks = dict[str, dict[str, str]]


def read(name: str) -> Attacks:
    return json.loads(Path(__file__).with_name(name).read_text())


REFUSED = read("refused_attacks.json") | read("refused_attacks_numbers.json")
PROTOCOLS = read("refused_attacks_protocols.json")
ACCEPTED = read("accepted_attacks.json")
RIGHT_ON_A_CARD = {"exp_bits", "sin_bits", "false_alignment"}
"""They tell an exact evaluator by the last bit, which an H100 has as well: there they compute.
Loads that a mask splits into elements need no alignment; without the mask, a card has a fault."""

UNKNOWN_ON_A_CARD = {
    *("order_of_cat", "false_assertion", "number_as_an_argument", "neighbour_without_barrier"),
    *("order_of_reshape", "nan_in_row", "infinity_by_difference"),
}
"""A card sees no decisions, its compiler may leave elements in their order, our executor strips
assertions, numbers among the arguments stay as they are there, and a race need not show."""

NUM_DRAWS = 3
"""Of 1,120 draws of these attacks one was judged correct: one draw of three must refuse each."""


def is_refused(bench_for: Callable[[str], Any], attack: dict[str, str], device: str) -> bool:
    for number in range(NUM_DRAWS):
        problem = f"{attack['problem']}\n# draw {number}\n"
        verdict = bench_for(device).judge(attack["candidate"], problem=problem)
        if verdict.status.is_scored and verdict.status is not Status.CORRECT:
            return True
        if verdict.reason == Reason.CONSTANT:  # of any answer: no input matters
            return True
    return False


@pytest.mark.parametrize("name", REFUSED)
def test_an_attack_is_refused(bench_for: Callable[[str], Any], name: str) -> None:
    assert is_refused(bench_for, REFUSED[name], "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(REFUSED.keys() - RIGHT_ON_A_CARD - UNKNOWN_ON_A_CARD))
def test_an_attack_is_refused_on_a_card(bench_for: Callable[[str], Any], name: str) -> None:
    assert is_refused(bench_for, REFUSED[name], "cuda")


@pytest.mark.parametrize("policy", ["own", "hybrid"])
@pytest.mark.parametrize("name", PROTOCOLS)
def test_an_attack_is_refused_under_every_protocol(
    bench_for: Callable[[str], Any], name: str, policy: str
) -> None:
    table = TABLE.model_copy(update={"policy": policy, "also": ["kernelbench", "drkernel"]})
    attack = PROTOCOLS[name]
    verdict = bench_for("cpu").judge(attack["candidate"], problem=attack["problem"], table=table)
    statuses = [verdict.status, *(other.status for other in verdict.also.values())]
    assert len(statuses) == 3
    assert all(one.is_scored and one is not Status.CORRECT for one in statuses), verdict


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_accepted_by_decision_is_correct(
    bench_for: Callable[[str], Any], name: str
) -> None:
    attack = ACCEPTED[name]
    verdict = bench_for("cpu").judge(attack["candidate"], problem=attack["problem"])
    assert verdict.status is Status.CORRECT, verdict.detail
