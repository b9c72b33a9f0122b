"""A capture's time and its questions: what it waits for is not counted, as far as it is little."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from forge.evalpool.judge.capture.exchange import Answer
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.children.spawner import SandboxedChild, Spawner
from forge.evalpool.judge.program import wire
from forge.evalpool.judge.program.format import Program
from forge.evalpool.judge.trial import captures
from forge.evalpool.judge.trial.captures import Captures
from forge.evalpool.judge.trial.host_code import host_code
from forge.evalpool.judge.trial.trial import Decided, Finding, Phases, Runner
from forge.records import Status
from tests.evalpool.benches import HEAD, RELU, RELU_KERNEL, TABLE, Bench, make_problem
from tests.evalpool.program.programs import build


class Answering:
    """Answers about values after some time, of its own or of others."""

    def __init__(self, *, waits_s: float = 0.0, works_s: float = 0.0) -> None:
        self.waits_s, self.works_s = waits_s, works_s

    def __call__(self, prefix: Program, *, number: int) -> list[Any] | None:
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
    question = Answer(kind=Kind.ASK, program=wire.dumps(program), body={})
    return captures.Asked(
        run=run, answers=answers, number=0, parse=lambda _, data: wire.loads(data)
    ), question


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


CALLS = (
    HEAD
    + """
SIZE = tl.constexpr(2)

@triton.jit
def helper(x, a=3):
    return x * a * SIZE

@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = helper(tl.load(x + i, mask=i < n))
    tl.store(y + i, value, mask=i < n)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
"""
)
ALIKE = [
    CALLS,
    "\n\n" + CALLS,
    CALLS.replace("constexpr(2)", "constexpr(4)"),
    CALLS.replace("constexpr(2)", "constexpr(2.5)"),
    CALLS.replace("a=3", "a=5"),
    CALLS.replace("BLOCK=256)", "BLOCK=512)"),
    CALLS.replace("BLOCK=256)", "BLOCK=256, num_warps=8)"),
    CALLS.replace("x, y, x.numel()", "x, y, 300"),
    CALLS.replace("torch.empty_like(x)", "torch.empty_like(x, dtype=torch.float16)"),
    CALLS.replace("x * a * SIZE", "a + x * SIZE"),
    CALLS,
]
"""Candidates whose kernel has the same text, and others."""
WRONG = [
    CALLS.replace("tl.load", "tl.ceil"),
    CALLS.replace("BLOCK=256)", "BLOCK=100)"),
    CALLS.replace("return y", "return z"),
    CALLS.replace("x * a * SIZE", "x * a * NAME"),
    CALLS.replace("forward(self, x)", "forward(self)"),
    CALLS.replace("return y", "raise ValueError(x.shape)"),
    CALLS.replace("return y", "return 1"),
    CALLS.replace("y = torch.empty_like(x)", "y = torch.zeros(4)"),
]


@dataclass(frozen=True, slots=True)
class Shared:
    """A bench, and the children that capture during a test, by role; none waits before it."""

    bench: Bench
    children: list[tuple[str, SandboxedChild]] = field(default_factory=list)

    @property
    def roles(self) -> list[str]:
        """Roles of the children, in order."""
        return [role for role, _ in self.children]

    @property
    def captures(self) -> Captures:
        """The bench's."""
        return self.bench.trials.captures

    def capture(self, code: str, *, alone: bool = False) -> bytes | str:
        """The program of a candidate, or what is said about its failure."""
        request = self.bench.references.hold(make_problem(RELU)).draw.request
        captures = copy(self.captures)
        captures._table = TABLE
        if alone:
            captures._kept = None
        try:
            return captures.capture(code, request, entry_point="ModelNew", phases=Phases()).data
        except Decided as decided:
            return f"{decided.finding}"


@pytest.fixture
def shared(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shared]:
    found = Shared(bench)
    original = Spawner.spawn
    bench.references.hold(make_problem(RELU))

    def spawn(self: Spawner, *, role: str, source: str = "") -> SandboxedChild:
        child = original(self, role=role, source=source)
        if role in ("plain", "capture"):
            found.children.append((role, child))
        return child

    bench.trials.captures.close()
    monkeypatch.setattr(Spawner, "spawn", spawn)
    yield found
    bench.trials.captures.close()


def test_a_shared_child_captures_what_one_of_its_own_captures(shared: Shared) -> None:
    together = [shared.capture(code) for code in ALIKE]
    assert shared.roles == ["plain"]
    assert together == [shared.capture(code, alone=True) for code in ALIKE]
    assert all(isinstance(one, bytes) for one in together)
    assert together[0] == together[-1]
    assert len(set(together)) == len(ALIKE) - 1


def test_a_failure_in_a_shared_child_is_that_of_one_of_its_own(shared: Shared) -> None:
    together = [shared.capture(code) for code in WRONG]
    assert shared.roles == ["plain"]
    assert together == [shared.capture(code, alone=True) for code in WRONG]
    assert all(isinstance(one, str) for one in together)
    assert isinstance(shared.capture(CALLS), bytes)
    assert shared.roles.count("plain") == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("import torch\n", "import torch\nimport os\n"),
        ("return y", "return y if (x > 0).all() else x"),
        ("return y", "return self.forward(x)"),
    ],
)
def test_a_candidate_that_is_not_plain_or_asks_has_a_child_of_its_own(
    shared: Shared, old: str, new: str
) -> None:
    code = CALLS.replace(old, new, 1)
    found = shared.capture(code)
    assert shared.roles[-1] == "capture"
    assert found == shared.capture(code, alone=True)
    shared.capture(CALLS)


def test_a_shared_child_that_ended_is_replaced(shared: Shared) -> None:
    found = shared.capture(CALLS)
    with suppress(ProcessLookupError):
        os.kill(shared.children[0][1].pid_here, signal.SIGKILL)
    assert shared.capture(CALLS) == found
    assert shared.roles == ["plain", "plain"] or shared.roles == ["plain", "capture"]
    assert shared.capture(CALLS) == found
    assert shared.roles.count("plain") == 2


def test_a_candidate_without_end_in_a_shared_child_is_out_of_time(shared: Shared) -> None:
    code = CALLS.replace("return y", "while True: pass")
    table = TABLE.model_copy(update={"compile_timeout_s": 1.0})
    assert shared.bench.judge(code, table=table).reason == "deadline:capture"
    assert shared.roles == ["plain"]
    assert shared.bench.judge(RELU_KERNEL).is_correct
    assert shared.roles == ["plain", "plain"]


COPY = "class ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x\n"
GREEDY = f"{HEAD}BIG = torch.empty(150_000_000)\n{COPY}"
HONEST = RELU_KERNEL.replace("class ModelNew", "TABLE = torch.empty(60_000_000)\n\nclass ModelNew")
"""Fits into a child's memory, not beside what GREEDY takes of it."""


def test_memory_that_a_candidate_took_is_not_missed_by_the_next(bench: Bench) -> None:
    assert host_code(GREEDY, entry_point="ModelNew").is_shareable
    assert host_code(HONEST, entry_point="ModelNew").is_shareable
    for code in (HONEST, GREEDY, HONEST, GREEDY, GREEDY, HONEST):
        verdict = bench.judge(code)
        assert (verdict.status is Status.CORRECT) is (code is HONEST), verdict.detail
        assert verdict.reason in ("ok", "no_kernel_launch"), verdict.detail
