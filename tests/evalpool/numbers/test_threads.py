"""Threads that share the blocks of a large tensor: results are those of one thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

from forge.evalpool.judge.numbers import blocks
from forge.evalpool.judge.numbers.blocks import THREADS, blocks_of
from forge.evalpool.judge.numbers.called import Unjudgeable
from forge.evalpool.judge.numbers.errors.own_error import errors_of
from forge.evalpool.judge.numbers.slabs import scales_of
from forge.evalpool.judge.reference import oracle
from forge.records.examination import Flag

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from forge.evalpool.judge.numbers.blocks import Block


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(blocks, "CACHED", 64)
    before = torch.get_num_threads()
    yield
    THREADS.use(1)
    torch.set_num_threads(before)


def test_each_block_belongs_to_one_thread_and_results_come_in_order() -> None:
    found = list(blocks_of(torch.zeros(40, 7)))

    def work(share: Sequence[Block]) -> tuple[list[Block], int]:
        return list(share), torch.get_num_threads()

    for num in (1, 3):
        THREADS.use(num)
        results = THREADS.share_out(found, work)
        assert len(results) == num
        assert [block for share, _ in results for block in share] == found
        assert {one for _, one in results} == {1}
        assert torch.get_num_threads() == num


@torch.no_grad()
def test_own_errors_and_scales_are_those_of_one_thread() -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(33, 50) * torch.logspace(-3, 3, 50)]
    model = torch.nn.Softmax(-1)
    output = model(*inputs)
    errors: list[torch.Tensor] = []
    scales: list[torch.Tensor] = []
    for num in (1, 2, 3):
        THREADS.use(num)
        torch.manual_seed(1)
        found = errors_of(model, inputs, [output], changed=[], is_tf32=False)
        errors += found.packed
        scales.append(torch.cat(scales_of(output).relative))
    assert errors[0].any()
    for error, scale in zip(errors[1:], scales[1:], strict=True):
        assert torch.equal(error, errors[0])
        assert torch.allclose(scale, scales[0], rtol=1e-14, atol=0.0)


@pytest.mark.parametrize("num", [1, 2])
def test_an_error_in_a_thread_is_the_callers(num: int) -> None:
    THREADS.use(num)

    def fail(number: int) -> None:
        raise ValueError(number)

    with pytest.raises(ValueError, match="5"), THREADS.each(fail) as each:
        each(5)
    with pytest.raises(ZeroDivisionError):
        THREADS.share_out(list(blocks_of(torch.zeros(999))), lambda share: 1 // 0)
    assert torch.get_num_threads() == num


def test_the_caller_works_itself_while_the_others_have_enough_to_do() -> None:
    THREADS.use(2)
    own, is_helped, done = threading.get_ident(), threading.Event(), set[int]()

    def work(number: int) -> None:
        if threading.get_ident() == own:
            is_helped.set()
        assert is_helped.wait(10)
        done.add(number)

    with THREADS.each(work) as each:
        for number in range(20):
            each(number)
    assert done == set(range(20))


def test_a_reference_that_differs_in_several_threads_is_drawn_in_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[int] = []

    def computed(request: dict[str, Any], terms: Any, delivery: Any) -> str:
        used.append(THREADS.num)
        if THREADS.num > 1:
            raise Unjudgeable("two runs differ", flag=Flag.NONDETERMINISTIC)
        return "drawn"

    monkeypatch.setattr(oracle, "_computed", computed)
    monkeypatch.setattr(oracle, "require_room", lambda *_, **__: 1 << 30)
    monkeypatch.setattr(oracle.heap, "keep_freed", lambda *_, **__: None)
    monkeypatch.setattr(oracle.os, "sched_getaffinity", lambda _: {0, 1, 2})
    request = {
        "source": "", "entry_point": "Model", "precision": "fp32", "device": "cpu", "tf32": False,
        "tf32_products": False, "max_bytes": 1 << 33, "plain": False, "moved": True,
    }  # fmt: skip
    assert oracle._compute(request) == "drawn"
    assert used == [3, 1]
