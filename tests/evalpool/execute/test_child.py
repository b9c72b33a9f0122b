"""The executor's process and the judge's side of it, together, on a made-up card."""

import math
from collections.abc import Iterator
from typing import Any

import pytest

from forge.evalpool.judge.compiler.binary import Failure, FailureKind
from forge.evalpool.judge.execute.call import Call
from forge.evalpool.judge.execute.executors import ProgramRefused
from forge.evalpool.judge.program.format import Alternative, Choice, Op, Origin, Section, Value
from tests.evalpool.execute.host_card import KERNELS, Graph, HostCard
from tests.evalpool.execute.host_judge import Judge, launched, soon
from tests.evalpool.execute.made_programs import Made, use

SLOT = 256
"""Inputs lie in the block at 0, 1,024, ...; outputs at `SLOT` behind an input."""
NUM = 5


@pytest.fixture
def judge() -> Iterator[Judge]:
    made = Judge()
    yield made
    made.executor.end()
    made.block.close()
    made.card.driver.close()


def scaled(factor: float = 2.0) -> tuple[Made, int]:
    """out = x * factor, by a kernel."""
    made = Made()
    x, out = made.input([NUM]), made.tensor([NUM])
    made.nodes.append(launched(made, "scale", use(x), use(out), factor, NUM))
    return made, out


def call_of(out: int, number: int = 0, **more: Any) -> Call:
    start = 1024 * number
    return Call(fills=((0, start),), takes=((out, start + SLOT),), intact=((0, start),), **more)


@pytest.mark.parametrize("placement", ["start", "end"])
def test_a_program_answers_for_the_inputs_of_its_call(judge: Judge, placement: str) -> None:
    made, out = scaled()
    judge.load(made, out)
    for number in range(2):
        judge.block.write(1024 * number, *range(number, number + NUM))
        report = judge.run(call_of(out, number), placement=placement)
        assert judge.block.read(1024 * number + SLOT, NUM) == [
            2.0 * one for one in range(number, number + NUM)
        ]
        assert (report.changed, report.written) == ((), ())


def test_nothing_stays_mapped_or_loaded_after_a_program(judge: Judge) -> None:
    made, out = scaled()
    judge.load(made, out)
    judge.executor.time([call_of(out)], warm_up=call_of(out), deadline=soon())
    judge.executor.unload(deadline=soon())
    assert judge.card.driver.mapped == {}
    assert judge.card.driver.modules == {}


