"""Accesses: what is read and written, errors and where they are found, stores across threads."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.evalpool.judge.ttir.evaluate import Address, Order, launch
from forge.evalpool.judge.ttir.memory.storages import (
    MAX_SUSPICIONS,
    Fault,
    Faulted,
    FaultKind,
    Launch,
    Memory,
    Storage,
    Windows,
    windows_of,
)
from forge.evalpool.judge.ttir.plan import plan_of
from forge.evalpool.judge.ttir.values import Unsupported
from tests.evalpool.ttir.kernels import kernel, memory_of, pointers, run, text

COPY = kernel(
    "%x: !tt.ptr<f32>, %y: !tt.ptr<f32>, %n: i32, %m: i32",
    """
    %ns = tt.splat %n : i32 -> tensor<16xi32>
    %ms = tt.splat %m : i32 -> tensor<16xi32>
    %j = arith.muli %i, %ms : tensor<16xi32>
    %mask = arith.cmpi slt, %i, %ns : tensor<16xi32>
    %other = arith.constant dense<-1.000000e+00> : tensor<16xf32>
"""
    + pointers("x", "%j")
    + pointers("y")
    + """
    %v = tt.load %x.at, %mask, %other : tensor<16x!tt.ptr<f32>>
    tt.store %y.at, %v : tensor<16x!tt.ptr<f32>>
