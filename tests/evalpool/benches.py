"""The parts of one judge (zygote, oracle, trials) in the test's process."""

import dataclasses
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from forge.config.schema import JudgeTable
from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.children.spawner import SandboxedChild, Spawner
from forge.evalpool.judge.sandbox.enter import Isolation
from forge.evalpool.judge.trial import captures, trial
from forge.evalpool.judge.trial.cpu_trial import open_cpu_trials
from forge.evalpool.judge.trial.host_code import HostCode
from forge.evalpool.judge.trial.references import References
from forge.evalpool.judge.trial.trial import CORRECTNESS_ALONE, Stamp
from forge.records.problem import Problem, Split
from forge.records.verdict import JudgeOptions, Verdict

TABLE = JudgeTable(compile_timeout_s=20.0, correct_timeout_s=20.0)
GPU_TABLE = JudgeTable(compile_timeout_s=10.0, correct_timeout_s=10.0, timing_timeout_s=10.0)
ROOT = Path(__file__).parents[2]
DRAWN: dict[str, Any] = {
    "entry_point": "Model", "precision": "fp32", "num_sets": 2, "device": "cpu", "tf32": False,
    "tf32_products": False, "max_bytes": 1 << 28, "plain": False, "moved": True,
}  # fmt: skip
"""Request of a draw, without its source."""
SLIPS = ("NameError", "SyntaxError", "AttributeError", "TypeError", "IndentationError")

RELU = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2
def get_inputs():
    return [torch.randn(16, 64)]
def get_init_inputs():
    return []
"""


def problem(
    forward: str, *, inputs: str = "torch.randn(8, 24)", init: str = "[]", head: str = "pass"
) -> str:
    """The source of a problem by the lines of its parts; `forward` has `inputs` and, as `x`, the
    first of them."""
    return f"""
import torch
class Model(torch.nn.Module):
    def __init__(self, *args):
        super().__init__()
        {head}
    def forward(self, *inputs):
        x = inputs[0]
        {forward}
def get_inputs():
    return [{inputs}]
def get_init_inputs():
    return {init}
"""


HEAD = "import torch\nimport triton\nimport triton.language as tl\n"


def candidate(code: str) -> str:
    """Source of a candidate: the usual imports, then this."""
    return HEAD + code


RELU_KERNEL = candidate("""
@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.maximum(value, 0.0) * 2, mask=i < n)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
""")


@dataclasses.dataclass
class Bench:
    """Everything one judge process holds, without the process."""

    spawner: Spawner
    references: References[Any]
    trials: Any

    def judge(
        self,
        code: str,
        *,
        problem: str = RELU,
        table: JudgeTable | None = None,
        options: JudgeOptions = CORRECTNESS_ALONE,
    ) -> Verdict:
        trials = self.trials
        if table is not None:
            captures = copy(trials.captures)
            captures._table = table
            trials = dataclasses.replace(trials, table=table, captures=captures)
        return trials.judge(make_problem(problem), code, options=options)

    def judge_honest(self, **changes: object) -> Verdict:
        """The verdict on a kernel that is right, with these settings."""
        return self.judge(RELU_KERNEL, table=TABLE.model_copy(update=changes))

    @property
    def spawners(self) -> list[Spawner]:
        """Spawners that have children."""
        return [self.spawner]

    def start(self, code: str) -> SandboxedChild:
        """Runs Python in a capture child, for the caller to end."""
        reference = self.references.hold(make_problem(RELU))
        source = f"class Answer(Exception): pass\n{code}"
        child = self.spawner.spawn(role="capture")
        body = {**reference.request, "code": source, "entry_point": "X"}
        frames.send(child.sock, Kind.CANDIDATE, body)
        return child

    def explore(self, code: str) -> str:
        """Runs Python in a capture child; returns the text that it raises as `Answer(...)`."""
        child = self.start(code)
        try:
            expected = (Kind.FAILED, Kind.DONE)
            deadline = time.monotonic() + 20
            answer = frames.receive(child.sock, deadline=deadline, expected=expected).body
        finally:
            self.spawner.end(child)
        return f"{answer['type']}: {answer['message']}"

    def refused(self, statement: str) -> str:
        """The error that a statement meets inside; fails if it meets none, or one that only says
        that the statement is no attempt at all."""
        body = "\n    ".join(statement.strip().split("\n"))
        answer = self.explore(
            f"import os, sys, socket, ctypes\ntry:\n    {body}\n"
            "except BaseException as error:\n    raise Answer(repr(error))\n"
            "raise Answer('it works')"
        )
        assert "it works" not in answer, statement
        assert not any(slip in answer for slip in SLIPS), f"{statement}: {answer}"
        return answer


@dataclasses.dataclass
class GpuBench(Bench):
    """The same on the first card."""

    references: Any
    card_spawner: Spawner
    """Makes children with the card's files."""

    @property
    def spawners(self) -> list[Spawner]:
        """Spawners that have children."""
        return [self.spawner, self.card_spawner]

    def start(self, code: str) -> SandboxedChild:
        """Runs Python in an oracle, for the caller to end: it has the card's files."""
        child = self.card_spawner.spawn(role="oracle")
        body = {
            **DRAWN, "source": f"class Answer(Exception): pass\n{code}", "num_sets": 1,
            "device": "cuda", "tf32": True, "tf32_products": True, "max_bytes": 1 << 30,
            "memory_share": 0.1, "plain": True,
        }  # fmt: skip
        frames.send(child.sock, Kind.PROBLEM, body)
        return child

    def explore(self, code: str) -> str:
        """The text that the Python raises as `Answer(...)`."""
        child = self.start(code)
        try:
            deadline = time.monotonic() + 30
            answer = frames.receive(child.sock, deadline=deadline, expected=(Kind.FAILED,)).body
        finally:
            self.card_spawner.end(child)
        return f"{answer['type']}: {answer['message']}"


