"""One program judged by the executor on a made-up card: what a verdict says of each way to fail."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from forge.config.schema import JudgeTable
from forge.errors import Stalled
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.compiler.binary import Failure, FailureKind
from forge.evalpool.judge.driver.driver import DriverError
from forge.evalpool.judge.execute.call import Call
from forge.evalpool.judge.execute.executors import Executor, ProgramRefused
from forge.evalpool.judge.program.dataflow import Access
from forge.evalpool.judge.program.format import (
    Alternative,
    Choice,
    Node,
    Op,
    Origin,
    Program,
    Section,
)
from forge.evalpool.judge.program.policy import ProblemFacts
from forge.evalpool.judge.program.questions import Question
from forge.evalpool.judge.program.readers import InvalidProgram
from forge.evalpool.judge.timing.baseline import Baseline, Time
from forge.evalpool.judge.trial.captures import Captured
from forge.evalpool.judge.trial.gpu import program_run
from forge.evalpool.judge.trial.gpu import trial as trial_module
from forge.evalpool.judge.trial.gpu.card_device import CardDevice
from forge.evalpool.judge.trial.gpu.program_run import ProgramMemory
from forge.evalpool.judge.trial.gpu.references import CardDraw
from forge.evalpool.judge.trial.gpu.trial import GpuTrials
from forge.evalpool.judge.trial.gpu.turns import GpuTurns
from forge.evalpool.judge.trial.judgement import Judgement
from forge.evalpool.judge.trial.programs import Programs
from forge.evalpool.judge.trial.trial import Decided, Stamp
from forge.process.gpu_locks import GpuLease
from forge.records.verdict import JudgeOptions, Status
from tests.evalpool.benches import RELU_KERNEL, make_problem
from tests.evalpool.execute.host_card import KERNELS, Block, floats
from tests.evalpool.execute.host_judge import launched
from tests.evalpool.execute.made_programs import Made, data_of, use
from tests.evalpool.trial.made_judgements import (
    NUM,
    Bench,
    Compiled,
    NoCapture,
    judged,
    open_bench,
    reference,
    scaled,
)

ACCESSES = {"x": Access.READ, "out": Access.WRITE, "memo": Access.BOTH}


@pytest.fixture(autouse=True)
def known_accesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels' accesses: these have no TTIR."""

    def found(_: Programs, program: Program) -> dict[int, list[Access]]:
        return {
            index: [
                Access.BOTH if kernel.name == "count_up" else ACCESSES.get(one.name, Access.NONE)
                for one in kernel.parameters
            ]
            for index, kernel in enumerate(program.kernels)
        }

    monkeypatch.setattr(Programs, "accesses", found)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with open_bench() as opened:
        yield opened


def decided(work: Callable[[], object]) -> tuple[Status, str, str]:
    with pytest.raises(Decided) as caught:
        work()
    finding = caught.value.finding
    return finding.status, finding.reason, finding.detail


def compiler_of(judgement: Judgement[CardDevice]) -> Compiled:
    return cast("Compiled", judgement.programs.compiler)


def timed(judgement: Judgement[CardDevice], *, is_profiled: bool = False) -> tuple[Time, Any]:
    return judgement.device.timed(is_profiled=is_profiled, before=lambda: None)


def let_write(judgement: Judgement[CardDevice], *names: str) -> None:
    """Lets a program write to parameters, as the reference does."""
    programs = judgement.programs
    programs.problem = replace(programs.problem, written_parameters=frozenset(names))


def tuned(judgement: Judgement[CardDevice]) -> dict[str, str]:
    """Labels of the winners of a program's choices, once its first call is checked."""
    with judgement.device.held():
        found = judgement.device._tuned()
        judgement._require_first_call()
    return found


@pytest.mark.parametrize("is_on_host", [False, True])
def test_a_right_program_passes_and_is_timed(bench: Bench, is_on_host: bool) -> None:
    judgement = bench.judgement(*scaled(), problem=reference(is_on_host=is_on_host))
    found = judged(judgement)
    assert (found.status, found.evidence) == (Status.CORRECT, "wide")
    assert compiler_of(judgement).num_begun == 1
    found, nodes = timed(judgement, is_profiled=True)
    assert 8 <= len(found.samples_us) <= 50
    assert [node.what for node in nodes] == ["launch of scale"]
    assert bench.card.driver.mapped == {}


