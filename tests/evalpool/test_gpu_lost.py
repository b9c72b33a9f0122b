"""A card that fails the judge itself: nobody is blamed, and the judge makes room for another."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from forge.config.schema import JudgeTable
from forge.errors import Stalled
from forge.evalpool.judge import gpu_trial
from forge.evalpool.judge.gpu_memory import GpuMemoryError
from forge.evalpool.judge.gpu_run import GPU_FAULT, GpuRun
from forge.evalpool.judge.gpu_trial import GpuTrials
from forge.evalpool.judge.ready import ReadyRunners
from forge.evalpool.judge.spares import Spare, Spares
from forge.evalpool.judge.spawner import SandboxedChild
from forge.evalpool.judge.trial.trial import Decided, Finding, Phases, Stamp
from forge.process.gpu_lease import GpuLease
from forge.records.problem import Problem, Split
from forge.records.verdict import JudgeOptions, Status

CODE = """
import torch
import triton

@triton.jit
def kernel(x):
    pass

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x
"""
PROBLEM = Problem(problem_id="p", source="", family="f", level=1, split=Split.GRPO)


class Failing:
    """References on a card in trouble."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.num_ended = 0

    def hold(self, problem: Problem) -> None:
        raise self.error

    def end_idle(self) -> None:
        self.num_ended += 1


class Ready(ReadyRunners):
    """Says what was asked of it; gives what waits."""

    def __init__(self, *waiting: Spare) -> None:
        nothing: Any = None
        super().__init__(nothing, spawner=nothing, lease=nothing, num=0, on_idle=nothing)
        self.told: list[str] = []
        self.waiting = list(waiting)

    def take(self) -> Spare | None:
        return self.waiting.pop() if self.waiting else None

    def rest(self) -> None:
        self.told.append("rest")

    def clear(self) -> None:
        self.told.append("clear")


class Spawner:
    def __init__(self) -> None:
        self.uids: list[int | None] = []

    def spawn(self, *, role: str, uid: int | None) -> SandboxedChild:
        nothing: Any = None
        self.uids.append(uid)
        return SandboxedChild(sock=nothing, pid=len(self.uids))


def trials(error: Exception, folder: Path, *, ready: Ready | None = None) -> GpuTrials:
    nothing: Any = None
    failing: Any = Failing(error)
    spawner: Any = Spawner()
    return GpuTrials(
        table=JudgeTable(),
        spawner=spawner,
        references=failing,
        stamp=Stamp(isolation="namespaces", caps="watch", harness="h", device="GPU"),
        device=nothing,
        lease=GpuLease("GPU-1", folder=folder),
        baselines=nothing,
        baseline_uid=None,
        spares=Spares(nothing),
        ready=ready or Ready(),
    )


@pytest.mark.parametrize(
    ("error", "reason", "ends"),
    [
        (RuntimeError("CUDA error: unspecified launch failure\nmore"), "gpu_lost", True),
        (torch.OutOfMemoryError("CUDA out of memory"), "gpu_memory", False),
        (GpuMemoryError("cuMemCreate failed: CUDA_ERROR_OUT_OF_MEMORY (2)"), "gpu_memory", False),
        (Stalled("not free"), "gpu_busy", False),
    ],
)
def test_a_card_in_trouble_is_nobodys_score(
    error: Exception, reason: str, ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(number))
    ready = Ready()
    verdict = trials(error, tmp_path, ready=ready).judge(PROBLEM, CODE, uid=None)
    assert (verdict.status, verdict.reason) == (Status.INFRA_ERROR, reason)
    assert ready.told == (["rest"] if reason == "gpu_memory" else [])
    assert "\n" not in verdict.detail
    assert sent == ([signal.SIGTERM] if ends else [])


def test_what_is_no_fault_of_the_card_is_our_bug(tmp_path: Path) -> None:
    verdict = trials(RuntimeError("a mistake of ours"), tmp_path).judge(PROBLEM, CODE, uid=None)
    assert (verdict.status, verdict.reason) == (Status.INFRA_ERROR, "judge_bug")


def test_a_judgement_takes_a_runner_that_waits_or_starts_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Memory:
        def __init__(self, reference: object) -> None: ...

        def close(self) -> None: ...

    nothing: Any = None
    monkeypatch.setattr(gpu_trial, "CandidateMemory", Memory)
    waiting = Spare(SandboxedChild(sock=nothing, pid=7), uid=3)
    made = trials(Stalled("unused"), tmp_path, ready=Ready(waiting))
    spawner: Any = made._spawner
    runs = [made._open(PROBLEM, CODE, nothing, uid=5, phases=Phases()) for _ in range(2)]
    assert [run.child.pid for run in runs] == [7, 1]
    assert runs[0].spare is waiting
    assert spawner.uids == [5]


def test_who_is_judged_alone_has_nothing_beside_it_that_waits(tmp_path: Path) -> None:
    ready = Ready()
    made = trials(Stalled("unused"), tmp_path, ready=ready)
    references: Any = made._references
    with made._cleared(nullcontext()):
        assert (ready.told, references.num_ended) == (["clear"], 1)