""",
)
"""y[i] = x[i * m] where i < n, else -1."""


def floats(count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.arange(count, dtype=np.float32)


@pytest.mark.parametrize(("n", "stride"), [(64, 1), (50, 1), (0, 1), (30, 2), (64, 0), (50, -1)])
def test_masked_loads_give_the_other_value(n: int, stride: int) -> None:
    x, y = floats(128), np.full(64, 9, np.float32)
    first = 64 if stride < 0 else 0
    run(COPY, 4, Address(0, 4 * first), Address(1), n, stride, memory=memory_of(x, y))
    places = first + np.arange(64) * stride
    assert np.array_equal(y, np.where(np.arange(64) < n, x[places.clip(0, 127)], -1))


@pytest.mark.parametrize(
    ("sizes", "moved", "arguments", "found"),
    [
        ((60, 64), None, (64, 1), ("tt.load", 0, 240, (3, 0, 0))),
        ((60, 64), None, (16, -1), ("tt.load", 0, -4, (0, 0, 0))),
        ((64, 63), None, (64, 1), ("tt.store", 1, 252, (3, 0, 0))),
        ((64, 64, 64), (0, 2), (64, 1), ("tt.load", 2, 0, (0, 0, 0))),
        ((64, 64), (1, 0), (64, 1), ("tt.store", 0, 0, (0, 0, 0))),
    ],
    ids=["load behind", "load before", "store behind", "load elsewhere", "store elsewhere"],
)
def test_an_access_outside_of_what_its_argument_names_is_found_at_its_first_element(
    sizes: tuple[int, ...],
    moved: tuple[int, int] | None,
    arguments: tuple[int, int],
    found: tuple[str, int, int, tuple[int, int, int]],
) -> None:
    """`moved`: an argument whose pointer is moved into another storage."""
    memory = memory_of(*map(floats, sizes))
    pointers = [Address(0), Address(1)]
    if moved is not None:
        one, other = moved
        pointers[one] = Address(one, memory.address(other) - memory.address(one))
    with pytest.raises(Faulted) as caught:
        run(COPY, 4, *pointers, *arguments, memory=memory)
    fault = caught.value.fault
    assert fault.kind is FaultKind.OUT_OF_BOUNDS
    assert (fault.operation, fault.storage, fault.offset, fault.instance) == found


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("grid", [1, 2, 4, 200])
def test_every_order_runs_each_instance_once(order: Order, grid: int) -> None:
    x, y = floats(16 * grid), np.zeros(16 * grid, np.float32)
    run(COPY, grid, x, y, 16 * grid, 1, order=order)
    assert np.array_equal(x, y)


def test_masked_lanes_may_point_anywhere() -> None:
    y = np.zeros(64, np.float32)
    run(COPY, 4, floats(10), y, 10, 1)
    assert list(y[:12]) == [*range(10), -1, -1]


@pytest.mark.parametrize("step", [1 << 58, -(1 << 58), (1 << 61) - 1, -(1 << 61) // 15, 1 << 62])
def test_addresses_that_wrap_are_as_on_a_card(step: int) -> None:
    x, y, lanes = floats(64), np.zeros(64, np.float32), "tensor<16xi64>"
    wide = f"%w = arith.extsi %i : tensor<16xi32> to {lanes}\n%ms = tt.splat %m : i64 -> {lanes}"
    source = COPY.replace("%m: i32", "%m: i64").replace(
        "muli %i, %ms : tensor<16xi32>", f"muli %w, %ms : {lanes}"
    )
    source = source.replace("%ms = tt.splat %m : i32 -> tensor<16xi32>", wide)
    source = source.replace(
        "%x.all, %j : tensor<16x!tt.ptr<f32>>, tensor<16xi32>",
        f"%x.all, %j : tensor<16x!tt.ptr<f32>>, {lanes}",
    )
    run(source, 4, x, y, 1, step)  # the first lane alone
    assert list(y[:2]) == [0, -1]
    if step == 1 << 62:  # of four bytes: every lane is at the first element
        run(source, 4, x, y, 64, step)
        return
    with pytest.raises(Faulted) as caught:
        run(source, 4, x, y, 64, step)
    assert caught.value.fault.kind is FaultKind.OUT_OF_BOUNDS


def test_a_misaligned_access_is_found() -> None:
    source = COPY.replace(
        "%j = arith.muli %i, %ms : tensor<16xi32>", "%j = arith.addi %i, %i : tensor<16xi32>"
    )
    wide = source.replace("!tt.ptr<f32>", "!tt.ptr<f16>").replace("xf32>", "xf16>")
    memory = memory_of(np.zeros(200, np.float16), np.zeros(64, np.float16))
    with pytest.raises(Faulted) as caught:
        run(wide, 4, Address(0, 1), Address(1), 64, 1, memory=memory)
    assert caught.value.fault.kind is FaultKind.MISALIGNED


def test_a_null_pointer_faults_only_if_it_is_read() -> None:
    memory = memory_of(np.zeros(64, np.float32))
    run(COPY, 4, Address(None), Address(0), 0, 1, memory=memory)
    with pytest.raises(Faulted) as caught:
        run(COPY, 4, Address(None), Address(0), 1, 1, memory=memory)
    assert caught.value.fault.storage is None


def test_an_uninitialised_read_is_suspected_at_its_element() -> None:
    x, y = floats(64), floats(64)
    memory = memory_of(x, y)
    memory.storages[0].forget()
    memory.storages[0].written[:40] = True
    (found,) = run(COPY, 4, x, y, 64, 1, memory=memory).suspicions
    assert (found.kind, found.storage, found.offset) == (FaultKind.UNINITIALISED, 0, 160)


def test_a_store_initialises_what_it_writes() -> None:
    x, y = floats(64), floats(70)
    memory = memory_of(x, y)
    memory.storages[1].forget()
    run(COPY, 4, x, y, 64, 1, memory=memory)
    written = memory.storages[1].written
    assert written is not None
    assert list(np.flatnonzero(~written)) == [64, 65, 66, 67, 68, 69]


STORE = kernel(
    "%y: !tt.ptr<f32>, %step: i32, %value: f32",
    """
    %offset = arith.muli %pid, %step : i32
    %at = tt.addptr %y, %offset : !tt.ptr<f32>, i32
    %p = arith.sitofp %pid : i32 to f32
    %v = arith.mulf %p, %value : f32
    tt.store %at, %v : !tt.ptr<f32>