@pytest.mark.parametrize("is_on_host", [False, True])
@pytest.mark.parametrize("factor", [2.1, 2.00001])
def test_another_function_is_a_mismatch_whatever_it_is_in_its_own_types(
    bench: Bench, factor: float, is_on_host: bool
) -> None:
    """Also one that is within the tolerance of its own types."""
    judgement = bench.judgement(*scaled(factor), problem=reference(is_on_host=is_on_host))
    compiler_of(judgement).found = [Failure(kind=FailureKind.COMPILE_ERROR, message="no")]
    status, reason, detail = decided(lambda: judged(judgement))
    assert (status, reason) == (Status.WRONG, "mismatch")
    assert "expected" in detail


def test_a_program_that_loses_too_much_in_its_own_types_is_told_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, types = KERNELS["scale"]

    def coarse(x: int, out: int, factor: float, n: int) -> None:
        work(x, out, factor, n)
        if floats(out, n).dtype == np.float32:
            floats(out, n)[:] *= 1.001

    monkeypatch.setitem(KERNELS, "scale", (coarse, types))
    status, reason, detail = decided(lambda: judged(bench.judgement(*scaled())))
    assert (status, reason) == (Status.WRONG, "precision")
    assert "right in float64" in detail


@pytest.mark.parametrize("why", ["reference", "compiler", "program"])
def test_what_float64_cannot_run_is_compared_in_its_own_types(bench: Bench, why: str) -> None:
    made, out = scaled(2.00001)
    if why == "program":
        made.kernels[0] = replace(
            made.kernels[0], ttir="  %1 = tt.bitcast %0 : tensor<4xf32> -> tensor<4xi32>"
        )
    judgement = bench.judgement(made, out, problem=reference(is_wide=why != "reference"))
    if why == "compiler":
        words = "shared memory"
        compiler_of(judgement).wide = [Failure(kind=FailureKind.OUT_OF_RESOURCES, message=words)]
    found = judged(judgement)
    assert found.status is Status.CORRECT
    assert found.evidence.startswith("narrow: ")
    assert {
        "reference": "the reference",
        "compiler": "shared memory",
        "program": "bits of a float",
    }[why] in found.evidence
    status, reason, _ = decided(lambda: judged(bench.judgement(*scaled(2.1))))
    assert (status, reason) == (Status.WRONG, "mismatch")


@pytest.mark.parametrize("is_doubtful", [False, True])
def test_memory_that_others_may_have_taken_makes_no_program_narrow(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_doubtful: bool
) -> None:
    run = Executor.run

    def full(self: Executor, calls: Sequence[Call], **options: Any) -> Any:
        if judgement.device.results.is_wide:
            raise ProgramRefused("out_of_memory", "full", line=0)
        return run(self, calls, **options)

    monkeypatch.setattr(Executor, "run", full)
    judgement = bench.judgement(*scaled())
    judgement.device.is_doubtful = lambda finding: is_doubtful
    if is_doubtful:
        assert decided(lambda: judged(judgement))[1] == "out_of_memory"
    else:
        assert judged(judgement).evidence.startswith("narrow: ")


def test_an_operation_that_names_no_type_gives_float64_in_a_program_in_float64(
    bench: Bench,
) -> None:
    made = Made()
    x, zeros, out = made.input([NUM]), made.tensor([NUM]), made.tensor([NUM])
    made.nodes += [
        Op(name="aten.zeros.default", arguments=((NUM,),), results=(zeros,)),
        Op(name="aten.add.Tensor", arguments=(use(zeros), use(zeros)), results=(out,)),
        launched(made, "scale", use(x), use(out), 2.0, NUM),
    ]
    found = judged(bench.judgement(made, out))
    assert (found.status, found.evidence) == (Status.CORRECT, "wide")


def test_each_alternative_runs_in_float64(bench: Bench) -> None:
    """Also where there are more than sets; one that does not compile is left out."""
    made = Made()
    x, out = made.input([NUM]), made.tensor([NUM])
    factors = [2.0] * 5 + [2.00001]
    chosen_from(made, *(launched(made, "scale", use(x), use(out), one, NUM) for one in factors))
    status, _, detail = decided(lambda: bench.judgement(made, out)._ask_wide())
    assert status is Status.WRONG
    assert "not with another" in detail
    made.binaries[-1] = Failure(kind=FailureKind.COMPILE_ERROR, message="no")
    bench.judgement(made, out)._ask_wide()


