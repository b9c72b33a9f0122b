"""Buffers between guards: their addresses, and what is mapped when. The driver is made up."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.evalpool.judge.driver.driver import OUT_OF_MEMORY, DriverError
from forge.evalpool.judge.execute.gpu.places import (
    ALIGNMENT_BYTES,
    Arena,
    Buffer,
    Placement,
    Pool,
    Sealed,
    plan,
)
from tests.evalpool.execute.host_card import UNIT, HostDriver

GUARD = 16 * UNIT


@given(st.lists(st.integers(0, 3 * UNIT), max_size=20))
def test_every_buffer_stands_alone_between_guards(sizes: list[int]) -> None:
    mappings, length = plan(sizes, unit_bytes=UNIT, guard_bytes=GUARD)
    end = 0
    for size, (start, mapped) in zip(sizes, mappings, strict=True):
        assert start - end >= GUARD
        assert start % UNIT == mapped % UNIT == 0
        assert size <= mapped < size + UNIT
        end = start + mapped
    assert length - end >= GUARD


@given(st.integers(1, 3 * UNIT))
def test_a_buffer_touches_the_side_that_it_is_placed_at(size: int) -> None:
    ((start, mapped),), _ = plan([size], unit_bytes=UNIT, guard_bytes=GUARD)
    facts: Any = {"num_bytes": size, "mapping": start, "mapped_bytes": mapped}
    assert Buffer(**facts, placement=Placement.START).address == start
    end = Buffer(**facts, placement=Placement.END).address
    assert end % ALIGNMENT_BYTES == 0
    assert 0 <= start + mapped - (end + size) < ALIGNMENT_BYTES


class Driver(HostDriver):
    """A made-up driver with little memory, or one that cannot map everything."""

    def __init__(self, *, room: int = 1 << 40, broken_at: int = -1) -> None:
        super().__init__()
        self.room, self.broken_at, self.sizes = room, broken_at, dict[int, int]()

    def create_memory(self, num_bytes: int, *, device: int) -> int:
        if sum(self.sizes[one] for one in self.handles) + num_bytes > self.room:
            raise DriverError("cuMemCreate", OUT_OF_MEMORY)
        handle = super().create_memory(num_bytes, device=device)
        self.sizes[handle] = num_bytes
        return handle

    def map(self, address: int, num_bytes: int, handle: int, *, device: int) -> None:
        if len(self.mapped) == self.broken_at:
            raise DriverError("cuMemMap", 1)
        super().map(address, num_bytes, handle, device=device)


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.close()


def pool_on(driver: Any) -> Pool:
    return Pool(driver, device=0)


def test_a_closed_arena_leaves_nothing_mapped_and_its_memory_serves_the_next(
    driver: Driver,
) -> None:
    pool = pool_on(driver)
    arena = Arena(pool, [100, 0, 2 * UNIT])
    assert sorted(driver.mapped.values()) == [UNIT, 2 * UNIT]
    arena.close()
    assert driver.mapped == {}
    Arena(pool, [UNIT]).close()
    assert len(driver.handles) == 2
    pool.clear()
    assert not driver.handles


def test_an_arena_that_cannot_be_mapped_leaves_nothing(driver: Driver) -> None:
    driver.broken_at = 1
    with pytest.raises(DriverError):
        Arena(pool_on(driver), [100, 100, 100])
    assert driver.mapped == {}


def test_kept_memory_is_freed_where_room_is_short(driver: Driver) -> None:
    driver.room = 4 * UNIT
    pool = pool_on(driver)
    Arena(pool, [UNIT, UNIT]).close()
    Arena(pool, [4 * UNIT]).close()
    assert [driver.sizes[one] for one in driver.handles] == [4 * UNIT]


def test_slack_and_buffer_fill_the_mapping(driver: Driver) -> None:
    arena = Arena(pool_on(driver), [100])
    for placement in Placement:
        buffer = arena.buffer(0, placement)
        (before, num_before), (behind, num_behind) = buffer.slack
        assert before == buffer.mapping
        assert before + num_before == buffer.address
        assert behind == buffer.address + 100
        assert num_before + 100 + num_behind == buffer.mapped_bytes


def test_sealed_memory_is_mapped_only_inside(driver: Driver) -> None:
    sealed = Sealed(pool_on(driver), num_bytes=10)
    with sealed.opened(stream=0) as address:
        assert list(driver.mapped) == [address]
    assert driver.mapped == {}
    sealed.close()
    assert not driver.handles
