"""Evaluators serve one candidate after the other, and nothing of one reaches the next."""

from __future__ import annotations

import functools
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from forge.evalpool.judge import frames
from forge.evalpool.judge.execute import child_cpu
from forge.evalpool.judge.frames import Kind
from forge.evalpool.judge.program import wire
from forge.evalpool.judge.shm import shared_memory
from forge.evalpool.judge.spawner import Spawner
from forge.evalpool.judge.trial import evaluations
from forge.evalpool.judge.trial.evaluations import EvaluatorRun
from forge.evalpool.judge.ttir.plan import plan_of
from forge.evalpool.judge.ttir.symbolic import Symbolic
from forge.records.verdict import Status
from tests.evalpool.benches import HEAD, RELU_KERNEL, TABLE
from tests.evalpool.execute.programs import copy_kernel, launch, program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge.evalpool.judge.program.format import Program
    from forge.evalpool.judge.spawner import SandboxedChild
    from tests.evalpool.benches import Bench

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


@pytest.fixture
def spawned(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[SandboxedChild]]:
    """Evaluators that are started during the test; none waits before it."""
    found: list[SandboxedChild] = []
    original = Spawner.spawn

    def spawn(self: Spawner, *, role: str, uid: int | None) -> SandboxedChild:
        child = original(self, role=role, uid=uid)
        if role == "evaluator":
            found.append(child)
        return child

    monkeypatch.setattr(Spawner, "spawn", spawn)
    bench.trials._evaluators.close()
    yield found
    bench.trials._evaluators.close()


def numbered(code: str, number: int) -> str:
    return f"{code}\n# {number}"


def test_one_child_evaluates_candidates_one_after_the_other(
    bench: Bench, spawned: list[SandboxedChild]
) -> None:
    for number in range(3):
        assert bench.judge(numbered(RELU_KERNEL, number)).is_correct
    assert len(spawned) == 1


def test_a_program_out_of_bounds_leaves_its_child_to_the_next_candidate(
    bench: Bench, spawned: list[SandboxedChild]
) -> None:
    for number in range(2):
        assert bench.judge(numbered(OUT_OF_BOUNDS, number)).reason == "out_of_bounds"
        assert bench.judge(numbered(RELU_KERNEL, number)).is_correct
    assert len(spawned) == 1


def test_memory_of_a_candidate_is_neither_mapped_nor_open_after_it(
    bench: Bench, spawned: list[SandboxedChild]
) -> None:
    evaluators = bench.trials._evaluators
    for code in (RELU_KERNEL, OUT_OF_BOUNDS, RELU_KERNEL):
        assert bench.judge(code).reason in ("ok", "out_of_bounds")
    kept = evaluators.take()  # waits until the child has said that it is done
    folder = Path(f"/proc/{kept.child.pid_here}")
    try:
        assert kept.num_served == 3
        assert "memfd" not in (folder / "maps").read_text()
        opened = [os.readlink(one) for one in (folder / "fd").iterdir()]
        assert not [one for one in opened if "memfd" in one]
    finally:
        bench.spawner.end(kept.child)


def test_a_child_that_ran_torchs_computations_serves_nobody_else(
    bench: Bench, spawned: list[SandboxedChild]
) -> None:
    table = TABLE.model_copy(update={"policy": "hybrid"})
    for number in range(2):
        verdict = bench.judge(numbered(TORCH_SORTS, number), problem=SORTED, table=table)
        assert verdict.is_correct, verdict
    assert len(spawned) == 2


def test_a_child_that_was_silent_serves_nobody_else(
    bench: Bench, spawned: list[SandboxedChild]
) -> None:
    table = TABLE.model_copy(update={"correct_timeout_s": 1.0})
    assert bench.judge(ENDLESS, table=table).status is Status.TIMEOUT
    assert bench.judge(RELU_KERNEL).is_correct
    assert len(spawned) == 2


def test_a_child_serves_a_bounded_number_of_candidates(
    bench: Bench, spawned: list[SandboxedChild], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluations, "MAX_CANDIDATES", 2)
    for number in range(4):
        assert bench.judge(numbered(RELU_KERNEL, number)).is_correct
    assert len(spawned) == 2


def test_a_child_with_much_memory_serves_nobody_else(
    bench: Bench, spawned: list[SandboxedChild], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluations, "MAX_KEPT_BYTES", 1000)
    for number in range(2):
        assert bench.judge(numbered(RELU_KERNEL, number)).is_correct
    assert len(spawned) == 2


def test_a_child_that_ended_while_it_waited_is_replaced(
    bench: Bench, spawned: list[SandboxedChild]
) -> None:
    assert bench.judge(RELU_KERNEL).is_correct
    os.kill(spawned[0].pid_here, signal.SIGKILL)
    assert bench.judge(RELU_KERNEL).is_correct
    assert len(spawned) == 2


