"""Cases of `bench.equality`: what a card computed, and what the evaluator makes of it.

A case is recorded in the judge's process with a card and can be evaluated anywhere: it holds the
program as it was captured, inputs, parameters, the card's outputs and times.
"""

from __future__ import annotations

import os
import time
import types
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from bench.equality_compare import Comparison, compare
from bench.equality_model import NUM_SAMPLES, install, sampled
from forge.evalpool.judge.channel.shm import TensorSpec
from forge.evalpool.judge.estimate.program import estimate_program
from forge.evalpool.judge.execute.cpu.executor import CpuExecutor
from forge.evalpool.judge.execute.outcome import ExecutionFailed
from forge.evalpool.judge.program import wire
from forge.evalpool.judge.ttir.contraction import NONE
from forge.evalpool.judge.ttir.evaluate import Order
from forge.process.lease import die_with_parent

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CARD = "H100"
SLOW_S = 0.4
"""Time of an evaluation above which a call is not compared: NUM_SAMPLES more would follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One checked call on the card."""

    variant: str
    """Distribution of its inputs."""
    program: bytes
    inputs: tuple[NDArray[np.uint8], ...]
    outputs: tuple[NDArray[np.uint8], ...]
    """Outputs, then the inputs that the reference changes, as the card left them."""
    forms: tuple[tuple[str, tuple[int, ...]], ...]
    """Type and shape of each."""
    changed: tuple[int, ...]
    """Positions of those inputs."""
    mismatch: str
    """What the judge found wrong with them; empty if nothing."""


@dataclass(slots=True, kw_only=True)
class Case:
    """One kernel on a card."""

    name: str
    group: str
    """`corpus`, or the family."""
    source: str
    """The problem."""
    precision: str
    num_sets: int = 4
    """Input sets that are compared."""
    parameters: dict[str, NDArray[np.uint8]] = field(default_factory=dict[str, Any])
    calls: list[CallRecord] = field(default_factory=list[CallRecord])
    failure: str = ""
    """Reason why the card has no outputs, or no times."""
    status: str = ""
    """Status of the judge's verdict on the card."""
    candidate_us: float | None = None
    baseline_us: float | None = None


def prepare(parent_pid: int) -> None:
    """Prepares a process that evaluates cases."""
    die_with_parent(parent_pid)
    os.nice(5)
    import torch

    torch.set_num_threads(1)
    install()


def evaluated(case: Case) -> dict[str, Any]:
    """The row of a case."""
    began = time.monotonic()
    row: dict[str, Any] = {
        "name": case.name,
        "group": case.group,
        "precision": case.precision,
        "status": case.status,
        "failure": case.failure,
        "candidate_us": case.candidate_us,
        "baseline_us": case.baseline_us,
        "calls": [],
    }
    for number, call in enumerate(case.calls):
        try:
            row["calls"].append(_call_row(case, call, row if number == 0 else None))
        except Exception as error:  # a row for each case, whatever the evaluator does
            failed = {"variant": call.variant, "error": f"{type(error).__name__}: {error}"[:500]}
            row["calls"].append(failed)
    row["evaluated_s"] = round(time.monotonic() - began, 2)
    return row


def _call_row(case: Case, call: CallRecord, row: dict[str, Any] | None) -> dict[str, Any]:
    """One call's comparison; with `row`, the estimate goes there."""
    began = time.monotonic()
    executor = _Evaluation(case, call)
    outputs = executor.outputs()
    spent_s = time.monotonic() - began
    samples, failures = list[list[bytes]](), list[str]()
    for seed in range(NUM_SAMPLES if spent_s < SLOW_S else 0):
        try:
            samples.append(sampled(lambda: _Evaluation(case, call).moved(), seed=seed))
        except ExecutionFailed as error:
            failures.append(error.message[:200])
    found: list[Comparison] = []
    for place, (dtype, shape) in enumerate(call.forms if samples else ()):
        spec = TensorSpec(dtype, shape)
        moved = [one[place] for one in samples]
        found.append(compare(spec, call.outputs[place].tobytes(), outputs[place], moved))
    if row is not None:
        row["estimate"] = _estimate(case, executor.costs)
    return {
        "variant": call.variant,
        "mismatch": call.mismatch,
        "faults": executor.faults,
        "num_samples": len(samples),
        "sample_failures": failures[:1],
        "first_s": round(spent_s, 3),
        "outputs": [
            {"dtype": form[0], "shape": list(form[1]), **asdict(one)}
            for form, one in zip(call.forms, found, strict=False)
        ],
    }


class _Evaluation:
    """One call of a program on memory of its own."""

    def __init__(self, case: Case, call: CallRecord) -> None:
        self._call = call
        self._inputs = [one.copy() for one in call.inputs]
        parameters = {name: one.copy() for name, one in case.parameters.items()}
        program = wire.loads(call.program)
        self._executor = CpuExecutor(program, self._inputs, parameters, has_tf32=True)
        self.costs: list[dict[str, Any]] = []
        self.faults: list[str] = []

    def outputs(self) -> list[bytes]:
        """As the judge evaluates it."""
        self._executor.init()
        outcome = self._executor.forward()
        self.costs = [asdict(one) for one in outcome.costs]
        self.faults = [f"{one.kind}: {one.message}"[:300] for one in outcome.faults]
        return self._read()

    def moved(self) -> list[bytes]:
        """With the instances in another order and no sum fused; nothing is looked for."""
        from forge.evalpool.judge.execute.cpu.conditions import Conditions
        from forge.evalpool.judge.execute.outcome import Outcome

        self._executor.init(fusion=NONE)
        self._executor.sections.call(Outcome(), Conditions(order=Order.SHUFFLED))
        return self._read()

    def _read(self) -> list[bytes]:
        program = self._executor.program
        found = [self._executor.read(number).tobytes() for number in program.outputs]
        return found + [self._inputs[place].tobytes() for place in self._call.changed]


def _estimate(case: Case, costs: list[dict[str, Any]]) -> dict[str, float] | None:
    """The estimate that `judge.model_card` would give; None where there is none."""
    operations = _operations(case)
    found = estimate_program(costs, operations, card=CARD, precision=case.precision, is_tf32=True)
    if found is None:
        return None
    return {"candidate_us": found.candidate_us, "baseline_us": found.baseline_us}


def _operations(case: Case) -> list[tuple[int, int]]:
    """(bytes, FLOPs) of each operation of the reference, counted on this machine."""
    import torch

    from forge.evalpool.judge.numbers.errors.own_error import count_work

    module = types.ModuleType("problem")
    exec(compile(case.source, "problem.py", "exec"), module.__dict__)
    with torch.no_grad():
        model = module.__dict__["Model"](*module.__dict__["get_init_inputs"]())
        counted = count_work(model, list(module.__dict__["get_inputs"]()))
    return [] if counted is None else [(int(size), int(work)) for size, work in counted.listed]