def test_the_judges_block_is_not_mapped_while_kernels_run(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    made, out = scaled()

    def watching(x: int, out: int, factor: float, n: int) -> None:
        seen.append(len(judge.card.driver.mapped))

    monkeypatch.setitem(KERNELS, "scale", (watching, KERNELS["scale"][1]))
    judge.load(made, out)
    judge.run(call_of(out))
    judge.executor.time([call_of(out)] * 3, warm_up=call_of(out), deadline=soon())
    assert set(seen) == {2}  # input and output alone


@pytest.mark.parametrize(
    ("by", "placement"), [(NUM, "start"), (NUM, "end"), (-1, "end"), (16_000, "start")]
)
def test_a_store_beside_a_buffer_is_seen_in_its_slack(
    judge: Judge, by: int, placement: str
) -> None:
    made = Made()
    out = made.tensor([NUM])
    made.nodes.append(launched(made, "write_beside", use(out), by))
    judge.load(made, out)
    assert judge.run(Call(), placement=placement).written == (0,)
    assert judge.run(Call(slack=0x7E), placement=placement).written == (0,)


def test_an_input_that_a_kernel_changes_is_reported(judge: Judge) -> None:
    made = Made()
    x, out = made.input([NUM]), made.tensor([NUM])
    made.nodes.append(launched(made, "overwrite", use(x), NUM))
    judge.load(made, out)
    judge.block.write(0, *[1.0] * NUM)
    assert judge.run(call_of(out)).changed == (0,)
    report = judge.executor.time([call_of(out)] * 2, warm_up=call_of(out), deadline=soon())
    assert [one.changed for one in report] == [(0,), (0,)]


def test_nothing_survives_a_call(judge: Judge) -> None:
    made = Made()
    out = made.tensor([1])
    made.nodes.append(launched(made, "count_up", use(out)))
    judge.load(made, out)
    calls = [Call(takes=((out, 0),)), Call(takes=((out, 256),))]
    judge.run(calls[0])
    judge.executor.time(calls, warm_up=Call(), deadline=soon())
    assert all(math.isnan(judge.block.read(at, 1)[0]) for at in (0, 256))


def test_init_runs_again_before_every_call(judge: Judge) -> None:
    made = Made()
    weight = made.tensor([1], origin=Origin.PARAMETER, name="weight")
    doubled = made.tensor([1], section=Section.INIT)
    out = made.tensor([1])
    made.init.append(Op(name="aten.mul.Tensor", arguments=(use(weight), 2.0), results=(doubled,)))
    made.nodes.append(launched(made, "count_up", use(doubled)))
    made.nodes.append(launched(made, "scale", use(doubled), use(out), 1.0, 1))
    judge.load(made, out)
    judge.block.write(0, 10.0)
    judge.block.write(512, 20.0)
    calls = [
        Call(fills=((0, start),), takes=((out, slot),))
        for start, slot in ((0, 1024), (512, 1280), (0, 1536))
    ]
    judge.executor.time(calls, warm_up=calls[0], deadline=soon())
    assert [judge.block.read(slot, 1) for slot in (1024, 1280, 1536)] == [[21.0], [41.0], [21.0]]


def test_constants_are_restored_before_every_call(judge: Judge) -> None:
    made = Made()
    held = made.tensor([1], origin=Origin.CONSTANT, constant=b"\0\0\x80\x3f")
    made.nodes.append(launched(made, "count_up", use(held)))
    judge.load(made, held)
    for _ in range(2):
        judge.run(Call(takes=((held, 0),)))
        assert judge.block.read(0, 1) == [2.0]


def test_operations_and_kernels_share_tensors(judge: Judge) -> None:
    made = Made()
    x, sums, out, view = made.input([2, 3]), made.tensor([2]), made.tensor([2]), 0
    view = made.view(made.tensors[x].storage, [3, 2], [1, 3], "float32")
    arguments = (use(view), (0,))
    made.nodes.append(Op(name="aten.sum.dim_IntList", arguments=arguments, results=(sums,)))
    made.nodes.append(launched(made, "scale", use(sums), use(out), 10.0, 2))
    made.nodes.append(Op(name="aten.add_.Tensor", arguments=(use(out), 1), results=(out,)))
    judge.load(made, out)
    judge.block.write(0, 1, 2, 3, 4, 5, 6)
    judge.run(call_of(out))
    assert judge.block.read(SLOT, 2) == [61.0, 151.0]
    judge.block.write(0, 2, 4, 6, 8, 10, 12)
    report = judge.executor.time([call_of(out)], warm_up=call_of(out), deadline=soon())
    assert report[0].changed == ()
    assert judge.block.read(SLOT, 2) == [121.0, 301.0]


def test_an_output_of_an_operation_is_handed_over_in_its_claimed_form(judge: Judge) -> None:
    made = Made()
    x, out = made.input([2, 3]), made.tensor([6])
    turned = made.view(made.tensors[out].storage, [2, 3], [1, 2], "float32")
    made.nodes.append(Op(name="aten.mul.Tensor", arguments=(use(x), 2.0), results=(turned,)))
    judge.load(made, out)
    judge.block.write(0, 1, 2, 3, 4, 5, 6)
    judge.executor.time([call_of(out)], warm_up=call_of(out), deadline=soon())
    assert judge.block.read(SLOT, 6) == [2.0, 8.0, 4.0, 10.0, 6.0, 12.0]


def test_a_result_of_another_shape_is_refused(judge: Judge) -> None:
    made = Made()
    x, out = made.input([2, 3]), made.tensor([5])
    made.nodes.append(Op(name="aten.mul.Tensor", arguments=(use(x), 2.0), results=(out,), line=4))
    judge.load(made, out)
    with pytest.raises(ProgramRefused, match="result") as caught:
        judge.run(call_of(out))
    assert (caught.value.reason, caught.value.line) == ("operation", 4)
    judge.load(*scaled())


def test_an_operation_that_fails_keeps_the_executor(judge: Judge) -> None:
    made = Made()
    x, y, out = made.input([2, 3]), made.tensor([4]), made.tensor([2, 3])
    made.nodes.append(Op(name="aten.add.Tensor", arguments=(use(x), use(y)), results=(out,)))
    judge.load(made, out)
    with pytest.raises(ProgramRefused, match=r"aten\.add\.Tensor"):
        judge.run(call_of(out))
    assert judge.executor.is_alive


def test_an_operation_outside_of_the_table_is_refused_at_load(judge: Judge) -> None:
    made = Made()
    out = made.tensor([1])
    made.nodes.append(Op(name="aten.set_.source_Storage", arguments=(use(out),), results=(out,)))
    with pytest.raises(ProgramRefused):
        judge.load(made, out)


def test_a_value_prevents_a_graph(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    made, out = scaled()
    first = made.view(made.tensors[out].storage, [], [], "float32", 1)
    made.nodes.append(Value(tensor=first, answer=None, line=9))
    judge.load(made, out)
    judge.block.write(0, *range(NUM))
    judge.run(call_of(out))
    monkeypatch.delattr(Graph, "replay")
    (timed,) = judge.executor.time([call_of(out)], warm_up=call_of(out), deadline=soon())
    assert timed.changed == ()


def test_random_numbers_follow_the_judges_seed(judge: Judge) -> None:
    made = Made()
    x, out = made.input([NUM]), made.tensor([NUM])
    made.nodes.append(Op(name="aten.rand_like.default", arguments=(use(x),), results=(out,)))
    judge.load(made, out)
    found = []
    for seed in (1, 2, 1):
        judge.run(call_of(out, seed=seed))
        found.append(judge.block.read(SLOT, NUM))
    assert found[0] == found[2] != found[1]


def test_a_timed_call_is_flushed_last_and_runs_once(judge: Judge) -> None:
    made, out = scaled()
    judge.load(made, out)
    judge.block.write(0, *[1.0] * NUM)
    judge.block.write(1024, *[2.0] * NUM)
    judge.executor.time([call_of(out)], warm_up=call_of(out), deadline=soon())
    before, flushes = judge.card.driver.num_launches, judge.card.num_flushes
    calls = [call_of(out, number) for number in (0, 1, 0, 1)]
    times = judge.executor.time(calls, warm_up=call_of(out), deadline=soon())
    assert judge.card.driver.num_launches - before == 4
    assert judge.card.num_flushes - flushes >= 4
    assert judge.block.read(1024 + SLOT, NUM) == [4.0] * NUM
    assert len(times) == 4


def test_nodes_are_timed_one_by_one(judge: Judge) -> None:
    made = Made()
    out, other = made.tensor([1]), made.tensor([1])
    made.nodes += [launched(made, "slow", use(out)), launched(made, "quick", use(other))]
    judge.load(made, out)
    slow, quick = judge.executor.nodes(Call(), deadline=soon())
    assert (slow.what, quick.what) == ("launch of slow", "launch of quick")
    assert slow.us > 2000 > quick.us


def choice_of(made: Made, out: int, *names: str, **facts: Any) -> Choice:
    alternatives = [
        Alternative(label=name, nodes=(launched(made, name, use(out), **facts),)) for name in names
    ]
    return Choice(alternatives=tuple(alternatives), line=8)


def test_the_fastest_alternative_that_runs_is_chosen(judge: Judge) -> None:
    made = Made()
    out = made.tensor([1])
    slow, quick = choice_of(made, out, "slow", "quick").alternatives
    (large,) = choice_of(made, out, "quick", shared_bytes=1 << 20).alternatives
    (broken,) = choice_of(made, out, "quick").alternatives
    made.binaries[-1] = Failure(kind=FailureKind.COMPILE_ERROR, message="no registers left")
    made.nodes.append(Choice(alternatives=(slow, large, quick, broken)))
    judge.load(made, out)
    (found,) = judge.executor.tune(Call(), deadline=soon())
    assert (found.step, found.chosen) == (1, 2)
    assert [us is None for us in found.times_us] == [False, True, False, True]
    launches = judge.card.driver.num_launches
    judge.run(Call(takes=((out, 0),)))
    assert judge.block.read(0, 1) == [3.0]
    assert judge.card.driver.num_launches == launches + 1


def test_alternatives_find_restored_tensors_as_they_were(judge: Judge) -> None:
    made = Made()
    x, out = made.input([1]), made.tensor([1])
    node = launched(made, "count_up", use(x))
    other = launched(made, "count_up", use(x))
    made.nodes.append(
        Choice(
            alternatives=(
                Alternative(label="a", nodes=(node,), restored=(x,)),
                Alternative(label="b", nodes=(other,), restored=(x,)),
            )
        )
    )
    made.nodes.append(launched(made, "scale", use(x), use(out), 1.0, 1))
    judge.load(made, out)
    judge.block.write(0, 5.0)
    judge.executor.tune(call_of(out), deadline=soon())
    judge.run(call_of(out))
    assert judge.block.read(SLOT, 1) == [6.0]


def test_a_choice_of_which_nothing_runs_is_refused(judge: Judge) -> None:
    made = Made()
    out = made.tensor([1])
    made.nodes.append(choice_of(made, out, "quick", shared_bytes=1 << 20))
    judge.load(made, out)
    for ask in (judge.executor.tune, lambda call, deadline: judge.run(call)):
        with pytest.raises(ProgramRefused, match="INVALID_VALUE") as caught:
            ask(Call(), deadline=soon())
        assert (caught.value.reason, caught.value.line) == ("out_of_resources", 8)


@pytest.mark.parametrize("offset", [-256, 100, 1 << 30])
def test_a_place_outside_of_the_block_is_our_own_fault(judge: Judge, offset: int) -> None:
    made, out = scaled()
    judge.load(made, out)
    for call in (Call(fills=((0, offset),)), Call(takes=((out, offset),))):
        with pytest.raises(ValueError, match="block"):
            _directly(judge, made, out, call)


def _directly(judge: Judge, made: Made, out: int, call: Call) -> None:
    """Runs in this thread, to see the error."""
    from forge.evalpool.judge.execute.gpu.places import Sealed
    from forge.evalpool.judge.execute.gpu.run import Loaded, Progress
    from forge.evalpool.judge.execute.gpu.timing import Exchange

    card: Any = HostCard()
    memory: Any = bytearray(8)
    loaded = Loaded(made.done(out), made.binaries, card=card, progress=Progress(memory))
    block = Sealed(card.pool, num_bytes=judge.block.num_bytes, fd=judge.block.fd)
    exchange = Exchange(loaded=loaded, block=block)
    try:
        exchange.prepare(call)
        exchange.collect(call)
    finally:
        exchange.close()
        loaded.close()
        card.driver.close()
