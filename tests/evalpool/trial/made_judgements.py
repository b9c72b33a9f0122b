"""Candidates' programs on a made-up card: judgements without capture, compiler or GPU."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from forge.config.schema import JudgeTable
from forge.evalpool.judge.compiler.binary import Binary
from forge.evalpool.judge.execute.executors import Executor
from forge.evalpool.judge.numbers.protocols import PROTOCOLS
from forge.evalpool.judge.program.format import Kernel
from forge.evalpool.judge.program.policy import ProblemFacts
from forge.evalpool.judge.trial.captures import Captured
from forge.evalpool.judge.trial.draws import Builder, HostDraw
from forge.evalpool.judge.trial.gpu.card_device import CardDevice
from forge.evalpool.judge.trial.gpu.references import CardDraw, bytes_of, spec_of
from forge.evalpool.judge.trial.judgement import Judgement, Results
from forge.evalpool.judge.trial.programs import Programs
from forge.evalpool.judge.trial.trial import Candidate, Finding
from tests.evalpool.benches import make_problem
from tests.evalpool.execute.host_card import Block, HostCard
from tests.evalpool.execute.host_judge import Thread, launched
from tests.evalpool.execute.made_programs import Made, data_of, use

NUM = 6
CODE = "\n".join(f"line {number} of the candidate" for number in range(1, 40))


def reference(
    *,
    num_sets: int = 4,
    factor: float = 2.0,
    is_in_place: bool = False,
    weight: float = 0.0,
    held: float | None = None,
    name: str = "weight",
    left: float | None = None,
    is_wide: bool = True,
    is_on_host: bool = False,
) -> CardDraw:
    """A problem of one input: x * factor + weight, with results in float64.

    Args:
        is_on_host: a small problem.
        name: that of the weight.
        held: what the weight holds, if not what is added.
        left: what a call leaves in it; None where it stays.
    """
    generator = torch.Generator().manual_seed(1)
    tensors: list[torch.Tensor] = [torch.tensor([weight if held is None else held])]
    sets: list[dict[str, Any]] = []
    state: list[tuple[str, int]] = []
    if left is not None:
        tensors.append(torch.tensor([left]))
        state = [(name, 1)]
    for _ in range(num_sets):
        x = torch.randn(NUM, generator=generator)
        right = x.double() * factor + weight
        first = len(tensors)
        tensors += [x, right.float(), right]
        sets.append({
            "inputs": ["tensor", first],
            "outputs": [] if is_in_place else [first + 1],
            "changed": [(0, first + 1)] if is_in_place else [],
            "state": state,
            "wide": [first + 2] if is_wide else [],
            "plants": [(0, 0, "sign")] if sets else [],
        })  # fmt: skip
    layout = {
        "init": ["list", []],
        "state": [(name, 0)],
        "sets": sets,
        "order": [],
        "held": [],
        "form": "tensor",
        "names": [],
        "flops": 0,
        "kinds": ["float32"] if is_wide else [],
    }
    none: Any = None
    draw = Builder([spec_of(one) for one in tensors], precision="fp32").build(layout)
    host = HostDraw(draw, [bytes_of(one) for one in tensors]) if is_on_host else None
    return CardDraw(draw, tensors, none, host)


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
        self.wide = [
            replace(one, name=f"wide_{one.name}", code=f"wide_{one.name}".encode())
            if isinstance(one, Binary)
            else one
            for one in binaries
        ]
        self.num_begun = 0

    def begin(self, kernels: Sequence[Kernel], *_: Any, **__: Any) -> None:
        self.num_begun += len(kernels)

    def compile(self, kernels: Sequence[Kernel], *_: Any, **__: Any) -> list[Any]:
        is_wide = any("fp64" in one.type for kernel in kernels for one in kernel.parameters)
        return self.wide if is_wide else self.found


@dataclass
class Bench:
    """Judges programs on one made-up card."""

    card: HostCard
    executor: Executor

    def judgement(
        self,
        made: Made,
        *outputs: int,
        problem: CardDraw | None = None,
        protocol: str = "forge",
        **options: Any,
    ) -> Judgement[CardDevice]:
        program, problem = made.done(*outputs), problem or reference()
        captured = Captured(program=program, data=data_of(program))
        other = PROTOCOLS.get(protocol)
        task = make_problem("class Model: ...")
        programs = Programs(
            candidate=Candidate(problem=task, code=CODE, protocol=other),
            table=JudgeTable(**{"correct_timeout_s": 30.0, "timing_timeout_s": 30.0, **options}),
            draw=problem.draw,
            problem=ProblemFacts(num_bytes=problem.draw.num_bytes),
            captures=cast("Any", NoCapture(captured)),
            compiler=cast("Any", Compiled(made.binaries)),
        )
        programs._kept = captured  # its structure is the business of other tests
        device = CardDevice(
            programs=programs,
            results=Results(content=problem, protocol=other),
            is_timed=True,
            is_doubtful=lambda _: False,
            taken=lambda: nullcontext(self.executor),
            shared=nullcontext,
            alone=nullcontext,
            create=cast("Any", Block),
            synchronize=lambda: None,
        )
        return Judgement(programs=programs, device=device)


@contextmanager
def open_bench() -> Iterator[Bench]:
    """A card with one executor."""
    card = HostCard()
    executor = Executor(cast("Any", Thread(card)))
    executor.wait_ready(timeout_s=30)
    yield Bench(card, executor)
    executor.end()
    card.driver.close()


def scaled(factor: float = 2.0) -> tuple[Made, int]:
    made = Made()
    x, out = made.input([NUM]), made.tensor([NUM])
    made.nodes.append(launched(made, "scale", use(x), use(out), factor, NUM))
    return made, out


def judged(judgement: Judgement[CardDevice]) -> Finding:
    """The finding of both questions."""
    judgement.prepare()
    return judgement.checked()
