"""Orders of a call's nodes on several streams."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from forge.evalpool.judge.program.streams import END_WORDS, START_WORDS, other_orders, unwaited
from tests.evalpool.program.programs import build, launch, pointers

if TYPE_CHECKING:
    from forge.evalpool.judge.program.format import Program

Entries = tuple[tuple[int, ...], ...]


def on(*streams: tuple[int, ...]) -> Program:
    """A launch for each entry of one number but the last; the k-th has line k."""
    num = sum(len(entry) == 1 for entry in streams) - 1
    made = build(
        inputs=[(4,)],
        buffers=[(4,)],
        kernels=[pointers("k", "*fp32", "*fp32")],
        forward=[dataclasses.replace(launch(0, "t0", "t1"), line=at) for at in range(num)],
        outputs=[1],
    )
    return dataclasses.replace(made, streams=streams)


def orders(program: Program) -> set[tuple[int, ...]]:
    return {tuple(node.line for node in one.forward) for one in other_orders(program)}


FORKED = ((0,), (1, 0, 1), (1,), (0,))
"""Stream 1 waits for the first node on stream 0."""


def test_a_stream_that_waits_and_is_waited_for_has_one_order() -> None:
    program = on(*FORKED[:3], (0, 1, 3), (0,), (0,))
    assert unwaited(program) is None
    assert orders(program) == set()


def test_streams_that_do_not_wait_have_each_order() -> None:
    program = on(*FORKED, (0, 1, 4), (0,))
    assert unwaited(program) is None
    assert orders(program) == {(0, 2, 1)}


def test_an_event_counts_from_where_it_is_recorded_and_passes_on_what_its_stream_waited_for() -> (
    None
):
    late = on((0,), (0,), (1, 0, 1), (2, 1, 3), (2,), (0, 2, 5), (0,))
    assert orders(late) == {(0, 2, 1)}


def test_a_stream_is_ahead_of_those_that_it_does_not_wait_for_through_another_one() -> None:
    """Stream 2 waits for stream 1, and neither for the first node."""
    program = on((0,), (1,), (2, 1, 2), (2,), (0, 2, 4), (0,), (0,))
    assert (1, 2, 0, 3) in orders(program)


def test_many_streams_have_some_of_their_orders() -> None:
    joined = [(0, stream, 6) for stream in range(1, 6)]
    found = orders(on(*[(stream,) for stream in range(6)], *joined, (0,)))
    assert 1 <= len(found) <= 8
    assert all(sorted(one) == list(range(6)) for one in found)


def test_a_host_that_waits_orders_all_streams() -> None:
    assert orders(on((0,), (-1, 0, 1), (1,), (-1, 1, 3), (0,), (0,))) == set()


@pytest.mark.parametrize(
    ("streams", "words", "line"),
    [
        (((0,), (1,), (0, 1, 2), (0,)), START_WORDS, 1),
        ((*FORKED, (0,)), END_WORDS, 1),
        ((*FORKED, (1,)), END_WORDS, 2),
    ],
)
def test_a_call_that_does_not_wait_is_found(streams: Entries, words: str, line: int) -> None:
    assert unwaited(on(*streams)) == (line, words)
