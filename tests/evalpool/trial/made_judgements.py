"""Candidates' programs on a made-up card: judgements without capture, compiler or GPU."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from forge.config.schema import JudgeTable
from forge.evalpool.judge.execute.executor import Executor
from forge.evalpool.judge.numbers.gpu_compare import Allowed
from forge.evalpool.judge.numbers.protocols import PROTOCOLS
from forge.evalpool.judge.program.policy import ProblemFacts
from forge.evalpool.judge.trial.captures import Captured
from forge.evalpool.judge.trial.gpu.card_memory import CardMemory
from forge.evalpool.judge.trial.gpu.judgement import GpuJudgement
from forge.evalpool.judge.trial.gpu.layout import Changed, GpuReference, Set
from forge.evalpool.judge.trial.trial import Candidate
from tests.evalpool.benches import make_problem
from tests.evalpool.execute.host_card import Block, HostCard
from tests.evalpool.execute.host_judge import Thread, launched
from tests.evalpool.execute.made_programs import Made, data_of, use

if TYPE_CHECKING:
    from collections.abc import Iterator

NUM = 6
CODE = "\n".join(f"line {number} of the candidate" for number in range(1, 40))


def reference(
    *,
    num_sets: int = 4,
    factor: float = 2.0,
    is_in_place: bool = False,
    weight: float = 0.0,
    name: str = "weight",
    left: float | None = None,
) -> GpuReference:
    """A problem of one input: x * factor + weight.

    Args:
        name: that of the weight.
        left: what a call leaves in it; None where it stays.
    """
    generator = torch.Generator().manual_seed(1)
    tensors: list[torch.Tensor] = [torch.tensor([weight])]
    sets: list[Set] = []
    state: tuple[tuple[str, int], ...] = ()
    if left is not None:
        tensors.append(torch.tensor([left]))
        state = ((name, 1),)
    for _ in range(num_sets):
        x = torch.randn(NUM, generator=generator)
        right = x * factor + weight
        tensors += [x, right, torch.empty(0)]
        first = len(tensors) - 3
        changed = (Changed(number=0, output=first + 1, error=first + 2),) if is_in_place else ()
        outputs = () if is_in_place else (first + 1,)
        errors = (first + 2,)
        made = Set(inputs=(first,), outputs=outputs, errors=errors, changed=changed, state=state)
        sets.append(made)
    rights = [index for one in sets for index in (*one.outputs, *(c.output for c in one.changed))]
    rights += [0, *(index for _, index in state)]
    none: Any = None
    return GpuReference(
        request={"sets": [["tensor", 0]] * num_sets},
        flops=0,
        precision="fp32",
        block=none,
        tensors=tensors,
        sets=sets,
        named={name: 0},
        is_sequence=False,
        allowed={
            index: Allowed.of(tensors[index], torch.empty(0), precision="fp32") for index in rights
        },
    )


class NoCapture:
    """Captures that give one program for each candidate."""

    def __init__(self, captured: Captured) -> None:
        self.captured = captured

    def capture(self, *_: Any, **__: Any) -> Captured:
        return self.captured


class Compiled:
    """A compiler that has done its work."""

    def __init__(self, binaries: list[Any]) -> None:
        self.found = binaries

    def compile(self, *_: Any, **__: Any) -> list[Any]:
        return self.found


@dataclass
class Bench:
    """Judges programs on one made-up card."""

    card: HostCard
    executor: Executor

    def judgement(
        self,
        made: Made,
        *outputs: int,
        problem: GpuReference | None = None,
        protocol: str = "forge",
        **options: Any,
    ) -> GpuJudgement:
        program, problem = made.done(*outputs), problem or reference()
        captured = Captured(program=program, data=data_of(program))
        other = PROTOCOLS.get(protocol)
        memory = CardMemory(problem, other)
        task = make_problem("class Model: ...")
        found = GpuJudgement(
            candidate=Candidate(problem=task, code=CODE, uid=None, protocol=other),
            table=JudgeTable(**{"correct_timeout_s": 30.0, "timing_timeout_s": 30.0, **options}),
            request=problem.request,
            memory=memory,
            card=memory,
            problem=ProblemFacts(num_bytes=problem.num_bytes),
            captures=cast("Any", NoCapture(captured)),
            compiler=cast("Any", Compiled(made.binaries)),
            reference=problem,
            taken=lambda: nullcontext(self.executor),
            shared=nullcontext,
            alone=nullcontext,
            create=cast("Any", Block),
            synchronize=lambda: None,
        )
        found._kept = captured  # its structure is the business of other tests
        return found


@contextmanager
def open_bench() -> Iterator[Bench]:
    """A card with one executor."""
    card = HostCard()
    executor = Executor(Thread(card))
    executor.wait_ready(timeout_s=30)
    yield Bench(card, executor)
    executor.end()
    card.driver.close()


def scaled(factor: float = 2.0) -> tuple[Made, int]:
    made = Made()
    x, out = made.input([NUM]), made.tensor([NUM])
    made.nodes.append(launched(made, "scale", use(x), use(out), factor, NUM))
    return made, out
