"""Turns of threads on a GPU: beside each other or alone, over one hold of the lease."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from forge.errors import Stalled
from forge.evalpool.judge.trial.gpu import turns as gpu_turns
from forge.evalpool.judge.trial.gpu.turns import GpuTurns
from forge.process.gpu_locks import GpuLease


@pytest.fixture
def lease(tmp_path: Path) -> GpuLease:
    return GpuLease("GPU-1", folder=tmp_path)


def is_free(take: Callable[..., AbstractContextManager[None]]) -> bool:
    """True if another process could have the lease at once."""
    try:
        with take(timeout_s=0):
            return True
    except Stalled:
        return False


def started(work: Callable[[], None], num: int = 1) -> list[threading.Thread]:
    threads = [threading.Thread(target=work) for _ in range(num)]
    for thread in threads:
        thread.start()
    return threads


def taking(turns: GpuTurns, order: list[str]) -> tuple[Callable[[], None], Callable[[], None]]:
    """Functions that take a turn alone and a shared one, and note its kind."""

    def alone() -> None:
        with turns.alone(timeout_s=10):
            order.append("alone")

    def shared() -> None:
        with turns.shared(timeout_s=10):
            order.append("shared")

    return alone, shared


def wait_for(turns: GpuTurns, *, alone: int = 0, shared: int = 0) -> None:
    """Waits until so many threads wait for a turn."""
    while turns._num_waiting != {True: alone, False: shared}:
        time.sleep(0.001)


def test_sharers_have_one_hold_which_ends_with_the_last(lease: GpuLease) -> None:
    turns = GpuTurns(lease)
    with turns.shared(timeout_s=1):
        with turns.shared(timeout_s=1):
            assert is_free(lease.shared)
            assert not is_free(lease.exclusive)
        assert not is_free(lease.exclusive)
    assert is_free(lease.exclusive)


def test_a_thread_alone_takes_over_the_hold_of_the_one_before(lease: GpuLease) -> None:
    turns = GpuTurns(lease)
    holds: list[object] = []

    def work() -> None:
        with turns.alone(timeout_s=10):
            assert not is_free(lease.shared)
            holds.append(turns._hold)

    with turns.shared(timeout_s=1):
        threads = started(work, 4)
        wait_for(turns, alone=4)
        assert not holds
    for thread in threads:
        thread.join()
    assert len(holds) == 4
    assert all(one is holds[0] for one in holds)
    assert is_free(lease.exclusive)


def test_a_waiting_thread_alone_goes_before_later_sharers(lease: GpuLease) -> None:
    turns, order = GpuTurns(lease), list[str]()
    alone, shared = taking(turns, order)

    with turns.shared(timeout_s=1):
        threads = started(alone)
        wait_for(turns, alone=1)
        threads += started(shared)
        wait_for(turns, alone=1, shared=1)
    for thread in threads:
        thread.join()
    assert order == ["alone", "shared"]


def test_sharers_go_after_many_turns_alone(
    lease: GpuLease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_turns, "MAX_TURNS", 3)
    turns, order = GpuTurns(lease), list[str]()
    alone, shared = taking(turns, order)

    with turns.alone(timeout_s=1):
        threads = [*started(alone, 5), *started(shared)]
        wait_for(turns, alone=5, shared=1)
    for thread in threads:
        thread.join()
    assert order.index("shared") == 2  # the turn that all waited for was the first
    assert Counter(order) == {"alone": 5, "shared": 1}


@pytest.mark.parametrize("kind", ["shared", "alone"])
def test_a_turn_that_times_out_leaves_the_queue(lease: GpuLease, kind: str) -> None:
    turns = GpuTurns(lease)
    with (
        turns.alone(timeout_s=1),
        pytest.raises(Stalled, match="no turn on the GPU within 0 s"),
        getattr(turns, kind)(timeout_s=0.01),
    ):
        pass
    assert turns._num_waiting == {True: 0, False: 0}
    assert is_free(lease.exclusive)


def test_a_gpu_that_another_process_holds_is_waited_for_or_given_up(lease: GpuLease) -> None:
    turns = GpuTurns(lease)
    with lease.exclusive(timeout_s=1):
        for kind in (turns.shared, turns.alone):
            with pytest.raises(Stalled), kind(timeout_s=0.02):
                pass
    for kind in (turns.shared, turns.alone):
        with kind(timeout_s=1):
            pass
    assert is_free(lease.exclusive)


def test_nobody_is_beside_a_thread_alone(lease: GpuLease) -> None:
    turns, inside, faults = GpuTurns(lease), Counter[str](), list[str]()
    draw = random.Random(3)
    plans = [[draw.choice(["shared", "alone", "late"]) for _ in range(60)] for _ in range(8)]

    def work(plan: list[str]) -> None:
        for kind in plan:
            take = turns.alone if kind == "alone" else turns.shared
            try:
                with take(timeout_s=0 if kind == "late" else 30):
                    inside[kind] += 1
                    if inside["alone"] and inside.total() > 1:
                        faults.append(kind)
                    time.sleep(0.0005)
                    inside[kind] -= 1
            except Stalled:
                assert kind == "late"

    threads = [threading.Thread(target=work, args=(plan,)) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert faults == []
    assert is_free(lease.exclusive)


def test_another_process_gets_its_turn_alone_though_sharers_overlap(lease: GpuLease) -> None:
    turns, is_over, held = GpuTurns(lease), threading.Event(), threading.Event()

    def share() -> None:
        while not is_over.is_set():
            with turns.shared(timeout_s=30):
                held.set()
                time.sleep(0.02)

    threads = []
    for _ in range(4):
        threads += started(share)
        time.sleep(0.005)
    assert held.wait(10)
    with lease.exclusive(timeout_s=20):
        assert turns._num_inside == 0
    is_over.set()
    for thread in threads:
        thread.join()