def test_a_program_that_is_wrong_only_when_timed_is_found(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = bench.judgement(*scaled())
    run.checked()
    right, types = KERNELS["scale"]
    calls = iter(range(1000))

    def sometimes(*values: Any) -> None:
        if next(calls) != 8:  # behind two warm-ups, among the fewest timed calls
            right(*values)

    monkeypatch.setitem(KERNELS, "scale", (sometimes, types))
    status, reason, _ = decided(lambda: timed(run))
    assert status is Status.WRONG
    assert reason in ("output_not_written", "mismatch")  # by what the memory was poisoned with


def test_the_executor_works_for_a_program_in_a_turn_alone_only_to_time_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[str] = []
    asked: list[tuple[str, str]] = []
    ask = Executor._ask

    def noted(self: Executor, kind: Kind, *values: Any, **options: Any) -> Any:
        asked.append((kind.name, turns[-1] if turns else "none"))
        return ask(self, kind, *values, **options)

    @contextmanager
    def turn(name: str) -> Iterator[None]:
        turns.append(name)
        yield
        turns.pop()

    monkeypatch.setattr(Executor, "_ask", noted)
    judgement = bench.judgement(*scaled())
    judgement.device.shared = partial(turn, "shared")
    judgement.device.alone = partial(turn, "alone")
    with judgement.device.held():
        judgement.checked()
        timed(judgement)
    kinds = {kind: {name for one, name in asked if one == kind} for kind, _ in asked}
    assert kinds == {"LOAD": {"shared"}, "RUN": {"shared"}, "TIME": {"alone"}, "UNLOAD": {"shared"}}


@pytest.mark.parametrize("section", Section)
def test_an_answer_that_an_earlier_call_left_is_refused(bench: Bench, section: Section) -> None:
    for _ in range(5):
        made = Made()
        x, memo, out = (
            made.input([NUM]),
            made.tensor([NUM + 2], section=section),
            made.tensor([NUM]),
        )
        made.nodes.append(launched(made, "keyed_memo", use(x), use(out), use(memo), NUM))
        status, reason, _ = decided(partial(judged, bench.judgement(made, out)))
        assert (status, reason) == (Status.WRONG, "stateful")


@pytest.mark.parametrize("is_together", [True, False])
def test_one_call_is_on_what_the_one_before_left(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_together: bool
) -> None:
    """Also where the memory has no room for several calls at once."""
    asked: list[bool] = []
    run = Executor.run

    def noted(self: Executor, calls: Sequence[Call], **options: Any) -> Any:
        asked.extend(call.is_kept for call in calls)
        return run(self, calls, **options)

    monkeypatch.setattr(Executor, "run", noted)
    if not is_together:
        monkeypatch.setattr(program_run, "MAX_PLACES", 1)
    for _ in range(5):
        asked.clear()
        bench.judgement(*scaled()).checked()
        assert not asked[0]
        assert sum(asked) == 1


def test_a_kernel_that_knows_poison_is_wrong_on_other_bytes(bench: Bench) -> None:
    made = Made()
    x, memo, out = made.input([NUM]), made.tensor([1]), made.tensor([NUM])
    made.nodes.append(launched(made, "where_poisoned", use(x), use(out), use(memo), NUM))
    assert decided(lambda: judged(bench.judgement(made, out)))[0] is Status.WRONG


def chosen_from(made: Made, *nodes: Node) -> None:
    """Adds a choice between nodes."""
    found = (Alternative(label=str(n), nodes=(node,)) for n, node in enumerate(nodes))
    made.nodes.append(Choice(alternatives=tuple(found), key="k"))


@pytest.mark.parametrize("shows_it", [True, False])
@pytest.mark.parametrize("factor", [2.0, 3.0])
def test_an_alternative_that_loses_must_be_right_in_the_program_that_follows_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, factor: float, shows_it: bool
) -> None:
    made = Made()
    x, out = made.input([NUM]), made.tensor([NUM])
    chosen_from(
        made, *(launched(made, "scale", use(x), use(out), wrong, NUM) for wrong in (4.0, 5.0))
    )
    judgement = bench.judgement(made, out)
    programs = judgement.programs
    monkeypatch.setattr(programs, "_kept", replace(programs.first(), follows_winner=shows_it))
    asked: list[str] = []

    def with_winners(self: Programs, number: int, winners: dict[str, str]) -> Captured:
        asked.append(winners["k"])
        other, end = scaled(factor)
        program = other.done(end)
        return Captured(program=program, data=data_of(program))

    monkeypatch.setattr(Programs, "with_winners", with_winners)
    if factor == 2.0:
        assert tuned(judgement)["k"] not in asked
        assert len(asked) == 1
    else:
        status, _, detail = decided(lambda: tuned(judgement))
        assert status is Status.WRONG
        assert "not with another" in detail


