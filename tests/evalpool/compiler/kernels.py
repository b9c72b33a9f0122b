"""Kernels as TTIR, hand-written and small: as MLIR prints them."""

from forge.evalpool.judge.program.format import Kernel, Options, Parameter

TARGET = "cuda:90:32"

DOUBLE = """module {
  tt.func public @double(%arg0: !tt.ptr<f32> {tt.divisibility = 16 : i32}, \
%arg1: !tt.ptr<f32>) attributes {noinline = false} {
    %0 = tt.make_range {end = 128 : i32, start = 0 : i32} : tensor<128xi32>
    %1 = tt.splat %arg0 : !tt.ptr<f32> -> tensor<128x!tt.ptr<f32>>
    %2 = tt.addptr %1, %0 : tensor<128x!tt.ptr<f32>>, tensor<128xi32>
    %3 = tt.load %2 : tensor<128x!tt.ptr<f32>>
    %4 = arith.addf %3, %3 : tensor<128xf32>
    %5 = tt.splat %arg1 : !tt.ptr<f32> -> tensor<128x!tt.ptr<f32>>
    %6 = tt.addptr %5, %0 : tensor<128x!tt.ptr<f32>>, tensor<128xi32>
    tt.store %6, %4 : tensor<128x!tt.ptr<f32>>
    tt.return
  }
}
"""
"""Every test's kernel begins as this one."""

TYPES = ("*fp32", "*fp32")


def make_kernel(
    text: str = DOUBLE,
    *,
    types: tuple[str, ...] = TYPES,
    options: Options | None = None,
    name: str = "double",
    lines: tuple[int, ...] = (),
) -> Kernel:
    return Kernel(
        name=name,
        ttir=text,
        options=options or Options(),
        parameters=tuple(Parameter(name=f"p{i}", type=kind) for i, kind in enumerate(types)),
        lines=lines,
    )


def with_operation(line: str) -> Kernel:
    """The kernel with one more operation, after `%4`."""
    return make_kernel(DOUBLE.replace("    %5 = tt.splat", f"    {line}\n    %5 = tt.splat"))
