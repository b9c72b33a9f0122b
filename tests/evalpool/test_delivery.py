"""A draw's way into memory of the judge: nothing is lost, and no place is believed unseen."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from forge.evalpool.judge.channel.shm import LayoutError, TensorSpec
from forge.evalpool.judge.numbers.blocks import THREADS
from forge.evalpool.judge.reference import delivery
from forge.evalpool.judge.reference.delivery import Delivery
from forge.evalpool.judge.trial.draws.build import parse_starts

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOM = 1 << 20
SPECS = [TensorSpec("float32", (16,)), TensorSpec("uint8", (3,))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A draw's way into memory of ROOM bytes, and what the judge sees there."""

    delivery: Delivery
    memory: mmap.mmap


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Room]:
    """Tensors of any size are written in a thread of their own, if there is one."""
    before = torch.get_num_threads()
    monkeypatch.setattr(delivery, "LARGE_BYTES", 1)
    THREADS.use(request.param)
    fd = os.memfd_create("forge")
    os.ftruncate(fd, ROOM)
    yield Room(delivery=Delivery(os.dup(fd)), memory=mmap.mmap(fd, ROOM))
    os.close(fd)
    THREADS.use(1)
    torch.set_num_threads(before)


def set_of(inputs: list[Any], *outputs: torch.Tensor) -> Any:
    return SimpleNamespace(inputs=inputs, outputs=list(outputs))


def test_each_tensor_is_where_the_layout_says_whenever_it_was_written(room: Room) -> None:
    early = [torch.randn(5000), torch.randn(30, 40).t(), torch.randn(7, 9)[:, ::2]]
    output = torch.randn(600).to(torch.bfloat16)
    room.delivery.add(set_of([early[0], {"deep": early[1:]}], output))
    late = [torch.tensor(3.5), torch.rand(4) < 0.5, torch.empty(0), torch.randn(8192)]
    orders = [early[0], early[1].t(), early[2].contiguous(), output, *late, late[3]]
    starts = room.delivery.finish(orders)
    for tensor, start in zip(orders, starts, strict=True):
        held = bytes(room.memory[start : start + tensor.nbytes])
        assert held == tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    assert starts == parse_starts(
        starts, [TensorSpec("uint8", (one.nbytes,)) for one in orders], max_bytes=ROOM
    )


def test_a_draw_that_begins_again_has_all_of_the_room(room: Room) -> None:
    earlier, last = torch.randn(2, ROOM // 4)
    for one in (earlier, last):
        room.delivery.restart()
        room.delivery.add(set_of([], one))
    assert room.delivery.finish([last]) == [0]
    assert room.memory[:] == last.view(torch.uint8).numpy().tobytes()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(room.delivery._fd)


def test_a_draw_that_is_too_large_has_no_memory(room: Room) -> None:
    with pytest.raises(MemoryError, match="more than 1048576 bytes"):
        room.delivery.finish([torch.zeros(8), torch.zeros(ROOM // 4)])


@pytest.mark.parametrize(
    "data", [None, [0], [0, 0, 0], [0, "64"], [0, True], [0, 63], [-64, 0], [1 << 20, 0], [960, 0]]
)
def test_a_place_outside_of_the_memory_is_refused(data: Any) -> None:
    with pytest.raises(LayoutError):
        parse_starts(data, SPECS, max_bytes=1000)
    assert parse_starts([64, 896], SPECS, max_bytes=1000) == [64, 896]
