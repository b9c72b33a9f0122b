"""Small programs with TTIR, made without Triton."""

from __future__ import annotations

from typing import Any

from forge.evalpool.judge.program.format import (
    Kernel,
    Launch,
    Options,
    Origin,
    Parameter,
    Program,
    Storage,
    Tensor,
    TensorUse,
)

COPY = """
module {
  tt.func public @copy(%x: !tt.ptr<f32>, %y: !tt.ptr<f32>, %n: i32) attributes {noinline = false} {
    %c64 = arith.constant 64 : i32
    %pid = tt.get_program_id x : i32
    %base = arith.muli %pid, %c64 : i32
    %lane = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
    %0 = tt.splat %base : i32 -> tensor<64xi32>
    %i = arith.addi %0, %lane : tensor<64xi32>
    %1 = tt.splat %n : i32 -> tensor<64xi32>
    %mask = arith.cmpi slt, %i, %1 : tensor<64xi32>
    %2 = tt.splat %x : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
    %3 = tt.addptr %2, %i : tensor<64x!tt.ptr<f32>>, tensor<64xi32>
    %4 = tt.load %3, %mask : tensor<64x!tt.ptr<f32>>
    %5 = tt.splat %y : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
    %6 = tt.addptr %5, %i : tensor<64x!tt.ptr<f32>>, tensor<64xi32>
    tt.store %6, %4, %mask : tensor<64x!tt.ptr<f32>>
    tt.return
  }
}
"""
"""Copies `n` elements, 64 by each instance."""


REQUEST = {
    "num_bytes": 2048,
    "tensors": [["float32", [256], 0], ["float32", [256], 1024]],
    "state": [],
    "init": ["list", []],
    "sets": [["list", [["tensor", 0]]]],
    "slots": [1],
}
"""An input and a slot of 256 floats."""


def copy_kernel() -> Kernel:
    """`COPY` as a kernel whose operations are at lines 100, 101, ..."""
    kinds = {"x": "*fp32", "y": "*fp32", "n": "i32"}
    return Kernel(
        name="copy",
        ttir=COPY,
        options=Options(),
        parameters=tuple(Parameter(name=name, type=kind) for name, kind in kinds.items()),
        lines=tuple(range(100, 118)),
    )


def launch(n: int, *, source: int = 0, target: int = 1, size: int = 256) -> Launch:
    """A launch of `copy` over `size` elements, `n` of which are unmasked."""
    uses = (TensorUse(tensor=source), TensorUse(tensor=target))
    return Launch(kernel=0, grid=(-(-size // 64), 1, 1), arguments=(*uses, n), line=7)


def program(*nodes: Any, num_temporaries: int = 0, size: int = 256, **more: Any) -> Program:
    """An input (tensor 0), the output (tensor 1) and temporaries (2, ...) of `size` floats."""
    allocations = [Storage(num_bytes=4 * size, origin=Origin.ALLOCATION)] * (1 + num_temporaries)
    storages = (Storage(num_bytes=4 * size, origin=Origin.INPUT), *allocations)
    tensors = tuple(
        Tensor(storage=i, offset=0, shape=(size,), strides=(1,), dtype="float32")
        for i in range(len(storages))
    )
    facts: dict[str, Any] = {"init": (), "outputs": (1,), **more}
    return Program(
        target="cuda:90:32",
        storages=storages,
        tensors=tensors,
        kernels=(copy_kernel(),),
        forward=nodes,
        **facts,
    )
