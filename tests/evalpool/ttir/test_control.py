"""Instances that take different ways: loops, branches, returns, calls, locks."""

import numpy as np
import pytest

from forge.evalpool.judge.ttir.evaluate import Order
from forge.evalpool.judge.ttir.values import Unsupported
from tests.evalpool.ttir.kernels import kernel, memory_of, pointers, run, text


def steps(n: int) -> int:
    """Steps of the Collatz sequence from n to 1."""
    count = 0
    while n != 1:
        n, count = (n // 2 if n % 2 == 0 else 3 * n + 1), count + 1
    return count


@pytest.mark.parametrize("order", list(Order))
def test_a_while_loop_ends_for_each_instance_alone(order: Order) -> None:
    x = np.arange(1, 101, dtype=np.int32)
    y = np.zeros(100, np.int32)
    run(text("collatz"), 100, x, y, name="col", order=order)
    assert list(y) == [steps(int(n)) for n in x]


def test_instances_return_early_and_calls_return_from_several_places() -> None:
    x, y = np.arange(50, dtype=np.float32), np.full(64, -1, np.float32)
    run(text("early_return"), 64, x, y, 50)
    kinds = np.arange(50) % 3
    expected = np.where(kinds == 0, x * 2, np.where(kinds == 1, x + 1, x))
    assert np.array_equal(y[:50], expected)
    assert (y[50:] == -1).all()


def test_a_causal_attention_has_loops_of_unequal_length() -> None:
    draw = np.random.default_rng(0)
    heads, n, d = 2, 70, 64
    q, k, v = (draw.standard_normal((heads, n, d)).astype(np.float16) for _ in range(3))
    out = np.zeros_like(q)
    grid = (-(-n // 32), heads, 1)
    run(text("attention"), grid, q, k, v, out, n * d, d, 0.125, n, name="attn")
    scores = np.einsum("hid,hjd->hij", q.astype(np.float64), k.astype(np.float64)) / 8
    scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = np.einsum("hij,hjd->hid", weights / weights.sum(-1, keepdims=True), v)
    assert np.abs(out - expected).max() < 5e-3


@pytest.mark.parametrize("order", list(Order))
def test_instances_that_wait_for_a_lock_take_turns(order: Order) -> None:
    x = np.random.default_rng(0).random((40, 100)).astype(np.float32)
    out, locks = np.zeros((4, 100), np.float32), np.zeros(4, np.int32)
    counts = np.zeros(4, np.int32)
    run(text("locked_sum"), 40, x, out, locks, counts, 100, name="red", order=order)
    expected = x.reshape(10, 4, 100).sum(0)
    assert np.allclose(out, expected, rtol=1e-5)
    assert list(locks) == [0, 0, 0, 0]


def test_a_lock_that_nobody_opens_runs_out_of_fuel() -> None:
    x, out = np.zeros((2, 100), np.float32), np.zeros((4, 100), np.float32)
    ones, counts = np.ones(4, np.int32), np.zeros(4, np.int32)
    with pytest.raises(Unsupported, match="waits for ever"):
        run(text("locked_sum"), 2, x, out, ones, counts, 100, name="red", fuel=10_000)


def test_a_reduction_may_branch_for_each_element() -> None:
    x = np.random.default_rng(0).standard_normal((10, 64)).astype(np.float32)
    out = np.zeros(10, np.float32)
    run(text("branching_maximum"), 10, x, out)
    assert np.array_equal(out, x.max(1))


def test_a_descriptor_reads_zeros_outside_and_writes_inside_only() -> None:
    x = np.random.default_rng(0).standard_normal((100, 64)).astype(np.float16)
    y = np.zeros_like(x)
    run(text("descriptor"), (4, 2, 1), x, y, 100, 64)
    assert np.array_equal(y, x * 2)


UNEVEN = kernel(
    "%y: !tt.ptr<i32>",
    """
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %ones = arith.constant dense<1> : tensor<16xi32>
"""
    + pointers("y", kind="i32")
    + """
    %r:2 = scf.for %j = %c0 to %pid step %c1 iter_args(%a = %lane, %q = %y.at) ->
      (tensor<16xi32>, tensor<16x!tt.ptr<i32>>)  : i32 {
      %cond = arith.cmpi sgt, %pid, %j : i32
      %b = scf.if %cond -> (tensor<16xi32>) {
        %s = tt.splat %j : i32 -> tensor<16xi32>
        %t = arith.addi %a, %s : tensor<16xi32>
        scf.yield %t : tensor<16xi32>
      } else {
        scf.yield %a : tensor<16xi32>
      }
      %q2 = tt.addptr %q, %ones : tensor<16x!tt.ptr<i32>>, tensor<16xi32>
      scf.yield %b, %q2 : tensor<16xi32>, tensor<16x!tt.ptr<i32>>
    }
    tt.store %r#1, %r#0 : tensor<16x!tt.ptr<i32>>
""",
)
"""Each instance runs its loop `pid` times, and moves its pointers on each time."""


@pytest.mark.parametrize("order", list(Order))
def test_values_and_pointers_of_a_loop_are_each_instances_own(order: Order) -> None:
    # Instance p writes lane + p (p - 1) / 2 to elements 17 p, 17 p + 1, ...
    y = np.full(17 * 10 + 16, -1, np.int32)
    run(UNEVEN, 11, y, order=order)
    for p in range(11):
        assert list(y[17 * p : 17 * p + 16]) == [lane + p * (p - 1) // 2 for lane in range(16)]


def test_a_mapped_function_may_return_early_for_each_element() -> None:
    x = np.random.default_rng(0).standard_normal(256).astype(np.float32)
    y = np.zeros_like(x)
    run(text("mapped_branches"), 4, x, y)
    assert np.array_equal(y, np.where(x > 0, x * 2, x - 1))


BARRIER = kernel(
    "%c: !tt.ptr<i32>, %n: i32",
    """
    %one = arith.constant 1 : i32
    %zero = arith.constant 0 : i32
    %true = arith.constant true
    %a = tt.atomic_rmw add, acq_rel, gpu, %c, %one, %true : (!tt.ptr<i32>, i32, i1) -> i32
    scf.while : () -> () {
      %s = tt.atomic_rmw add, acq_rel, gpu, %c, %zero, %true : (!tt.ptr<i32>, i32, i1) -> i32
      %w = arith.cmpi slt, %s, %n : i32
      scf.condition(%w)
    } do {
      scf.yield
    }
""",
)


def test_a_barrier_of_more_instances_than_a_card_holds_never_ends() -> None:
    count = np.zeros(1, np.int32)
    run(BARRIER, 8, count, 8, num_resident=8)
    assert count[0] == 8
    with pytest.raises(Unsupported, match="wait for others to begin"):
        run(BARRIER, 9, np.zeros(1, np.int32), 9, num_resident=8)


def test_a_lock_needs_no_more_than_two_instances_at_once() -> None:
    x, out = np.ones((40, 100), np.float32), np.zeros((4, 100), np.float32)
    locks, counts = np.zeros(4, np.int32), np.zeros(4, np.int32)
    run(text("locked_sum"), 40, x, out, locks, counts, 100, name="red", num_resident=2)
    assert (out == 10).all()


@pytest.mark.parametrize("where", ["a loop", "a branch"])
def test_a_way_that_data_decide_is_another_one_in_the_next_call(where: str) -> None:
    block = "tensor<16x!tt.ptr<i32>>"
    body = f"%v = tt.load %x.at : {block}\n tt.store %y.at, %v : {block}"
    lines = {
        "a loop": f"scf.for %k = %zero to %n step %one : i32 {{\n {body}\n }}",
        "a branch": f"%is = arith.cmpi sgt, %n, %zero : i32\n scf.if %is {{\n {body}\n }}",
    }
    source = kernel(
        "%x: !tt.ptr<i32>, %y: !tt.ptr<i32>, %limit: !tt.ptr<i32>",
        pointers("x", kind="i32")
        + pointers("y", kind="i32")
        + "%n = tt.load %limit : !tt.ptr<i32>\n"
        + "%zero = arith.constant 0 : i32\n %one = arith.constant 1 : i32\n"
        + lines[where],
    )
    x, y, limit = np.arange(32, dtype=np.int32), np.zeros(32, np.int32), np.zeros(1, np.int32)
    memory = memory_of(x, y, limit)
    for number in (0, 2, 0):
        limit[:], y[:] = number, 0
        run(source, 2, x, y, limit, memory=memory, key=0)
        assert np.array_equal(y, x if number else np.zeros(32))
