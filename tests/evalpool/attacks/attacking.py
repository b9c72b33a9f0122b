"""The judge's view of a hostile candidate before anything runs: capture, wire, policy, check."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge.evalpool.judge.capture.exchange import CaptureFailed
from forge.evalpool.judge.capture.session import capture
from forge.evalpool.judge.capture.stage import Stage
from forge.evalpool.judge.compiler.child import check_ttir, open_target
from forge.evalpool.judge.compiler.text import Refused
from forge.evalpool.judge.program import wire
from forge.evalpool.judge.program.dataflow import Access, Accesses
from forge.evalpool.judge.program.format import Launch, Op, Program
from forge.evalpool.judge.program.policy import Policy, ProblemFacts, judge_policy
from forge.evalpool.judge.program.policy import facts_of as reference_facts
from forge.evalpool.judge.ttir.parse import parse
from forge.evalpool.judge.ttir.verify import Use, uses_of, verify
from tests.evalpool.capture.capturing import HEADER, request

_numbers = itertools.count()
_facts: dict[str, ProblemFacts] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A reference with the shapes of its tensors, all float32 unless `(dtype, shape)`."""

    reference: str
    """Body of its `forward`, after `import torch`; `init` stands before."""
    inputs: tuple[Any, ...]
    state: dict[str, list[int]]
    init: str = ""

    @property
    def code(self) -> str:
        return (
            f"{HEADER}\nclass Model(torch.nn.Module):\n    def __init__(self):\n"
            f"        super().__init__()\n{self.init}\n"
            f"    def forward(self, {', '.join('xyzw'[: len(self.inputs)])}):\n"
            f"        {self.reference}\n"
        )

    def asked(self, **more: Any) -> dict[str, Any]:
        state = self.state or None
        return request(inputs=list(self.inputs), state=state, **more)


RELU = Problem(reference="return torch.relu(x)", inputs=([256, 256],), state={})
SOFTMAX = Problem(reference="return torch.softmax(x, -1)", inputs=([64, 512],), state={})
SUM = Problem(reference="return x.sum(-1)", inputs=([256, 1024],), state={})
PRODUCT = Problem(reference="return x @ y", inputs=([128, 128], [128, 128]), state={})
LINEAR = Problem(
    reference="return self.fc(x)",
    inputs=([64, 128],),
    state={"fc.weight": [128, 128], "fc.bias": [128]},
    init="        self.fc = torch.nn.Linear(128, 128)",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The first room that refuses a candidate, and its words; `passed` with the program if none."""

    room: str
    words: str = ""
    program: Program | None = None

    @property
    def ops(self) -> list[str]:
        return [node.name for node in self.program.forward if isinstance(node, Op)]

    @property
    def num_launches(self) -> int:
        return sum(isinstance(node, Launch) for node in self.program.forward)


def attack(folder: Path, code: str, problem: Problem = RELU, *, policy: Policy = "own") -> Outcome:
    """The outcome of a candidate's source."""
    try:
        program = captured(folder, HEADER + code, problem.asked())
    except CaptureFailed as error:
        return Outcome(room="capture", words=str(error))
    return attack_program(folder, program, problem, policy=policy)


def attack_program(
    folder: Path, program: Program, problem: Problem, *, policy: Policy = "own"
) -> Outcome:
    """The outcome of a program, however it was made."""
    try:
        program = wire.loads(wire.dumps(program))
    except wire.InvalidProgram as error:
        return Outcome(room="wire", words=str(error))
    try:
        for kernel in program.kernels:
            check_ttir(kernel, open_target(program.target))
    except Refused as error:
        return Outcome(room="check", words=str(error))
    refusal = judge_policy(program, facts_of(folder, problem), policy, accesses_of(program))
    if refusal is not None:
        return Outcome(room="policy", words=f"{refusal.rule}: {refusal.message}", program=program)
    return Outcome(room="passed", program=program)


def captured(folder: Path, code: str, asked: dict[str, Any]) -> Program:
    """Raises CaptureFailed."""
    file = folder / f"candidate{next(_numbers)}.py"
    try:
        return capture(asked, code, file=str(file))
    finally:
        Stage.get().end()


def facts_of(folder: Path, problem: Problem) -> ProblemFacts:
    """The facts of a problem, from its reference captured as a program."""
    if problem.code not in _facts:
        reference = captured(folder, problem.code, problem.asked(entry_point="Model"))
        _facts[problem.code] = reference_facts(reference)
    return _facts[problem.code]


def accesses_of(program: Program) -> Accesses:
    """Reads and writes of each kernel, by our own reading of its TTIR."""
    found: dict[int, tuple[Access, ...]] = {}
    for number, kernel in enumerate(program.kernels):
        module = parse(kernel.ttir)
        verify(module)
        uses = uses_of(module, kernel.name)
        if len(uses) == len(kernel.parameters):
            found[number] = tuple(_access(use) for use in uses)
    return found


def _access(use: Use | None) -> Access:
    if use is None:
        return Access.NONE
    read = Access.READ if use.is_read else Access.NONE
    return read | (Access.WRITE if use.is_written else Access.NONE)
