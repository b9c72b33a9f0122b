"""A plain candidate that shares its child leaves nothing that another one would be blamed for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.evalpool.judge.trial.shareable import is_plain
from forge.records import Status
from tests.evalpool.benches import HEAD, RELU_KERNEL

if TYPE_CHECKING:
    from tests.evalpool.benches import Bench

COPY = "class ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x\n"
GREEDY = f"{HEAD}BIG = torch.empty(150_000_000)\n{COPY}"
HONEST = RELU_KERNEL.replace("class ModelNew", "TABLE = torch.empty(60_000_000)\n\nclass ModelNew")
"""Fits into a child's memory, not beside what GREEDY takes of it."""


def test_memory_that_a_candidate_took_is_not_missed_by_the_next(bench: Bench) -> None:
    assert is_plain(GREEDY)
    assert is_plain(HONEST)
    for code in (HONEST, GREEDY, HONEST, GREEDY, GREEDY, HONEST):
        verdict = bench.judge(code)
        assert (verdict.status is Status.CORRECT) is (code is HONEST), verdict.detail
        assert verdict.reason in ("ok", "no_kernel_launch"), verdict.detail
