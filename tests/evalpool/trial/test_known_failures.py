"""A reference that fails again and again is not asked for every candidate."""

from __future__ import annotations

import pytest

from forge.evalpool.judge.trial.draws.failures import (
    FAILED_S,
    MAX_FAILURES,
    KnownFailures,
    ProblemTooLarge,
    ReferenceFailed,
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def fail(failures: KnownFailures, key: str, error: ReferenceFailed) -> None:
    failures.require_unknown(key)
    with pytest.raises(type(error)), failures.noted(key):
        raise error


def test_the_second_failure_in_a_row_stands_for_a_while_and_for_its_problem_alone() -> None:
    clock = Clock()
    failures = KnownFailures(clock=clock)
    fail(failures, "p", ReferenceFailed("one"))
    fail(failures, "p", ProblemTooLarge("two"))
    failures.require_unknown("q")
    with pytest.raises(ProblemTooLarge, match="two"):
        failures.require_unknown("p")
    clock.now = FAILED_S
    fail(failures, "p", ReferenceFailed("three"))
    with pytest.raises(ReferenceFailed, match="three"):
        failures.require_unknown("p")


def test_a_success_between_two_failures_forgets_the_first() -> None:
    failures = KnownFailures()
    for _ in range(3):
        fail(failures, "p", ReferenceFailed("now and then"))
        with failures.noted("p"):
            pass
        assert not failures._found


def test_another_error_is_no_failure_of_the_reference() -> None:
    failures = KnownFailures()
    for _ in range(3):
        failures.require_unknown("p")
        with pytest.raises(OSError, match="disk"), failures.noted("p"):
            raise OSError("disk")


def test_the_number_of_known_failures_is_bounded() -> None:
    failures = KnownFailures()
    for number in range(MAX_FAILURES + 9):
        for _ in range(2):
            fail(failures, str(number), ReferenceFailed("always"))
    assert len(failures._found) == MAX_FAILURES
    failures.require_unknown("0")
