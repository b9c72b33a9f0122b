"""A thread sees another one's store behind a barrier alone: who reads it earlier is found."""

from __future__ import annotations

import numpy as np
import pytest

from forge.evalpool.judge.ttir.evaluate import Address, launch
from forge.evalpool.judge.ttir.memory.storages import FaultKind, Memory, Storage
from forge.evalpool.judge.ttir.plan.dispatch import plan_of

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


def test_a_load_of_what_a_far_lane_stored_is_found() -> None:
    assert is_found("%far")


@pytest.mark.parametrize("between", ["gpu.barrier", "ttg.barrier all", SUM])
def test_a_barrier_orders_a_store_and_a_load(between: str) -> None:
    assert not is_found("%far", between)


@pytest.mark.parametrize("place", ["%i", "%near"])
def test_a_thread_sees_its_own_stores(place: str) -> None:
    assert not is_found(place)


def test_a_store_that_changes_nothing_is_none() -> None:
    assert not is_found("%far", before=2.0)


def test_the_threads_of_one_warp_run_together() -> None:
    assert not is_found("%far", num_warps=1)