@pytest.mark.parametrize(("num_served", "reason"), [(0, "runner_killed"), (1, "ok")])
def test_a_call_whose_child_ended_is_repeated_where_others_were_served_before(
    bench: Bench,
    spawned: list[SandboxedChild],
    monkeypatch: pytest.MonkeyPatch,
    num_served: int,
    reason: str,
) -> None:
    for number in range(num_served):
        assert bench.judge(numbered(RELU_KERNEL, number)).is_correct
    calls: list[Kind] = []
    original = EvaluatorRun.ask

    def ask(self: EvaluatorRun, kind: Kind, body: dict[str, Any], **how: Any) -> frames.Frame:
        calls.append(kind)
        if len(calls) == 3:
            os.kill(self.child.pid_here, signal.SIGKILL)
        return original(self, kind, body, **how)

    monkeypatch.setattr(EvaluatorRun, "ask", ask)
    assert bench.judge(RELU_KERNEL).reason == reason
    assert len(spawned) == 1 + num_served


REQUEST = {
    "num_bytes": 2048,
    "tensors": [["float32", [256], 0], ["float32", [256], 1024]],
    "state": [],
    "init": ["list", []],
    "sets": [["list", [["tensor", 0]]]],
    "slots": [1],
}
"""An input and a slot of 256 floats."""
X = np.arange(256, dtype=np.float32)


def failing() -> Iterator[Program]:
    """Programs that end in each of the executor's ways."""
    yield program(launch(256))
    yield program(launch(300, size=300))
    yield program(launch(200))
    yield program(launch(200, target=2), launch(256, source=2), num_temporaries=1)


def test_no_state_of_a_process_changes_with_the_candidates_that_it_serves() -> None:
    ours, theirs = socket.socketpair()
    child = threading.Thread(target=serve, args=(theirs,))
    child.start()
    with ours:
        run(ours, next(failing()))
        before = state()
        for one in failing():
            run(ours, one)
        assert state() == before
    child.join(10)
    assert not child.is_alive()


def serve(sock: socket.socket) -> None:
    with sock, pytest.raises(frames.PeerGone):
        child_cpu.main(sock)


def run(sock: socket.socket, one: Program) -> None:
    """A candidate from its first call to its release."""
    data = wire.dumps(one)
    with shared_memory(2048) as (fd, memory), shared_memory(len(data)) as (text, content):
        memory[:1024] = X.tobytes()
        content[:] = data
        frames.send(sock, Kind.CANDIDATE, REQUEST, fds=(fd, text))
        receive(sock)
        frames.send(sock, Kind.RELEASE, {})
        assert receive(sock).kind is Kind.DONE


def receive(sock: socket.socket) -> frames.Frame:
    return frames.receive(sock, deadline=time.monotonic() + 10, expected=(Kind.DONE, Kind.FAILED))


ROOMS = tuple(f"forge.evalpool.judge.{name}" for name in ("ttir", "execute", "program", "frames"))


def state() -> dict[str, Any]:
    """State of this process that an evaluator's code could change."""
    found: dict[str, Any] = {
        "numpy": (np.geterr(), np.get_printoptions(), str(np.random.get_state())),
        "torch": (torch.get_default_dtype(), torch.is_grad_enabled(), torch.initial_seed()),
        "process": (os.getcwd(), dict(os.environ), sys.getrecursionlimit(), gc.isenabled()),
        "warnings": len(warnings.filters),
        "files": len(os.listdir("/proc/self/fd")),
        "modules": len(sys.modules),
    }
    for name, module in list(sys.modules.items()):
        if name.startswith(ROOMS):
            found[name] = {key: shown(value) for key, value in vars(module).items()}
    return found


def shown(value: Any) -> Any:
    """A value's identity, with its content where it can change."""
    if isinstance(value, (dict, list, set)):
        return id(value), len(value), repr(value)[:10_000] if len(value) < 1000 else ""
    if isinstance(value, types.FunctionType):
        return id(value), value.__defaults__, repr(value.__dict__)
    if isinstance(value, type):
        return id(value), {key: id(one) for key, one in vars(value).items()}
    if isinstance(value, functools._lru_cache_wrapper):
        return id(value), value.cache_info().maxsize
    return id(value)


CACHES = """
import functools, sys
from forge.evalpool.judge.execute import child_cpu
child_cpu.warm_up()
found = {
    value.__name__
    for name, module in list(sys.modules.items())
    if name.startswith(ROOMS)
    for value in vars(module).values()
    if isinstance(value, functools._lru_cache_wrapper)
}
print(*sorted(found))
"""


def test_every_cache_of_an_evaluator_is_known_to_depend_on_its_arguments_alone() -> None:
    """In a process of its own: this one may have imported more than an evaluator does."""
    code = f"ROOMS = {ROOMS[:3]!r}\n{CACHES}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = set(done.stdout.split())
    assert found == {"plan_of", "operation", "schemas", "parse", "float8_values", "_sorted_codes"}


def test_plans_hold_no_array_that_can_be_written_to() -> None:
    plan = plan_of(copy_kernel().ttir)
    run_in_place(plan)
    found = [value for one in plan.functions.values() for value in one.template]
    arrays = [one for one in found if isinstance(one, np.ndarray)]
    for one in found:
        if isinstance(one, Symbolic):
            arrays += [*one.terms, *one._arrays.values()]
    assert arrays
    assert not [one for one in arrays if one.flags.writeable]


def run_in_place(plan: Any) -> None:
    """Runs a plan, so that what it remembers of its constants is there."""
    from forge.evalpool.judge.execute.cpu import CpuExecutor

    one = CpuExecutor(program(launch(256)), [X.copy().view(np.uint8)], {})
    one.init()
    one.forward()