def test_runners_are_made_ahead_while_one_is_judged(tmp_path: Path) -> None:
    ready = Ready()
    seen: list[int] = []

    made = trials(Stalled("not free"), tmp_path, ready=ready)
    references: Any = made._references

    def hold(problem: Problem) -> None:
        seen.append(ready._num_judging)
        raise Stalled("not free")

    references.hold = hold
    made.judge(PROBLEM, CODE, uid=None)
    assert [*seen, ready._num_judging] == [1, 0]


@pytest.mark.parametrize(
    ("reasons", "found"),
    [
        (["clock", "ok"], "ok"),
        (["clock", "mismatch"], "mismatch"),
        (["clock", "clock"], "clock"),
        (["out_of_memory", "clock", "ok"], "ok"),
        (["no_kernel_launch"], "no_kernel_launch"),
    ],
)
def test_a_claimed_time_is_refused_by_two_runners_or_not_at_all(
    reasons: list[str], found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trials(Stalled("unused"), tmp_path)
    references: Any = made._references
    references.hold = references.let_go = lambda *_: None
    left = list(reasons)

    def attempt(*_: object, **__: object) -> Finding:
        reason = left.pop(0)
        if reason == "out_of_memory":
            return Finding(status=Status.RUNTIME_ERROR, reason=reason)
        if reason != "ok":
            raise Decided(Finding(status=Status.REJECTED, reason=reason))
        return Finding(status=Status.CORRECT, reason=reason)

    monkeypatch.setattr(made, "_attempt", attempt)
    assert made.judge(PROBLEM, CODE, uid=None).reason == found
    assert not left


def test_one_that_took_long_has_no_second_runner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trials(Stalled("unused"), tmp_path)
    references: Any = made._references
    references.hold = references.let_go = lambda *_: None
    monkeypatch.setattr(gpu_trial, "AGAIN_WITHIN_S", -1.0)
    num_attempts = 0

    def attempt(*_: object, **__: object) -> Finding:
        nonlocal num_attempts
        num_attempts += 1
        raise Decided(Finding(status=Status.REJECTED, reason="clock"))

    monkeypatch.setattr(made, "_attempt", attempt)
    assert made.judge(PROBLEM, CODE, uid=None).reason == "clock"
    assert num_attempts == 1


class Attempt:
    """One attempt of a candidate whose ghost call does not end: what is done with its runners."""

    def __init__(self, made: GpuTrials, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = made
        self.alive: list[str] = []
        self.beside: list[list[str]] = []
        """Who is alive while a reference is started, and timed."""
        self.start_error: Exception | None = None
        opened: Any = self.open
        monkeypatch.setattr(made, "_open", opened)
        yardsticks: Any = self
        made._yardsticks = yardsticks

    def open(self, *_: Any, **__: Any) -> Any:
        run = BrokenRun(self, name=f"runner {len(self.alive)}")
        self.alive.append(run.name)
        return run

    @contextmanager
    def started(self, problem: Problem, run: Any) -> Iterator[None]:
        self.beside.append(list(self.alive))
        yield

    def baseline(self, problem: Problem, run: Any) -> Any:
        self.beside.append(list(self.alive))

    def __call__(self) -> Finding:
        nothing: Any = None
        return self.made._attempt(
            PROBLEM, CODE, nothing, nullcontext(), uid=None, phases=Phases(), options=JudgeOptions()
        )


class BrokenRun:
    is_broken = is_compiled = True
    gpu_reference = code = torch_share = None
    num_launches = 1

    def __init__(self, of: Attempt, *, name: str) -> None:
        self.of, self.name, self.phases = of, name, Phases()

    def check(self, entry_point: str) -> Finding:
        return Finding(status=Status.CORRECT, reason="ok")

    def start(self, entry_point: str) -> None:
        if self.of.start_error is not None:
            raise self.of.start_error

    def close(self) -> None:
        if self.name in self.of.alive:
            self.of.alive.remove(self.name)


def test_a_runner_busy_for_ever_ends_before_somebody_times_and_so_does_its_heir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = Attempt(trials(Stalled("unused"), tmp_path), monkeypatch)
    attempt.start_error = Decided(Finding(status=Status.TIMEOUT, reason="deadline"))
    with pytest.raises(Decided):
        attempt()
    assert attempt.beside == [[], []]
    assert attempt.alive == []


@pytest.mark.parametrize(
    ("status", "reason", "ends", "is_broken"),
    [
        (Status.TIMEOUT, "deadline:correct", False, True),
        (Status.RUNTIME_ERROR, GPU_FAULT, False, True),
        (Status.RUNTIME_ERROR, "crash", True, True),
        (Status.RUNTIME_ERROR, "exception", False, False),
    ],
)
def test_what_the_ghost_call_has_broken_is_asked_nothing_more(
    status: Status, reason: str, ends: bool, is_broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(self: GpuRun, number: int, **_: object) -> None:
        self.is_ended = ends
        raise Decided(self.finding(status, reason))

    monkeypatch.setattr(GpuRun, "_call_set", call)
    nothing: Any = None
    run = GpuRun(
        code=CODE,
        spawner=nothing,
        child=nothing,
        phases=Phases(),
        table=JudgeTable(),
        gpu_reference=nothing,
        gpu_memory=nothing,
        device=nothing,
        spare=nothing,
    )
    run._require_ghost(deadline=0.0)
    assert run.is_broken == is_broken
