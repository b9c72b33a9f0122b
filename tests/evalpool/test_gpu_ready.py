"""Runners made ahead on a real card: what they save, what they hold, what their end costs."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

from forge.evalpool.capacity import CONTEXT_BYTES
from forge.evalpool.judge import ready
from forge.records.verdict import JudgeOptions, Status
from tests.evalpool.benches import RELU, RELU_KERNEL

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.gpu

TIMEOUT_S = 20.0
CONTEXT_S = 0.1
"""Making one takes longer."""


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def waiting(gpu_bench: Any, monkeypatch: pytest.MonkeyPatch) -> ready.ReadyRunners:
    """With one that waits at least."""
    runners = gpu_bench.trials._ready
    monkeypatch.setattr(runners, "_rests_until", 0.0)
    assert gpu_bench.judge(RELU_KERNEL).status is Status.CORRECT
    wait_for(lambda: bool(runners._waiting) and not runners._is_wanted())
    return runners


def test_a_judgement_does_not_wait_for_a_context_that_is_made(
    gpu_bench: Any, waiting: ready.ReadyRunners
) -> None:
    (runner, *_) = waiting._waiting
    verdict = gpu_bench.judge(RELU_KERNEL)
    assert verdict.status is Status.CORRECT, verdict
    assert verdict.phase_s["context"] < CONTEXT_S
    assert runner.has_ended, "it had its candidate"
    assert not verdict.isolation.endswith("-reused")


def test_one_that_waited_is_timed_as_a_fresh_one(
    gpu_bench: Any, waiting: ready.ReadyRunners, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = RELU.replace("16, 64", "4096, 4096")

    def least_us() -> float:
        """Of three: launches of a busy host come late, and their wait is in the time."""
        return min(
            gpu_bench.judge(
                RELU_KERNEL, problem=problem, options=JudgeOptions()
            ).timing.candidate_us
            for _ in range(3)
        )

    ahead = least_us()
    monkeypatch.setattr(waiting, "_num", 0)
    waiting.clear()
    assert ahead == pytest.approx(least_us(), rel=0.1)


def test_the_end_of_one_that_waits_costs_nobody_a_verdict(
    gpu_bench: Any, waiting: ready.ReadyRunners
) -> None:
    for one in waiting._waiting:
        os.kill(one.child.pid_here, signal.SIGKILL)
    verdict = gpu_bench.judge(RELU_KERNEL)
    assert (verdict.status, verdict.reason) == (Status.CORRECT, "ok"), verdict


def test_an_idle_judge_gives_their_memory_back(
    gpu_bench: Any, waiting: ready.ReadyRunners, monkeypatch: pytest.MonkeyPatch
) -> None:
    num, before = len(waiting._waiting), torch.cuda.mem_get_info()[0]
    monkeypatch.setattr(ready, "MAX_IDLE_S", 0.0)
    with waiting._changed:
        waiting._changed.notify_all()
    wait_for(lambda: not waiting._waiting)
    wait_for(lambda: torch.cuda.mem_get_info()[0] > before + num * CONTEXT_BYTES // 2)