""",
)
"""y[pid * step] = pid * value"""


def test_unequal_writes_to_one_element_are_suspected() -> None:
    (found,) = run(STORE, 8, floats(8), 0, 1.0).suspicions
    assert (found.kind, found.storage, found.offset) == (FaultKind.RACE, 0, 0)
    assert found.instance != found.other


@pytest.mark.parametrize(("step", "value"), [(1, 1.0), (0, 0.0)])
def test_own_elements_and_equal_values_are_no_race(step: int, value: float) -> None:
    assert run(STORE, 8, floats(8), step, value).suspicions == ()


def test_the_reversed_order_gives_another_winner() -> None:
    results: list[float] = []
    for order in (Order.NATURAL, Order.REVERSED):
        y = floats(8)
        run(STORE, 8, y, 0, 1.0, order=order)
        results.append(float(y[0]))
    assert results == [7.0, 0.0]


LANES = kernel(
    "%x: !tt.ptr<f32>, %y: !tt.ptr<f32>, %divisor: i32",
    """
    %l = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32>
    %d = tt.splat %divisor : i32 -> tensor<8xi32>
    %j = arith.divsi %l, %d : tensor<8xi32>
    %size = arith.constant 8 : i32
    %start = arith.muli %pid, %size : i32
    %starts = tt.splat %start : i32 -> tensor<8xi32>
    %from = arith.addi %starts, %l : tensor<8xi32>
    %to = arith.addi %starts, %j : tensor<8xi32>
    %xs = tt.splat %x : !tt.ptr<f32> -> tensor<8x!tt.ptr<f32>>
    %ys = tt.splat %y : !tt.ptr<f32> -> tensor<8x!tt.ptr<f32>>
    %at = tt.addptr %xs, %from : tensor<8x!tt.ptr<f32>>, tensor<8xi32>
    %into = tt.addptr %ys, %to : tensor<8x!tt.ptr<f32>>, tensor<8xi32>
    %v = tt.load %at : tensor<8x!tt.ptr<f32>>
    tt.store %into, %v : tensor<8x!tt.ptr<f32>>
""",
)
"""y[8 * pid + i // divisor] = x[8 * pid + i]"""


@pytest.mark.parametrize("grid", [1, 3])
def test_lanes_with_one_address_and_other_values_are_suspected(grid: int) -> None:
    x = np.arange(24, dtype=np.float32)
    (found,) = run(LANES, grid, x, floats(24), 2).suspicions
    assert (found.kind, found.storage, found.offset, found.other) == (FaultKind.LANES, 1, 0, None)
    assert run(LANES, grid, x, floats(24), 1).suspicions == ()
    assert run(LANES, grid, np.ones(24, np.float32), floats(24), 2).suspicions == ()


def test_the_reversed_order_lets_the_first_lane_win() -> None:
    x, first, last = np.arange(8, dtype=np.float32), floats(8), floats(8)
    run(LANES, 1, x, last, 2)
    run(LANES, 1, x, first, 2, order=Order.REVERSED)
    assert last[:4].tolist() == [1.0, 3.0, 5.0, 7.0]
    assert first[:4].tolist() == [0.0, 2.0, 4.0, 6.0]


def test_a_read_of_what_another_instance_writes_is_suspected() -> None:
    y = np.random.default_rng(0).random(1024).astype(np.float32)
    (found,) = run(text("shifted_sum"), 8, y, 1024).suspicions
    assert found.kind is FaultKind.RACE


@given(
    bases=st.lists(st.integers(-40, 400), min_size=1, max_size=6),
    strides=st.lists(st.integers(-8, 24), min_size=2, max_size=2),
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=2),
)
@settings(max_examples=100, deadline=None)
def test_windows_are_their_offsets(bases: list[int], strides: list[int], sizes: list[int]) -> None:
    starts = np.array(bases, np.int64).reshape(-1, 1, 1)
    rows = (np.arange(sizes[0]) * strides[0]).reshape(1, -1, 1)
    columns = (np.arange(sizes[1]) * strides[1]).reshape(1, 1, -1)
    found = windows_of(starts + rows + columns, 100)
    assert isinstance(found, Windows)
    offsets = found.scattered().offsets
    assert np.array_equal(
        np.broadcast_to(offsets, (len(bases), *sizes)), starts + rows + columns - 100
    )
    assert found.bases.min() + found.lowest == offsets.min()
    assert found.bases.max() + found.highest == offsets.max()
    if found.is_disjoint(4) and len(found.bases) > 1:
        lanes = np.broadcast_to(offsets, (len(bases), *sizes)).reshape(len(bases), -1)
        sets = [{one + k for one in row for k in range(4)} for row in lanes.tolist()]
        assert sum(map(len, sets)) == len(set().union(*sets))


