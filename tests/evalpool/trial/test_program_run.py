"""One program judged by the executor on a made-up card: what a verdict says of each way to fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
import torch

from forge.evalpool.judge.execute.executors import Executor
from forge.evalpool.judge.gpu_layout import Changed, GpuReference, Set
from forge.evalpool.judge.numbers.gpu_compare import Allowed
from forge.evalpool.judge.program.format import InvalidProgram, Op, Origin
from forge.evalpool.judge.trial.program_memory import ProgramMemory
from forge.evalpool.judge.trial.program_run import ProgramRun
from forge.evalpool.judge.trial.trial import Decided
from forge.records.verdict import Status
from tests.evalpool.execute.host_card import KERNELS, Block, HostCard
from tests.evalpool.execute.host_judge import Thread, launched
from tests.evalpool.execute.made_programs import Made, data_of, use

NUM = 6
CODE = "\n".join(f"line {number} of the candidate" for number in range(1, 40))


def reference(
    *, num_sets: int = 4, factor: float = 2.0, is_in_place: bool = False, weight: float = 0.0
) -> GpuReference:
    """A problem of one input: x * factor + weight."""
    generator = torch.Generator().manual_seed(1)
    tensors: list[torch.Tensor] = [torch.tensor([weight])]
    sets: list[Set] = []
    for _ in range(num_sets):
        x = torch.randn(NUM, generator=generator)
        right = x * factor + weight
        tensors += [x, right, torch.empty(0)]
        first = len(tensors) - 3
        changed = (Changed(number=0, output=first + 1, error=first + 2),) if is_in_place else ()
        outputs = () if is_in_place else (first + 1,)
        sets.append(Set(inputs=(first,), outputs=outputs, errors=(first + 2,), changed=changed))
    rights = [index for one in sets for index in (*one.outputs, *(c.output for c in one.changed))]
    none: Any = None
    return GpuReference(
        request={"state": [["weight", 1]]},
        flops=0,
        work=None,
        precision="fp32",
        block=none,
        tensors=tensors,
        sets=sets,
        state=(0,),
        is_sequence=False,
        allowed={
            index: Allowed.of(tensors[index], torch.empty(0), precision="fp32") for index in rights
        },
    )


@dataclass
class Bench:
    """Makes runs on one made-up card."""

    card: HostCard
    executor: Executor
    runs: list[ProgramRun]

    def run(
        self, made: Made, *outputs: int, problem: GpuReference | None = None, **options: Any
    ) -> ProgramRun:
        program, problem = made.done(*outputs), problem or reference()
        memory = ProgramMemory(program, problem, create=cast("Any", Block))
        settings: dict[str, Any] = {"correct_timeout_s": 30.0, "timing_timeout_s": 30.0} | options
        made_run = ProgramRun(
            executor=self.executor,
            reference=problem,
            program=program,
            data=data_of(program),
            binaries=made.binaries,
            memory=memory,
            code=CODE,
            is_tf32=False,
            synchronize=lambda: None,
            **settings,
        )
        made_run.load()
        self.runs.append(made_run)
        return made_run


@pytest.fixture
def bench() -> Iterator[Bench]:
    card = HostCard()
    executor = Executor(Thread(card))
    executor.wait_ready(timeout_s=30)
    made = Bench(card, executor, [])
    yield made
    for run in made.runs:
        run.memory.close()
    executor.end()
    card.driver.close()


def scaled(factor: float = 2.0) -> tuple[Made, int]:
    made = Made()
    x, out = made.input([NUM]), made.tensor([NUM])
    made.nodes.append(launched(made, "scale", use(x), use(out), factor, NUM))
    return made, out


def decided(work: Callable[[], object]) -> tuple[Status, str, str]:
    with pytest.raises(Decided) as caught:
        work()
    finding = caught.value.finding
    return finding.status, finding.reason, finding.detail


def test_a_right_program_passes_and_is_timed(bench: Bench) -> None:
    run = bench.run(*scaled())
    run.check()
    found = run.timed()
    assert 8 <= len(found.samples_us) <= 50
    assert run.num_launches == 1
    (node,) = run.nodes()
    assert node.what == "launch of scale"
    run.close()
    assert bench.card.driver.mapped == {}


def test_a_wrong_program_is_a_mismatch(bench: Bench) -> None:
    status, reason, detail = decided(bench.run(*scaled(2.1)).check)
    assert (status, reason) == (Status.WRONG, "mismatch")
    assert "expected" in detail


def test_a_program_that_is_wrong_only_when_timed_is_found(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = bench.run(*scaled())
    run.check()
    right, types = KERNELS["scale"]
    calls = iter(range(1000))

    def sometimes(*values: Any) -> None:
        if next(calls) != 12:
            right(*values)

    monkeypatch.setitem(KERNELS, "scale", (sometimes, types))
    status, reason, _ = decided(run.timed)
    assert (status, reason) == (Status.WRONG, "output_not_written")


def test_an_output_that_nothing_writes_is_named(bench: Bench) -> None:
    made = Made()
    made.input([NUM])
    status, reason, _ = decided(bench.run(made, made.tensor([NUM])).check)
    assert (status, reason) == (Status.WRONG, "output_not_written")


def test_an_input_that_only_the_candidate_changes_is_refused(bench: Bench) -> None:
    made, out = scaled()
    made.nodes.append(launched(made, "overwrite", use(0), NUM))
    status, reason, _ = decided(bench.run(made, out).check)
    assert (status, reason) == (Status.WRONG, "inputs_modified")


def test_an_input_that_the_reference_changes_must_be_changed(bench: Bench) -> None:
    problem = reference(is_in_place=True)
    made = Made()
    x = made.input([NUM])
    made.nodes.append(Op(name="aten.mul_.Tensor", arguments=(use(x), 2.0), results=(x,)))
    run = bench.run(made, problem=problem)
    run.check()
    run.timed()
    run.close()
    made = Made()
    made.view(made.tensors[made.input([NUM])].storage, [NUM], [1], "float32")
    status, reason, detail = decided(bench.run(made, problem=problem).check)
    assert (status, reason) == (Status.WRONG, "mismatch")
    assert "in place" in detail


def test_a_store_beside_a_tensor_is_out_of_bounds(bench: Bench) -> None:
    made, out = scaled()
    made.nodes.append(launched(made, "write_beside", use(out), NUM))
    status, reason, _ = decided(bench.run(made, out).check)
    assert (status, reason) == (Status.RUNTIME_ERROR, "out_of_bounds")


def test_a_fault_names_launch_and_line(bench: Bench) -> None:
    made, out = scaled()
    made.nodes.append(launched(made, "fault"))
    status, reason, detail = decided(bench.run(made, out).check)
    assert (status, reason) == (Status.RUNTIME_ERROR, "gpu_fault")
    assert "launch of fault" in detail
    assert f"line {made.nodes[-1].line}" in detail


def test_a_kernel_without_end_is_a_timeout(bench: Bench) -> None:
    made, out = scaled()
    made.nodes.append(launched(made, "endless"))
    run = bench.run(made, out, correct_timeout_s=0.1)
    status, reason, detail = decided(run.check)
    assert (status, reason) == (Status.TIMEOUT, "deadline:correct")
    assert "launch of endless" in detail


def test_a_kernel_too_large_for_the_card_is_out_of_resources(bench: Bench) -> None:
    made = Made()
    x, out = made.input([NUM]), made.tensor([NUM])
    facts = {"shared_bytes": 1 << 20}
    made.nodes.append(launched(made, "scale", use(x), use(out), 2.0, NUM, **facts))
    status, reason, detail = decided(bench.run(made, out).check)
    assert (status, reason) == (Status.RUNTIME_ERROR, "out_of_resources")
    assert "scale" in detail


def test_an_executor_that_is_gone_is_our_own_fault(bench: Bench) -> None:
    run = bench.run(*scaled())
    bench.executor.end()
    status, reason, _ = decided(run.check)
    assert (status, reason) == (Status.INFRA_ERROR, "gpu_unavailable")
    run.close()


def test_parameters_come_by_the_references_names(bench: Bench) -> None:
    made = Made()
    x = made.input([NUM])
    weight = made.tensor([1], origin=Origin.PARAMETER, name="weight")
    out = made.tensor([NUM])
    made.nodes.append(
        Op(
            name="aten.add.Tensor",
            arguments=(use(weight), use(x)),
            keywords={"alpha": 2.0},
            results=(out,),
        )
    )
    bench.run(made, out, problem=reference(weight=3.0)).check()


def wrong_inputs() -> Iterator[tuple[Made, int, str]]:
    made = Made()
    made.input([NUM])
    yield made, made.input([NUM]), "1 inputs"
    made = Made()
    made.input([NUM + 1])
    yield made, made.tensor([NUM]), "28 bytes for 24"
    made = Made()
    made.tensor([1], origin=Origin.PARAMETER, name="bias")
    yield made, made.tensor([NUM]), "no bias"
    made = Made()
    yield made, made.tensor([NUM], "float64"), "outputs: float64"
    made = Made()
    yield made, made.tensor([NUM + 1]), r"expected float32 \[6\]"


@pytest.mark.parametrize(("made", "output", "words"), list(wrong_inputs()))
def test_a_program_of_another_problem_is_invalid(made: Made, output: int, words: str) -> None:
    with pytest.raises(InvalidProgram, match=words):
        ProgramMemory(made.done(output), reference(), create=cast("Any", Block))


def test_large_problems_have_one_place_at_a_time(bench: Bench) -> None:
    made, out = scaled()
    memory = ProgramMemory(made.done(out), reference(), create=cast("Any", Block), budget_bytes=10)
    assert memory.num_places == 1
    run = bench.run(made, out)
    run.memory.close()
    run = replace(run, memory=memory)
    run.close()