def make_problem(source: str, *, problem_id: str = "p", precision: str = "fp32") -> Problem:
    return Problem(
        problem_id=problem_id,
        source=source,
        family="test",
        level=1,
        split=Split.GRPO,
        precision=precision,
    )


@contextmanager
def open_bench(folder: Path, *, isolation: Isolation = Isolation.NAMESPACES) -> Iterator[Bench]:
    """At a level of the sandbox, on a machine that always has a core: a test that is about a
    deadline does not depend on what else runs."""
    spawner = Spawner(isolation=isolation, folder=folder, memory_bytes=1 << 30)
    previous = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(ROOT)
    spawner.start()
    if previous is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = previous
    spawner.wait_ready()
    stamp = Stamp(isolation=isolation, caps="rlimit", harness="test")
    trials = open_cpu_trials(TABLE, spawner=spawner, stamp=stamp)
    with patch.object(trial, "waited_s", lambda pid: 0.0):
        yield Bench(spawner, trials.references, trials)
    trials.close()
    spawner.close()


@contextmanager
def open_gpu_bench(folder: Path) -> Iterator[GpuBench]:
    """On the first card."""
    from forge.evalpool.judge.trial.gpu.trial import open_gpu_trials
    from forge.process.devices import inventory

    gpu = inventory()[0]
    os.environ["PYTHONPATH"] = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    os.environ["XDG_CACHE_HOME"] = str(folder.parent)
    # As a judge has it: by its number, a card would not be found beside the nodes of no other.
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu.uuid
    spawner = Spawner(isolation="auto", folder=folder, memory_bytes=8 << 30)
    card_spawner = Spawner(
        isolation="auto",
        folder=folder.with_suffix(".card"),
        memory_bytes=8 << 30,
        is_gpu=True,
        gpu_minor=gpu.minor,
    )
    for one in (spawner, card_spawner):
        one.start()
    for one in (spawner, card_spawner):
        one.wait_ready()
    stamp = Stamp(isolation=spawner.isolation, caps=spawner.caps, harness="test")
    trials = open_gpu_trials(
        GPU_TABLE, spawner=spawner, card_spawner=card_spawner, stamp=stamp, uuid=gpu.uuid
    )
    yield GpuBench(spawner, trials.references, trials, card_spawner)
    trials.close()
    for one in (spawner, card_spawner):
        one.close()


@contextmanager
def any_host_code() -> Iterator[None]:
    """Within, benches of this process judge host code whatever it names, as another protocol does:
    what lies behind the list must hold without it."""
    with pytest.MonkeyPatch.context() as changed:
        for module in (trial, captures):
            changed.setattr(module, "host_code", lambda code, *, entry_point: HostCode())
        yield
