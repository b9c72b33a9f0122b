"""A card that fails the judge itself: nobody is blamed, and the judge makes room for another."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from forge.config.schema import JudgeTable
from forge.errors import Stalled
from forge.evalpool.judge.gpu_memory import GpuMemoryError
from forge.evalpool.judge.gpu_trial import GpuTrials
from forge.evalpool.judge.spares import Spares
from forge.evalpool.judge.trial import Stamp
from forge.process.gpu_lease import GpuLease
from forge.records.problem import Problem, Split
from forge.records.verdict import Status

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

    def hold(self, problem: Problem) -> None:
        raise self.error


def trials(error: Exception, folder: Path) -> GpuTrials:
    nothing: Any = None
    failing: Any = Failing(error)
    return GpuTrials(
        table=JudgeTable(),
        spawner=nothing,
        references=failing,
        stamp=Stamp(isolation="namespaces", caps="watch", harness="h", device="GPU"),
        device=nothing,
        lease=GpuLease("GPU-1", folder=folder),
        baselines=nothing,
        baseline_uid=None,
        spares=Spares(nothing),
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
    verdict = trials(error, tmp_path).judge(PROBLEM, CODE, uid=None)
    assert (verdict.status, verdict.reason) == (Status.INFRA_ERROR, reason)
    assert "\n" not in verdict.detail
    assert sent == ([signal.SIGTERM] if ends else [])


def test_what_is_no_fault_of_the_card_is_our_bug(tmp_path: Path) -> None:
    verdict = trials(RuntimeError("a mistake of ours"), tmp_path).judge(PROBLEM, CODE, uid=None)
    assert (verdict.status, verdict.reason) == (Status.INFRA_ERROR, "judge_bug")
