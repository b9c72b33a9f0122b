"""A capture's time and its questions: what it waits for is not counted, as far as it is little."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from forge.evalpool.judge.capture.exchange import Answer
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.program import wire
from forge.evalpool.judge.trial import captures
from forge.evalpool.judge.trial.trial import Decided, Finding, Phases
from forge.records import Status
from tests.evalpool.benches import HEAD, RELU, RUNNER_UID, TABLE, make_problem
from tests.evalpool.program.programs import build

if TYPE_CHECKING:
    from forge.evalpool.judge.program.format import Program
    from forge.evalpool.judge.trial.trial import Runner
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


class Answering(SlowCompiler):
    """Answers about values after some time, of its own or of others."""

    def __init__(self, *, waits_s: float = 0.0, works_s: float = 0.0) -> None:
        super().__init__()
        self.waits_s, self.works_s = waits_s, works_s

    def values(self, prefix: Program, *, number: int) -> list[Any] | None:
        time.sleep(self.waits_s)
        end = time.thread_time() + self.works_s
        while time.thread_time() < end:
            pass
        return [1.0] * len(prefix.outputs)


def found(status: Status, reason: str, detail: str) -> Finding:
    return Finding(status=status, reason=reason, detail=detail)


def asked(answers: Answering) -> tuple[captures.Asked, Answer]:
    run = cast("Runner", SimpleNamespace(finding=found))
    program = build(inputs=[(1,)], kernels=[], forward=[], outputs=[0])
    question = Answer(kind=Kind.ASK, body={"kind": "value"}, program=wire.dumps(program))
    return captures.Asked(run=run, answers=answers, number=0, parse=captures._parsed), question


def test_only_what_the_judge_waits_for_is_granted() -> None:
    one, question = asked(Answering(waits_s=0.05))
    value, granted_s = one.answer(question)
    assert value == [1.0]
    assert granted_s >= 0.045
    one, question = asked(Answering(works_s=0.05))
    began = time.monotonic()
    granted_s = one.answer(question)[1]
    assert granted_s <= time.monotonic() - began - 0.05


def test_questions_have_a_size_together(monkeypatch: pytest.MonkeyPatch) -> None:
    one, question = asked(Answering())
    monkeypatch.setattr(captures, "MAX_ASKED_BYTES", 3 * len(question.program))
    for _ in range(3):
        one.answer(question)
    with pytest.raises(Decided) as ended:
        one.answer(question)
    assert ended.value.finding.status is Status.REJECTED
    assert "of questions" in ended.value.finding.detail
