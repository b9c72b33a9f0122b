"""Facts of a problem are kept if another capture of its reference would give the same."""

from typing import Any

import pytest

from forge.evalpool.judge.program.ops import MOVES, Kind
from forge.evalpool.judge.trial.captures import Facts, kinds_of_names
from forge.evalpool.judge.trial.trial import Decided, Finding
from forge.records.verdict import Status
from tests.evalpool.benches import RELU, make_problem


class Failing:
    """Captures that all end in one way."""

    def __init__(self, status: Status) -> None:
        self.status = status
        self.count = 0

    def capture(self, *args: Any, **how: Any) -> Any:
        self.count += 1
        raise Decided(Finding(status=self.status, reason="r", detail=""))


@pytest.mark.parametrize(
    ("status", "num_captures"),
    [(Status.TIMEOUT, 2), (Status.INFRA_ERROR, 2), (Status.REJECTED, 1), (Status.RUNTIME_ERROR, 1)],
)
def test_facts_are_kept_if_the_end_of_the_capture_was_no_chance(
    status: Status, num_captures: int
) -> None:
    captures: Any = Failing(status)
    facts = Facts(captures)
    found = [facts.of(make_problem(RELU), {}, io_bytes=8, names=()) for _ in range(2)]
    assert [one.num_bytes for one in found] == [8, 8]
    assert captures.count == num_captures


def test_a_reference_without_a_program_moves_data_by_the_names_of_its_operations() -> None:
    assert kinds_of_names({"roll", "flip", "_local_scalar_dense"}) <= MOVES
    assert kinds_of_names({"copy_", "_to_copy"}) <= MOVES
    assert not kinds_of_names({"roll", "add_"}) <= MOVES
    assert kinds_of_names({"_local_scalar_dense"}) == kinds_of_names(()) == {Kind.HEAVY}
    assert kinds_of_names({"an_operation_of_tomorrow"}) == {Kind.HEAVY}
