"""Rewritten kernels find accesses outside of their storages, and do nothing else in another way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from forge.evalpool.judge.compiler.binary import Binary, Depth, Failure
from forge.evalpool.judge.compiler.bounded import SINK_BYTES, Unbounded, with_bounds
from forge.evalpool.judge.compiler.lower import original_lines
from tests.evalpool.compiler.kernels import DOUBLE, TARGET, make_kernel
from tests.evalpool.ttir.kernels import memory_of, run

if TYPE_CHECKING:
    from forge.evalpool.judge.compiler.compile import Compiler

ROW = {name: DOUBLE[: DOUBLE.index(name)].count("\n") + 1 for name in ("tt.load", "tt.store")}
MASKED = DOUBLE.replace(
    "    %3 = tt.load %2 :",
    """    %m = arith.constant dense<64> : tensor<128xi32>
    %mask = arith.cmpi slt, %0, %m : tensor<128xi32>
    %3 = tt.load %2, %mask :""",
).replace("tt.store %6, %4 :", "tt.store %6, %4, %mask :")
"""The first 64 elements only."""
SCALAR = """module {
  tt.func public @double(%arg0: !tt.ptr<f32>, %arg1: i64, %arg2: !tt.ptr<i32>) \
attributes {noinline = false} {
    %0 = tt.addptr %arg0, %arg1 : !tt.ptr<f32>, i64
    %1 = tt.load %0 : !tt.ptr<f32>
    tt.store %arg0, %1 : !tt.ptr<f32>
    %c1 = arith.constant 1 : i32
    %true = arith.constant true
    %2 = tt.atomic_rmw add, acq_rel, gpu, %arg2, %c1, %true : (!tt.ptr<i32>, i32, i1) -> i32
    %3 = tt.atomic_cas acq_rel, gpu, %arg2, %c1, %2 : (!tt.ptr<i32>, i32, i32) -> i32
    tt.return
  }
}
"""


def checked(text: str, *arrays: np.ndarray[Any, Any], scalars: tuple[Any, ...] = ()) -> int:
    """Runs the rewritten kernel with the true bounds of its arrays; returns the fault word.

    Args:
        scalars: arguments between the first array and the others.
    """
    fault, sink = np.zeros(1, np.int32), np.zeros(SINK_BYTES, np.uint8)
    memory = memory_of(*arrays, fault, sink)
    bounds = [
        address
        for number, array in enumerate(arrays)
        for address in (memory.address(number), memory.address(number) + array.nbytes)
    ]
    given = [*arrays[:1], *scalars, *arrays[1:], *bounds, fault, sink]
    run(with_bounds(text).text, 1, *given, name="double", memory=memory)
    return int(fault[0])


def ones(count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.ones(count, np.float32)


def test_a_kernel_within_its_bounds_is_the_same() -> None:
    x, y = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    assert checked(DOUBLE, x, y) == 0
    assert np.array_equal(y, 2 * x)


@pytest.mark.parametrize(
    ("text", "num_x", "num_y", "fault"),
    [
        (DOUBLE, 127, 128, 1),
        (DOUBLE, 128, 127, 2),
        (DOUBLE, 127, 127, 2),
        (MASKED, 64, 64, 0),
        (MASKED, 63, 64, 1),
        (MASKED, 64, 63, 2),
    ],
)
def test_an_access_behind_the_end_is_found(text: str, num_x: int, num_y: int, fault: int) -> None:
    x, y = ones(num_x), np.zeros(num_y, np.float32)
    assert checked(text, x, y) == fault
    assert np.array_equal(y[: min(num_x, num_y, 63)], np.full(min(num_x, num_y, 63), 2.0))


@pytest.mark.parametrize("offset", [4, -1, 1 << 50, -(1 << 61), (1 << 62) - 1])
def test_an_address_by_a_number_is_found(offset: int) -> None:
    x, counter = ones(4), np.zeros(1, np.int32)
    assert checked(SCALAR, x, counter, scalars=(offset,)) == 1
    assert counter[0] == 0  # added to, then exchanged for what it was


def test_single_pointers_and_atomics_are_checked() -> None:
    x, counter = np.array([1, 2, 3, 4], np.float32), np.zeros(1, np.int32)
    assert checked(SCALAR, x, counter, scalars=(3,)) == 0
    assert x[0] == 4
    assert checked(SCALAR, x, np.zeros(0, np.int32), scalars=(3,)) == 4


@pytest.mark.parametrize(
    "line",
    [
        "%9 = tt.descriptor_load %d[%c, %c] : !tt.tensordesc<64x64xf16> -> tensor<64x64xf16>",
        "%9 = tt.atomic_poll acquire, gpu, %p, %c : !tt.ptr<i32>",
        "tt.call @__main__.helper(%p) : (!tt.ptr<f32>) -> ()",
    ],
)
def test_an_access_that_cannot_be_rewritten_is_no_kernel(line: str) -> None:
    with pytest.raises(Unbounded, match="in a checked kernel"):
        with_bounds(DOUBLE.replace("    tt.return", f"    {line}\n    tt.return"))


def test_a_rewritten_kernel_is_compiled(compiler: Compiler) -> None:
    made = compiler.compile([make_kernel()], TARGET, depth=Depth.BOUNDED)[0]
    assert isinstance(made, Binary), made
    assert made.num_bounds == 2
    assert made.access_lines == (ROW["tt.load"], ROW["tt.store"])
    assert made.code


def test_a_kernel_that_calls_itself_has_no_bounds(compiler: Compiler) -> None:
    helper = """  tt.func private @again(%arg0: i64) -> i64 attributes {noinline = true} {
    %0 = tt.call @again(%arg0) : (i64) -> i64
    tt.return %0 : i64
  }
}
"""
    text = DOUBLE.removesuffix("}\n") + helper
    call = "    %c1_i64 = arith.constant 1 : i64\n    %7 = tt.call @again(%c1_i64) : (i64) -> i64\n"
    text = text.replace("    tt.return\n  }", f"{call}    tt.return\n  }}", 1)
    text = text.replace(call, call.split("\n")[1] + "\n").replace(
        "    %0 = tt.make_range", "    %c1_i64 = arith.constant 1 : i64\n    %0 = tt.make_range"
    )
    found = compiler.compile([make_kernel(text)], TARGET, depth=Depth.BOUNDED)[0]
    assert isinstance(found, Failure)
    assert "no bounds" in found.message


def test_lines_are_followed_through_locations() -> None:
    printed = """#loc = loc("/tmp/x/kernel.ttir":9:1)
#loc2 = loc(callsite(#loc at #loc))
module {
  tt.func public @k() attributes {noinline = false} {
    %0 = arith.constant 1 : i32 loc(#loc)
    %1 = arith.constant 1 : i32 loc(#loc2)
    tt.return loc(#loc7)
  } loc(#loc)
} loc(#loc)
"""
    assert original_lines(printed) == [0, 0, 9, 9, 0]