def test_time_for_tuning_is_none_of_checked_calls(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alternatives that lost, and the first call, have time of their own."""
    made = Made()
    x, out = made.input([NUM]), made.tensor([NUM])
    node = launched(made, "scale", use(x), use(out), 2.0, NUM)
    chosen_from(made, node, node)
    judgement, tune = bench.judgement(made, out), Executor.tune

    def long(self: Executor, *values: Any, **options: Any) -> Any:
        judgement.device._run.deadline = 0.0
        return tune(self, *values, **options)

    monkeypatch.setattr(Executor, "tune", long)
    assert tuned(judgement)


@pytest.mark.parametrize("is_in_place", [False, True])
def test_a_first_call_on_a_card_runs_behind_its_benchmarks(bench: Bench, is_in_place: bool) -> None:
    made = Made()
    x, out = made.input([NUM]), made.tensor([NUM])
    made.nodes.append(launched(made, "scale", use(x), use(out), 1.0, NUM))
    source, factor = (out, 2.0) if is_in_place else (x, 2.0)
    node = launched(made, "scale", use(source), use(out), factor, NUM)
    chosen_from(made, node, node)
    judgement = bench.judgement(made, out)
    if is_in_place:
        status, _, detail = decided(lambda: tuned(judgement))
        assert status is Status.WRONG
        assert "reset_to_zero=['x', 'out']" in detail
    else:
        assert tuned(judgement)


def test_a_program_for_one_set_runs_on_that_set_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose host reads values: alternatives that lost run on set 0, nodes on the timed set."""
    made = Made()
    x, out = made.input([NUM]), made.tensor([NUM])
    right = launched(made, "scale", use(x), use(out), 2.0, NUM)
    alternatives = tuple(Alternative(label=label, nodes=(right,)) for label in ("one", "other"))
    made.nodes.append(Choice(alternatives=alternatives, key="k"))
    judgement = bench.judgement(made, out)
    kept = replace(judgement.programs.first(), questions=(cast("Question", None),))
    monkeypatch.setattr(judgement.programs, "_kept", kept)
    monkeypatch.setattr(Programs, "program", lambda self, number, is_wide: kept)
    loaded: list[int] = []
    load = ProgramMemory.load
    monkeypatch.setattr(
        ProgramMemory,
        "load",
        lambda self, place, number: (loaded.append(number), load(self, place, number)),
    )
    assert tuned(judgement)
    assert set(loaded) == {0}
    loaded.clear()
    timed(judgement, is_profiled=True)
    assert set(loaded) == {judgement.programs.draw.unseen[0]}


def test_each_unseen_set_is_timed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    judgement = bench.judgement(*scaled())
    judgement.checked()
    numbers: list[int] = []
    check = CardDevice._check_timed
    monkeypatch.setattr(
        CardDevice,
        "_check_timed",
        lambda self, calls: (numbers.extend(one.number for one in calls), check(self, calls)),
    )
    timed(judgement)
    assert set(judgement.programs.draw.unseen) <= set(numbers)


def test_no_deadline_of_checked_calls_outlasts_them(bench: Bench) -> None:
    """A program that reads values is captured again before it is timed, maybe after a baseline."""
    judgement = bench.judgement(*scaled())
    judgement.checked()
    assert judgement.device._deadline is None


def test_another_protocol_has_its_own_tolerance_and_torchs_default_of_tf32(bench: Bench) -> None:
    made, out = scaled(2.01)
    assert decided(bench.judgement(made, out).checked)[:2] == (Status.WRONG, "mismatch")
    backends = torch.backends.cuda.matmul, torch.backends.cudnn  # of this process's executor
    assert [one.allow_tf32 for one in backends] == [True, True]
    for protocol, status in (("drkernel", Status.CORRECT), ("kernelbench", Status.WRONG)):
        judgement = bench.judgement(made, out, protocol=protocol)
        if status is Status.CORRECT:
            assert judgement.checked().status is status
            timed(judgement)
        else:
            assert decided(judgement.checked)[:2] == (status, "mismatch")
        assert [one.allow_tf32 for one in backends] == [False, True]


@pytest.mark.parametrize("protocol", ["forge", "kernelbench", "drkernel"])
def test_an_input_that_is_changed_passes_under_no_protocol(bench: Bench, protocol: str) -> None:
    made, out = scaled()
    made.nodes.append(launched(made, "overwrite", use(0), NUM))
    judgement = bench.judgement(made, out, protocol=protocol)
    assert decided(judgement.checked)[:2] == (Status.WRONG, "inputs_modified")


def test_an_input_that_is_returned_may_be_written_to(bench: Bench) -> None:
    made = Made()
    x = made.input([NUM])
    made.nodes.append(launched(made, "scale", use(x), use(x), 2.0, NUM))
    judgement = bench.judgement(made, x)
    assert judgement.checked().status is Status.CORRECT
    assert len(timed(judgement)[0].samples_us) >= 8


@pytest.mark.parametrize("is_written", [True, False])
def test_a_parameter_may_change_where_the_reference_writes_to_it(
    bench: Bench, is_written: bool
) -> None:
    """A running mean, a counter of batches."""
    made, out = scaled()
    weight = made.tensor([1], origin=Origin.PARAMETER, name="weight")
    made.nodes.append(launched(made, "overwrite", use(weight), 1))
    judgement = bench.judgement(made, out, problem=reference(held=5.0))
    let_write(judgement, *["weight"] * is_written)
    if is_written:
        assert judgement.checked().status is Status.CORRECT
        timed(judgement)
    else:
        assert decided(judgement.checked)[1] == "inputs_modified"


CHANGED = {
    "as the reference leaves it": ("count_up", "", True),
    "left alone": ("", "", False),
    "a norm's statistics left alone": ("", "bn.running_mean", True),
    "otherwise": ("overwrite", "", False),
    "a norm's statistics otherwise": ("overwrite", "bn.running_mean", False),
}


@pytest.mark.parametrize(("kernel", "name", "is_right"), CHANGED.values(), ids=list(CHANGED))
@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("is_on_host", [True, False])
def test_a_parameter_that_the_reference_changes_is_compared(
    bench: Bench, kernel: str, name: str, is_right: bool, is_named: bool, is_on_host: bool
) -> None:
    """5 becomes 6, in checked calls and in timed ones."""
    name = name or "keys"
    made, out = scaled()
    if kernel or is_named:
        weight = made.tensor([1], origin=Origin.PARAMETER, name=name)
        values = (1,) if kernel == "overwrite" else ()
        made.nodes += [launched(made, kernel, use(weight), *values)] if kernel else []
    problem = reference(name=name, left=6.0, held=5.0, is_on_host=is_on_host)
    judgement = bench.judgement(made, out, problem=problem)
    let_write(judgement, name)
    if is_right:
        assert judgement.checked().status is Status.CORRECT
        timed(judgement)
    else:
        status, reason, detail = decided(judgement.checked)
        assert (status, reason) == (Status.WRONG, "mismatch")
        assert f"parameter {name}" in detail


def test_a_parameter_that_a_timed_call_leaves_alone_is_found(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, out = scaled()
    weight = made.tensor([1], origin=Origin.PARAMETER, name="keys")
    made.nodes.append(launched(made, "count_up", use(weight)))
    judgement = bench.judgement(made, out, problem=reference(name="keys", left=1.0))
    let_write(judgement, "keys")
    assert judgement.checked().status is Status.CORRECT
    monkeypatch.setitem(KERNELS, "count_up", (lambda _: None, KERNELS["count_up"][1]))
    status, reason, detail = decided(lambda: timed(judgement))
    assert (status, reason) == (Status.WRONG, "mismatch")
    assert "parameter keys" in detail


def test_a_counter_of_calls_in_a_running_statistic_is_found(bench: Bench) -> None:
    made = Made()
    x, out = made.input([NUM]), made.tensor([NUM])
    mean = made.tensor([1], origin=Origin.PARAMETER, name="running_mean")
    made.nodes.append(launched(made, "few_times", use(x), use(out), use(mean), NUM))
    judgement = bench.judgement(made, out, problem=reference(name="running_mean"))
    let_write(judgement, "running_mean")
    assert decided(judgement.checked)[1] == "stateful"


def test_an_input_that_the_reference_changes_must_be_changed(bench: Bench) -> None:
    problem = reference(is_in_place=True)
    made = Made()
    x = made.input([NUM])
    made.nodes.append(Op(name="aten.mul_.Tensor", arguments=(use(x), 2.0), results=(x,)))
    run = bench.judgement(made, problem=problem)
    run.checked()
    timed(run)
    made = Made()
    made.view(made.tensors[made.input([NUM])].storage, [NUM], [1], "float32")
    status, reason, detail = decided(bench.judgement(made, problem=problem).checked)
    assert (status, reason) == (Status.WRONG, "mismatch")
    assert "in place" in detail


FAULTS = {
    "store": ("write_beside", "out_of_bounds", ""),
    "fault": ("fault", "gpu_fault", "launch of fault"),
    "endless": ("endless", "deadline:correct", "launch of endless"),
    "large": ("scale", "out_of_resources", "scale"),
    "unwritten": ("", "output_not_written", "nothing was written"),
    "input": ("overwrite", "inputs_modified", "write to a new tensor"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_its_launch(bench: Bench, name: str) -> None:
    kernel, reason, words = FAULTS[name]
    made, out = scaled()
    values = {"write_beside": (use(out), NUM), "overwrite": (use(0), NUM)}.get(kernel, ())
    if name == "large":
        values = (use(0), use(out), 2.0, NUM)
    if name == "unwritten":
        made.nodes.clear()
    else:
        facts: dict[str, Any] = {"shared_bytes": 1 << 20} if name == "large" else {}
        made.nodes.append(launched(made, kernel, *values, **facts))
    limit_s = 0.1 if name == "endless" else 30.0
    judgement = bench.judgement(made, out, correct_timeout_s=limit_s)
    _, found, detail = decided(judgement.checked if name != "large" else lambda: judged(judgement))
    assert found == reason
    assert words in detail
    assert name != "fault" or f"line {made.nodes[-1].line}" in detail


def test_an_executor_that_is_gone_is_our_own_fault(bench: Bench) -> None:
    run = bench.judgement(*scaled())
    bench.executor.end()
    status, reason, _ = decided(run.checked)
    assert (status, reason) == (Status.INFRA_ERROR, "gpu_unavailable")


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
    bench.judgement(made, out, problem=reference(weight=3.0)).checked()


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


@pytest.mark.parametrize(("made", "output", "words"), list(wrong_inputs()))
def test_a_program_of_another_problem_is_invalid(made: Made, output: int, words: str) -> None:
    with pytest.raises(InvalidProgram, match=words):
        ProgramMemory(made.done(output), reference(), create=cast("Any", Block))


def test_a_value_is_read_from_what_the_program_holds(bench: Bench) -> None:
    made = Made()
    number = made.tensor([], "int64", origin=Origin.CONSTANT, constant=(7).to_bytes(8, "little"))
    judgement = bench.judgement(made)
    assert judgement.programs.values(made.done(number), number=1) == [7]
    assert bench.card.driver.mapped == {}


def test_a_value_is_one_number(bench: Bench) -> None:
    made = Made()
    x = made.input([NUM])
    judgement = bench.judgement(made)
    status, reason, detail = decided(lambda: judgement.programs.values(made.done(x), number=0))
    assert (status, reason) == (Status.REJECTED, "unsupported")
    assert "6 elements" in detail


def made_trials(folder: Path, **parts: Any) -> GpuTrials:
    names = [
        "spawner",
        "captures",
        "facts",
        "compiler",
        "nursery",
        "executors",
        "device",
        "baselines",
    ]
    sketches = SimpleNamespace(of=lambda *_, **__: None)
    draws = dict.fromkeys(("given", "shown"), parts["references"])
    made = dict.fromkeys(names) | draws | {"sketches": sketches}
    given: Any = made | parts
    stamp = Stamp(isolation="namespaces", caps="watch", harness="h", device="GPU")
    turns = GpuTurns(GpuLease("GPU-1", folder=folder))
    return GpuTrials(table=JudgeTable(), stamp=stamp, turns=turns, **given)


@pytest.mark.parametrize(("factor", "status"), [(2.0, Status.CORRECT), (2.1, Status.WRONG)])
def test_a_candidate_is_judged_and_timed_beside_its_baseline(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float, status: Status
) -> None:
    """Captures, compiler, executors, draws and baselines are scripted; what failed for want of
    memory is judged again, alone on the card."""
    held: list[object] = []
    alone: list[bool] = []
    made, out = scaled(factor)
    program, content = made.done(out), reference()
    captured, compiler = Captured(program=program, data=data_of(program)), Compiled(made.binaries)
    baseline = Baseline(gpu_us=(50.0,) * 9, probe_us=1.0)
    timed_after: list[bool] = []

    class References:
        def hold(self, problem: object, *, shared: object) -> CardDraw:
            held.append(problem)
            assert compiler.num_begun  # in float64, while it is drawn
            return content

        def let_go(self, held_one: object) -> None:
            held.pop()

        def end_idle(self) -> None: ...

    @contextmanager
    def taken(*, timeout_s: float, is_alone: bool) -> Iterator[Executor]:
        alone.append(is_alone)
        yield bench.executor

    def full(self: Executor, *values: Any, **options: Any) -> Any:
        if not alone[-1]:
            raise ProgramRefused("out_of_memory", "full", line=0)
        return run(self, *values, **options)

    def measured(*_: object) -> Baseline:
        timed_after.append(bool(alone))
        return baseline

    run = Executor.run
    monkeypatch.setattr(Executor, "run", full)
    monkeypatch.setattr(Programs, "require_structure", lambda *_, **__: None)
    made_up = partial(CardDevice, create=cast("Any", Block), synchronize=lambda: None)
    monkeypatch.setattr(trial_module, "CardDevice", made_up)

    def sketch(*_: object, **__: object) -> Any:
        assert not held
        return content.draw

    trials = made_trials(
        tmp_path,
        references=References(),
        sketches=SimpleNamespace(of=sketch),
        captures=NoCapture(captured),
        facts=SimpleNamespace(of=lambda *_, **__: ProblemFacts(num_bytes=content.draw.num_bytes)),
        compiler=compiler,
        executors=SimpleNamespace(taken=taken, are_in_use=True),
        device=SimpleNamespace(
            memory_bytes=1 << 30, recent_probe_us=lambda: 1.0, roofline_share=lambda **_: None
        ),
        baselines=SimpleNamespace(kept=lambda *_: None, measured=measured, end_idle=lambda: None),
    )
    verdict = trials.judge(
        make_problem("import os"), RELU_KERNEL, options=JudgeOptions(profile=True)
    )
    assert (verdict.status, verdict.evidence) == (status, "wide"), verdict
    assert (alone[0], alone[-1], held) == (False, True, [])
    assert (verdict.timing is not None) == (timed_after == [True]) == (status is Status.CORRECT)
    assert bench.card.driver.mapped == {}


@pytest.mark.parametrize(
    ("error", "reason", "ends"),
    [
        (RuntimeError("CUDA error: unspecified launch failure\nmore"), "gpu_lost", True),
        (torch.OutOfMemoryError("CUDA out of memory"), "gpu_memory", False),
        (DriverError("cuMemCreate: OUT_OF_MEMORY (2)"), "gpu_memory", False),
        (DriverError("cuMemMap: ILLEGAL_ADDRESS (700)", 700), "gpu_lost", True),
        (Stalled("not free"), "gpu_busy", False),
        (RuntimeError("a mistake of ours"), "judge_bug", False),
    ],
)
def test_a_card_in_trouble_is_nobodys_score(
    error: Exception, reason: str, ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        def hold(self, problem: object, *, shared: object) -> None:
            raise error

    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(number))
    trials = made_trials(tmp_path, references=Failing())
    verdict = trials.judge(make_problem("import os"), RELU_KERNEL)
    assert (verdict.status, verdict.reason) == (Status.INFRA_ERROR, reason)
    assert "\n" not in verdict.detail
    assert sent == ([signal.SIGTERM] if ends else [])
