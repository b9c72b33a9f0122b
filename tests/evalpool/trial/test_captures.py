"""A capture's time: compilations that it asks for are not counted, as far as they are few."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from forge.evalpool.judge.trial import captures
from forge.evalpool.judge.trial.trial import Decided, Phases
from forge.records import Status
from tests.evalpool.benches import HEAD, RELU, RUNNER_UID, TABLE, make_problem

if TYPE_CHECKING:
    from forge.evalpool.judge.program.format import Program
    from tests.evalpool.benches import Bench

ASKING = (
    HEAD
    + """
@triton.jit
def kernel(x, y, K: tl.constexpr):
    tl.store(y, tl.load(x) * K)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        for k in range(8):
            kernel.warmup(x, y, K=k + 2, grid=(1,)).n_regs
        kernel[(1,)](x, y, K=2)
        return y
"""
)


class SlowCompiler:
    """Answers that take a while."""

    def __init__(self) -> None:
        self.num_asked = 0

    def values(self, prefix: Program, *, number: int) -> list[Any] | None:
        raise AssertionError("no value is read")

    def facts(self, prefix: Program) -> dict[str, int] | None:
        time.sleep(0.5)
        self.num_asked += 1
        return {"n_regs": 40, "n_spills": 0, "n_max_threads": 1024, "shared": 0}


@pytest.mark.long
def test_compilations_that_a_capture_waits_for_have_a_limit_together(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = bench.references.get(make_problem(RELU)).request
    table = TABLE.model_copy(update={"compile_timeout_s": 3.0})
    patient = captures.Captures(bench.spawner, table=table, target=bench.trials._captures._target)

    def capture(answers: SlowCompiler) -> None:
        patient.capture(
            ASKING,
            request,
            entry_point="ModelNew",
            uid=RUNNER_UID,
            phases=Phases(),
            answers=answers,
        )

    answers = SlowCompiler()
    capture(answers)
    assert answers.num_asked == 8
    monkeypatch.setattr(captures, "MAX_FACTS_S", 0.2)
    answers = SlowCompiler()
    with pytest.raises(Decided) as ended:
        capture(answers)
    assert ended.value.finding.status is Status.TIMEOUT
    assert answers.num_asked < 8
