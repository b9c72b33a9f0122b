"""Evaluators serve one candidate after the other, and end where that is not safe."""

import gc
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.children import spawner
from forge.evalpool.judge.children.spawner import SandboxedChild, Spawner
from forge.evalpool.judge.trial import cpu_trial
from forge.evalpool.judge.trial.cpu_trial import CpuMemory, EvaluatorRunner
from forge.records.verdict import Status
from tests.evalpool.benches import HEAD, RELU_KERNEL, TABLE, Bench

OUT_OF_BOUNDS = RELU_KERNEL.replace("256),)]", "256) + 1,)]").replace("i < n", "i >= 0")
ENDLESS = HEAD + (
    """
@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    for _ in range(100_000_000):
        value = tl.sin(value)
    tl.store(y + i, value, mask=i < n)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
"""
)
TORCH_SORTS = RELU_KERNEL.replace("return y", "return torch.sort(y)[0]")
SORTED = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.sort(torch.relu(x) * 2)[0]
def get_inputs():
    return [torch.randn(16, 64)]
def get_init_inputs():
    return []
"""


@dataclass(frozen=True, slots=True)
class Served:
    """A bench, and the evaluators that are started during a test; none waits before it."""

    bench: Bench
    children: list[SandboxedChild] = field(default_factory=list)

    def judge_correct(self, count: int, code: str = RELU_KERNEL, **options: Any) -> None:
        """Judges candidates that differ in a comment; each must be correct."""
        for number in range(count):
            verdict = self.bench.judge(f"{code}\n# {number}", **options)
            assert verdict.is_correct, verdict


@pytest.fixture
def served(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    found = Served(bench)
    original = Spawner.spawn

    def spawn(self: Spawner, *, role: str, source: str = "") -> SandboxedChild:
        child = original(self, role=role, source=source)
        if role == "evaluator":
            found.children.append(child)
        return child

    monkeypatch.setattr(Spawner, "spawn", spawn)
    bench.trials.evaluators.close()
    yield found
    bench.trials.evaluators.close()


def test_a_program_out_of_bounds_leaves_its_child_to_the_next_candidate(served: Served) -> None:
    for _ in range(2):
        assert served.bench.judge(OUT_OF_BOUNDS).reason == "out_of_bounds"
        served.judge_correct(1)
    assert len(served.children) == 1


@pytest.mark.parametrize("factor", [2, 3])
def test_a_judgement_leaves_no_memory_to_the_garbage_collector(bench: Bench, factor: int) -> None:
    """The draw of a large problem is half a gigabyte, and the next one needs the room."""
    gc.collect()
    gc.disable()
    try:
        code = RELU_KERNEL.replace("* 2,", f"* {factor},")
        assert bench.judge(f"{code}\n# left").is_correct == (factor == 2)
        assert not [one for one in gc.get_objects() if isinstance(one, CpuMemory)]
    finally:
        gc.enable()


def test_memory_of_a_candidate_is_neither_mapped_nor_open_after_it(served: Served) -> None:
    bench = served.bench
    for code in (RELU_KERNEL, OUT_OF_BOUNDS, RELU_KERNEL):
        assert bench.judge(code).reason in ("ok", "out_of_bounds")
    kept = bench.trials.evaluators.take()  # waits until the child has said that it is done
    folder = Path(f"/proc/{kept.child.pid_here}")
    try:
        assert kept.num_served == 3
        assert "memfd" not in (folder / "maps").read_text()
        opened = [os.readlink(one) for one in (folder / "fd").iterdir()]
        assert not [one for one in opened if "memfd" in one]
    finally:
        bench.spawner.end(kept.child)


def test_a_child_that_ran_torchs_computations_serves_nobody_else(served: Served) -> None:
    table = TABLE.model_copy(update={"policy": "hybrid"})
    served.judge_correct(2, TORCH_SORTS, problem=SORTED, table=table)
    assert len(served.children) == 2


def test_a_child_that_was_silent_serves_nobody_else(served: Served) -> None:
    table = TABLE.model_copy(update={"correct_timeout_s": 1.0})
    assert served.bench.judge(ENDLESS, table=table).status is Status.TIMEOUT
    served.judge_correct(1)
    assert len(served.children) == 2


@pytest.mark.parametrize(
    ("module", "bound", "value", "count"),
    [(spawner, "MAX_SERVED", 2, 4), (cpu_trial, "MAX_KEPT_BYTES", 1000, 2)],
)
def test_a_child_serves_a_bounded_number_of_candidates_and_keeps_bounded_memory(
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    bound: str,
    value: int,
    count: int,
) -> None:
    monkeypatch.setattr(module, bound, value)
    served.judge_correct(count)
    assert len(served.children) == 2


def test_a_child_that_ended_while_it_waited_is_replaced(served: Served) -> None:
    served.judge_correct(1)
    os.kill(served.children[0].pid_here, signal.SIGKILL)
    served.judge_correct(1)
    assert len(served.children) == 2


@pytest.mark.parametrize(("num_served", "reason"), [(0, "runner_killed"), (1, "ok")])
def test_a_call_whose_child_ended_is_repeated_where_others_were_served_before(
    served: Served, monkeypatch: pytest.MonkeyPatch, num_served: int, reason: str
) -> None:
    served.judge_correct(num_served)
    calls: list[Kind] = []
    original = EvaluatorRunner.ask

    def ask(self: EvaluatorRunner, kind: Kind, body: dict[str, Any], **how: Any) -> frames.Frame:
        calls.append(kind)
        if len(calls) == 3:
            os.kill(self.child.pid_here, signal.SIGKILL)
        return original(self, kind, body, **how)

    monkeypatch.setattr(EvaluatorRunner, "ask", ask)
    assert served.bench.judge(RELU_KERNEL).reason == reason
    assert len(served.children) == 1 + num_served
