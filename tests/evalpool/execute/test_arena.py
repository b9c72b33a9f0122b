"""Buffers between guards: their addresses, and what is mapped when. The driver is made up."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.evalpool.judge.driver.driver import OUT_OF_MEMORY, DriverError, Unsupported
from forge.evalpool.judge.execute.gpu.places import (
    ALIGNMENT_BYTES,
    KEPT_BYTES,
    Arena,
    Placement,
    Pool,
    Sealed,
    plan,
)

UNIT = 4096
GUARD = 16 * UNIT


@given(st.lists(st.integers(0, 3 * UNIT), max_size=20))
def test_every_buffer_stands_alone_between_guards(sizes: list[int]) -> None:
    layout = plan(sizes, unit_bytes=UNIT, guard_bytes=GUARD)
    end = 0
    for size, slot in zip(sizes, layout.slots, strict=True):
        assert slot.mapping - end >= GUARD
        assert slot.mapping % UNIT == slot.mapped_bytes % UNIT == 0
        assert size <= slot.mapped_bytes < size + UNIT
        end = slot.mapping + slot.mapped_bytes
    assert layout.num_bytes - end >= GUARD


@given(st.integers(1, 3 * UNIT))
def test_a_buffer_touches_the_side_that_it_is_placed_at(size: int) -> None:
    (slot,) = plan([size], unit_bytes=UNIT, guard_bytes=GUARD).slots
    start, end = slot.offset(Placement.START), slot.offset(Placement.END)
    assert start == slot.mapping
    assert end % ALIGNMENT_BYTES == 0
    behind = slot.mapping + slot.mapped_bytes - (end + size)
    assert 0 <= behind < ALIGNMENT_BYTES


class Card:
    """Physical memory and mappings of a made-up driver."""

    def __init__(self, *, has_virtual_memory: bool = True, room: int = 1 << 40) -> None:
        self.has_virtual_memory, self.room = has_virtual_memory, room
        self.memory: dict[int, int] = {}
        self.mapped: dict[int, tuple[int, int]] = {}
        self.ranges: dict[int, int] = {}
        self.num_created = 0
        self.broken_at = -1
        self.is_idle = True

    def require_virtual_memory(self, device: int) -> None:
        if not self.has_virtual_memory:
            raise Unsupported("no virtual memory calls")

    def granularity(self, device: int) -> int:
        return UNIT

    def create_memory(self, num_bytes: int, *, device: int) -> int:
        if sum(self.memory.values()) + num_bytes > self.room:
            raise DriverError("cuMemCreate", OUT_OF_MEMORY)
        self.num_created += 1
        self.memory[self.num_created] = num_bytes
        return self.num_created

    def import_memory(self, fd: int) -> int:
        self.memory[1000 + fd] = UNIT
        return 1000 + fd

    def release_memory(self, handle: int) -> None:
        assert handle not in [held for held, _ in self.mapped.values()]
        del self.memory[handle]

    def reserve(self, num_bytes: int) -> int:
        address = (1 << 40) + sum(self.ranges.values())
        self.ranges[address] = num_bytes
        return address

    def reserve_usual(self, num_bytes: int) -> int:
        return self.reserve(num_bytes)

    def free_range(self, address: int, num_bytes: int) -> None:
        assert self.ranges.pop(address) == num_bytes

    def map(self, address: int, num_bytes: int, handle: int, *, device: int) -> None:
        if len(self.mapped) == self.broken_at:
            raise DriverError("cuMemMap", 1)
        assert self.memory[handle] == num_bytes
        self.mapped[address] = (handle, num_bytes)

    def unmap(self, address: int, num_bytes: int) -> None:
        assert self.mapped.pop(address)[1] == num_bytes

    def synchronize(self, stream: int) -> None:
        self.is_idle = True


def pool_on(card: Any) -> Pool:
    return Pool(card, device=0)


def test_a_driver_without_virtual_memory_is_refused() -> None:
    with pytest.raises(Unsupported):
        pool_on(Card(has_virtual_memory=False))


def test_a_closed_arena_leaves_nothing_mapped_and_its_memory_serves_the_next() -> None:
    card = Card()
    pool = pool_on(card)
    arena = Arena(pool, [100, 0, 2 * UNIT])
    assert sorted(size for _, size in card.mapped.values()) == [UNIT, 2 * UNIT]
    assert arena.mapped_bytes == 3 * UNIT
    arena.close()
    assert card.mapped == card.ranges == {}
    Arena(pool, [UNIT])
    assert card.num_created == 2
    pool.clear()


def test_an_arena_that_cannot_be_mapped_leaves_nothing() -> None:
    card = Card()
    card.broken_at = 1
    with pytest.raises(DriverError):
        Arena(pool_on(card), [100, 100, 100])
    assert card.mapped == card.ranges == {}


def test_kept_memory_is_freed_where_room_is_short() -> None:
    card = Card(room=4 * UNIT)
    pool = pool_on(card)
    Arena(pool, [UNIT, UNIT]).close()
    Arena(pool, [4 * UNIT])
    assert list(card.memory.values()) == [4 * UNIT]


def test_large_memory_is_not_kept() -> None:
    card = Card()
    pool = pool_on(card)
    Arena(pool, [KEPT_BYTES]).close()
    assert card.memory == {}


def test_slack_and_buffer_fill_the_mapping() -> None:
    arena = Arena(pool_on(Card()), [100])
    for placement in Placement:
        buffer = arena.buffer(0, placement)
        (before, num_before), (behind, num_behind) = buffer.slack
        assert before == buffer.mapping
        assert before + num_before == buffer.address
        assert behind == buffer.address + 100
        assert num_before + 100 + num_behind == buffer.mapped_bytes


def test_sealed_memory_is_mapped_only_inside_and_the_card_is_idle_before_it_is_not() -> None:
    card = Card()
    sealed = Sealed(pool_on(card), num_bytes=10, fd=3)
    assert card.mapped == {}
    with sealed.opened(stream=0) as address:
        assert list(card.mapped) == [address]
        card.is_idle = False
    assert card.is_idle
    assert card.mapped == {}
    sealed.close()
    assert card.memory == card.ranges == {}
