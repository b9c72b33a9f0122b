"""The executor on a real card: answers, guards, faults, times. Triton compiles the kernels."""

from typing import cast

import pytest
import torch

from forge.evalpool.judge.execute.executors import Executor, Executors, Nursery, ProgramFault

if not torch.cuda.is_available():  # the kernels need Triton, whose import takes a second
    pytest.skip("no GPU on this machine", allow_module_level=True)

from collections.abc import Callable, Iterator

from tests.evalpool.execute import cases, kernels
from tests.evalpool.execute.cases import Case
from tests.evalpool.execute.trials import Laid, seconds

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

CASES: dict[str, Callable[[], Case]] = {
    "add": cases.add,
    "softmax": cases.softmax,
    "matmul": lambda: cases.matmul(is_fixed=True),
    "tensor maps of the host": cases.described,
    "tensor maps of the kernel": cases.described_there,
}
TOLERANCE = 2e-2
"""Largest error over the root mean square."""


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


class Lent:
    """A live executor, replaced after a fault."""

    def __init__(self, nursery: Nursery) -> None:
        self._nursery = nursery
        self._executor: Executor | None = None

    def __call__(self) -> Executor:
        if self._executor is None or not self._executor.is_alive:
            self._executor = self._nursery.start()
        return self._executor

    def end(self) -> None:
        if self._executor is not None:
            self._executor.end()


@pytest.fixture(scope="module")
def executor(nursery: Nursery) -> Iterator[Lent]:
    lent = Lent(nursery)
    yield lent
    lent.end()


def laid(case: Case, executor: Executor, **options: bool) -> Laid:
    found = Laid(case, num_sets=2)
    found.load(executor, **options)
    return found


@pytest.mark.parametrize("name", CASES)
def test_programs_agree_with_torch(executor: Lent, name: str) -> None:
    one = laid(CASES[name](), executor())
    for placement, slack in (("end", 0xFF), ("start", 0x7E)):
        call = one.call(0, slack=slack)
        report = one.run(executor(), call, placement=placement)
        assert (report.changed, report.written) == ((), ())
        assert one.error(one.outputs()) < TOLERANCE
        one.clear()
    calls = [one.call(0), one.call(1), one.call(0)]
    timed = executor().time(calls, warm_up=one.call(1), deadline=seconds(60))
    assert all(call.changed == () for call in timed)
    assert max(one.error(one.outputs(0)), one.error(one.outputs(1))) < TOLERANCE
    one.close()


def test_the_autotuners_choice_skips_what_does_not_fit(executor: Lent) -> None:
    one = laid(cases.without_binary(cases.matmul(1024), 0), executor())
    (found,) = executor().tune(one.call(), deadline=seconds(60))
    assert [us is None for us in found.times_us] == [True, False, False, True]
    assert found.chosen in (1, 2)
    one.run(executor())
    assert one.error(one.outputs()) < TOLERANCE
    one.close()


@pytest.mark.parametrize(
    ("function", "by", "placement"),
    [
        (kernels.beyond_kernel, 1000, "end"),
        (kernels.beyond_kernel, -1, "start"),
        (kernels.beyond_kernel, 1 << 19, "start"),
        (kernels.read_beyond_kernel, 1000, "end"),
        (kernels.read_beyond_kernel, -1, "start"),
    ],
)
def test_an_access_beyond_a_mapping_is_a_fault_of_its_launch(
    executor: Lent, function: object, by: int, placement: str
) -> None:
    one = laid(cases.misbehaving(function, by=by), executor())
    with pytest.raises(ProgramFault, match="ILLEGAL_ADDRESS") as caught:
        one.run(executor(), placement=placement)
    assert caught.value.step.line == 10
    one.close()


@pytest.mark.parametrize(("by", "placement"), [(1000, "start"), (-1, "end")])
def test_a_store_into_slack_is_seen(executor: Lent, by: int, placement: str) -> None:
    one = laid(cases.misbehaving(kernels.beyond_kernel, by=by), executor())
    report = one.run(executor(), placement=placement)
    assert report.written == (1,)
    one.close()


def test_a_kernel_that_changes_its_input_is_seen(executor: Lent) -> None:
    case = cases.misbehaving(kernels.overwriting_kernel)
    case.inputs[0].fill_(1.0)
    one = laid(case, executor())
    assert one.run(executor()).changed == (0,)
    one.close()


def test_the_next_program_is_right_after_a_fault_and_after_a_kernel_without_end(
    nursery: Nursery,
) -> None:
    executors = Executors(nursery.start)
    good = Laid(cases.add(4096))
    for function, by in ((kernels.beyond_kernel, 1 << 40), (kernels.endless_kernel, None)):
        bad = Laid(cases.misbehaving(function, by=by))
        with executors.taken(timeout_s=60) as one:
            bad.load(one)
            with pytest.raises(ProgramFault):
                one.run([bad.call()], deadline=seconds(1))
        with executors.taken(timeout_s=60) as one:
            good.load(one)
            good.run(one)
            assert good.error(good.outputs()) == 0.0
        bad.close()
    good.close()
    executors.close()


@pytest.mark.parametrize("name", ["add", "softmax"])
def test_times_are_those_of_do_bench(executor: Lent, name: str) -> None:
    from triton.testing import do_bench

    one = laid(CASES[name](), executor())
    timed = executor().time([one.call()] * 30, warm_up=one.call(1), deadline=seconds(60))
    us = sorted(call.gpu_us for call in timed)[15]
    assert one.case.eager is not None
    assert us == pytest.approx(
        cast("float", do_bench(one.case.eager, return_mode="median")) * 1e3, rel=0.05
    )
    one.close()


def test_lines_that_a_kernel_asks_to_keep_are_gone_in_the_next_call(executor: Lent) -> None:
    times = []
    for policy in ("evict_last", ""):
        one = laid(cases.kept(4 << 20, policy), executor())
        timed = executor().time([one.call()] * 30, warm_up=one.call(1), deadline=seconds(60))
        times.append(sorted(call.gpu_us for call in timed)[15])
        one.close()
    assert times[0] == pytest.approx(times[1], rel=0.1)
