"""Draws: limits of time, how often one is used and how long it is kept, failures that are known."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.numbers.called import call
from forge.evalpool.judge.reference import construct
from forge.evalpool.judge.trial import references
from forge.evalpool.judge.trial.draws import MAX_USES, HostDraw
from forge.evalpool.judge.trial.gpu.turns import Turn
from forge.evalpool.judge.trial.references import ReferenceFailed, receive_answer
from forge.records.problem import ReferenceModule
from tests.evalpool.benches import RELU, Bench, make_problem

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_draw_may_take_longer_than_its_reference_may(ends: Ends) -> None:
    ours, theirs = ends

    def draw() -> None:
        for number in range(4):
            time.sleep(0.3)
            frames.send(theirs, Kind.PROGRESS, {"reference_s": number / 100})
        frames.send(theirs, Kind.LAYOUT, {})

    thread = threading.Thread(target=draw)
    thread.start()
    began = time.monotonic()
    assert receive_answer(ours, timeout_s=1.0, draw_timeout_s=10.0).kind is Kind.LAYOUT
    assert time.monotonic() - began > 1.0
    thread.join()


@pytest.mark.parametrize("seconds", [0.6, float("nan"), "0.1", None])
def test_a_reference_past_its_limit_ends_the_draw(ends: Ends, seconds: object) -> None:
    ours, theirs = ends
    frames.send(theirs, Kind.PROGRESS, {"reference_s": seconds})
    frames.send(theirs, Kind.LAYOUT, {})
    with pytest.raises(frames.DeadlinePassed, match="past its limit"):
        receive_answer(ours, timeout_s=0.5, draw_timeout_s=10.0)


@pytest.mark.parametrize(("timeout_s", "draw_timeout_s"), [(0.2, 10.0), (10.0, 0.2)])
def test_silence_ends_the_draw(ends: Ends, timeout_s: float, draw_timeout_s: float) -> None:
    ours, theirs = ends
    frames.send(theirs, Kind.PROGRESS, {"reference_s": 0.0})
    with pytest.raises(frames.DeadlinePassed, match="silent"):
        receive_answer(ours, timeout_s=timeout_s, draw_timeout_s=draw_timeout_s)


def test_an_oracle_reports_what_its_reference_has_computed(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            end = time.process_time() + 0.1
            while time.process_time() < end:
                pass
            return x

    ours, theirs = ends
    monkeypatch.setattr(construct, "EVERY_S", 0.0)
    with construct.reported(theirs):
        for _ in range(3):
            call(Slow(), [torch.zeros(3)])
    call(Slow(), [torch.zeros(3)])
    theirs.close()
    deadline = time.monotonic() + 10.0
    received = [frames.receive(ours, deadline=deadline, expected=(Kind.PROGRESS,)) for _ in "012"]
    found = [one.body["reference_s"] for one in received]
    assert found == pytest.approx([0.0, 0.1, 0.2], abs=0.05)
    with pytest.raises(frames.PeerGone):  # nobody follows the fourth call
        frames.receive(ours, deadline=deadline, expected=(Kind.PROGRESS,))


def test_a_quick_draw_reports_nothing(ends: Ends) -> None:
    ours, theirs = ends
    with construct.reported(theirs):
        call(torch.nn.ReLU(), [torch.zeros(3)])
    theirs.close()
    with pytest.raises(frames.PeerGone):
        frames.receive(ours, deadline=time.monotonic() + 10.0, expected=(Kind.PROGRESS,))


@pytest.mark.parametrize(("result", "num"), [("x.sum()", 1), ("x[:3].sum(1)", 3), ("x", 40)])
def test_a_draw_serves_no_more_candidates_than_its_answer_has_numbers(
    bench: Bench, result: str, num: int
) -> None:
    """Feedback tells them: turns later a kernel could store them without computing."""
    problem = make_problem(RELU.replace("torch.relu(x) * 2", result))
    first, *others = (bench.references.hold(problem) for _ in range(min(num, MAX_USES) + 1))
    assert all(one is first for one in others[:-1])
    assert others[-1] is not first


@pytest.mark.parametrize(("limit", "num_left"), [(references.MAX_CACHED_BYTES, 1), (1, 0)])
def test_draws_that_have_no_room_beside_a_new_one_are_dropped_before_it_is_made(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, limit: int, num_left: int
) -> None:
    made, left = bench.references, list[int]()
    draw = made._draw

    def counted(problem: ReferenceModule, shared: Turn) -> HostDraw:
        left.append(len(made._cache))
        return draw(problem, shared)

    monkeypatch.setattr(made, "_max_cached_bytes", limit)
    monkeypatch.setattr(made, "_cache", type(made._cache)())
    monkeypatch.setattr(made, "_draw", counted)

    def held(number: int) -> HostDraw:
        made.let_go(found := made.hold(make_problem(f"{RELU}# room {number}")))
        return found

    first, second = held(0), held(1)
    assert left == [0, num_left]
    assert held(1) is second
    assert (held(0) is first) == bool(num_left)


@pytest.mark.parametrize(("stands_s", "num_asked"), [(120.0, 2), (0.0, 3)])
def test_the_second_failure_in_a_row_stands_for_a_while_and_for_its_problem_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, stands_s: float, num_asked: int
) -> None:
    made, asked = bench.references, list[str]()
    draw = made._draw

    def failing(problem: ReferenceModule, shared: Turn) -> HostDraw:
        if "works" in problem.source:
            return draw(problem, shared)
        asked.append(problem.source)
        raise ReferenceFailed(f"number {len(asked)}")

    monkeypatch.setattr(made, "_draw", failing)
    monkeypatch.setattr(references, "FAILED_S", stands_s)
    for number in ("1", "2", str(num_asked)):
        with pytest.raises(ReferenceFailed, match=f"number {number}"):
            made.hold(make_problem(f"{RELU}# fails {stands_s}"))
    assert len(asked) == num_asked
    made.hold(make_problem(f"{RELU}# works"))