@given(
    count=st.integers(1, 5),
    step=st.integers(0, 40),
    stride=st.integers(0, 9),
    size=st.integers(1, 5),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_windows_read_and_write_like_their_offsets(
    count: int, step: int, stride: int, size: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    windows = Windows(np.arange(count) * step * 4, (stride * 4,), (size,))
    flat = draw.random(300).astype(np.float32)
    scattered = windows.scattered()
    expected = np.broadcast_to(scattered.read(flat, 4), (count, size))
    assert np.array_equal(np.broadcast_to(windows.read(flat, 4), (count, size)), expected)
    if windows.is_disjoint(4):
        values = draw.random((count, size)).astype(np.float32)
        mask = draw.random((count, size)) < 0.5
        one, two = flat.copy(), flat.copy()
        windows.write(one, 4, values, mask)
        scattered.write(two, 4, values, mask)
        assert np.array_equal(one, two)


def test_suspicions_of_one_kind_do_not_hide_those_of_another() -> None:
    none: Any = frozenset()
    one = Launch(
        memory=Memory([]), grid=(1, 1, 1), reachable=none, watched=none, is_racing=True, fuel=1
    )
    facts: dict[str, Any] = {"line": 1, "storage": None, "offset": 0, "instance": (0, 0, 0)}
    facts |= {"operation": "tt.load", "num_bytes": 4}
    for index in range(2 * MAX_SUSPICIONS):
        one.suspect(Fault(kind=FaultKind.UNINITIALISED, index=index, **facts))
    one.suspect(Fault(kind=FaultKind.RACE, index=0, **facts))
    assert [fault.kind for fault in one.suspicions[MAX_SUSPICIONS:]] == [FaultKind.RACE]


@pytest.mark.parametrize("count", [1, 2, 300])
def test_addresses_look_like_a_card_s_and_belong_to_their_storage(count: int) -> None:
    memory = memory_of(*(floats(4 + number % 3) for number in range(count)))
    starts = [memory.address(number) for number in range(count)]
    assert all(start >> 40 == 0x7F and start % 512 == 0 for start in starts)
    for number, start in enumerate(starts):
        assert [memory.find(start + at) for at in (0, 15)] == [(number, 0), (number, 15)]
    assert memory.find_all(np.array([0, *starts, 1 << 47])).tolist() == [-1, *range(count), -1]
    assert memory.find(0)[0] is None
    assert memory.find(starts[-1] - 8) == (count - 1, -8)


def test_no_kernel_knows_the_distance_of_two_storages() -> None:
    memories = [memory_of(floats(4), floats(4)) for _ in range(20)]
    assert len({memory.address(1) - memory.address(0) for memory in memories}) > 15


BLOCK, INDEX = "tensor<1024x!tt.ptr<f32>>", "tensor<1024xi32>"
TEXT = f"""
module {{
  tt.func public @k(%s: !tt.ptr<f32>, %y: !tt.ptr<f32>) {{
    %i = tt.make_range {{end = 1024 : i32, start = 0 : i32}} : {INDEX}
    %last = arith.constant dense<1023> : {INDEX}
    %far = arith.subi %last, %i : {INDEX}
    %next = arith.constant dense<1> : {INDEX}
    %near = arith.xori %i, %next : {INDEX}
    %v = arith.constant dense<2.0> : tensor<1024xf32>
    %ss = tt.splat %s : !tt.ptr<f32> -> {BLOCK}
    %sp = tt.addptr %ss, %i : {BLOCK}, {INDEX}
    tt.store %sp, %v : {BLOCK}
    BETWEEN
    %rp = tt.addptr %ss, PLACE : {BLOCK}, {INDEX}
    %r = tt.load %rp : {BLOCK}
    %ys = tt.splat %y : !tt.ptr<f32> -> {BLOCK}
    %yp = tt.addptr %ys, %i : {BLOCK}, {INDEX}
    tt.store %yp, %r : {BLOCK}
    tt.return
  }}
}}
"""
SUM = """%sum = "tt.reduce"(%v) <{axis = 0 : i32}> ({
    ^bb0(%a: f32, %b: f32):
      %c = arith.addf %a, %b : f32
      tt.reduce.return %c : f32
    }) : (tensor<1024xf32>) -> f32"""


def is_found(place: str, between: str = "", *, before: float = 0.0, num_warps: int = 4) -> bool:
    """True if a load of the element at `place` is suspected, where `before` was in memory."""
    storages = [
        Storage(data=np.full(1024, before, np.float32).view(np.uint8), granule=4) for _ in range(2)
    ]
    text = TEXT.replace("PLACE", place).replace("BETWEEN", between)
    arguments = [Address(0), Address(1)]
    memory = Memory(storages)
    report = launch(plan_of(text), "k", (1, 1, 1), arguments, memory, num_warps=num_warps)
    assert {one.kind for one in report.suspicions} <= {FaultKind.BARRIER}
    return bool(report.suspicions)


@pytest.mark.parametrize(
    ("place", "options", "is_suspect"),
    [
        ("%far", {}, True),
        *[("%far", {"between": one}, False) for one in ("gpu.barrier", "ttg.barrier all", SUM)],
        ("%far", {"before": 2.0}, False),  # the store changes nothing
        ("%far", {"num_warps": 1}, False),
        ("%i", {}, False),  # a thread's own
        ("%near", {}, False),
    ],
)
def test_a_load_of_what_another_thread_stored_without_a_barrier_is_found(
    place: str, options: dict[str, Any], is_suspect: bool
) -> None:
    assert is_found(place, **options) is is_suspect


HINTED = kernel(
    "%x: !tt.ptr<i32>, %y: !tt.ptr<i32>",
    pointers("x", kind="i32")
    + pointers("y", kind="i32")
    + "    %v = tt.load %x.at {HINT} : tensor<16x!tt.ptr<i32>>\n"
    + "    tt.store %y.at, %v : tensor<16x!tt.ptr<i32>>",
)


def hint(name: str, number: int) -> str:
    return f"tt.{name} = dense<{number}> : tensor<1xi32>"


@pytest.mark.parametrize(
    ("hints", "values"),
    [
        (hint("contiguity", 16), np.arange(32) + 5),
        (f"{hint('contiguity', 16)}, {hint('divisibility', 16)}", np.arange(32) + 48),
        (hint("divisibility", 16), np.arange(32) + 48),  # of the first of a run
        (hint("divisibility", 4), np.arange(32) * 4),
        (hint("constancy", 4), np.arange(32) // 4),
    ],
)
def test_a_hint_of_what_is_loaded_must_be_true(
    hints: str, values: np.ndarray[Any, np.dtype[np.int64]]
) -> None:
    x, y = values.astype(np.int32), np.zeros(32, np.int32)
    source = HINTED.replace("HINT", hints)
    run(source, 2, x, y)
    assert np.array_equal(x, y)
    x[21] += 1
    with pytest.raises(Unsupported, match=r"line \d+: a hint .* false"):
        run(source, 2, x, y)


def test_a_hint_of_a_row_that_wraps_round_may_be_false() -> None:
    wrapped = "    %w = arith.remsi %i, %n {HINT} : tensor<16xi32>\n".replace(
        "HINT", hint("contiguity", 16)
    )
    body = "    %n = arith.constant dense<20> : tensor<16xi32>\n" + wrapped
    body += pointers("y", kind="i32") + "    tt.store %y.at, %w : tensor<16x!tt.ptr<i32>>"
    y = np.zeros(32, np.int32)
    run(kernel("%y: !tt.ptr<i32>", body), 2, y)
    assert np.array_equal(y, np.arange(32) % 20)


def test_small_accesses_are_kept_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forge.evalpool.judge.ttir.memory.storages.MAX_TAPE_BYTES", 100_000)
    body = "scf.for %k = %pid to %n step %c16 : i32 {\n tt.store %x, %n : !tt.ptr<i32>\n }"
    source, memory = kernel("%x: !tt.ptr<i32>, %n: i32", body), memory_of(np.zeros(1, np.int32))
    tracemalloc.start()
    run(source, 1, Address(0), 16_000, memory=memory, key=0)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 300_000
