# pyright: reportArgumentType=false, reportCallIssue=false
"""Programs with inputs and right answers, for the executor's tests and benchmarks on a card."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from forge.evalpool.judge.compiler.binary import Failure, FailureKind
from forge.evalpool.judge.program.format import Alternative, Choice, Descriptor, Options, Program
from tests.evalpool.execute import kernels
from tests.evalpool.execute.made_programs import Made, use

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(slots=True, kw_only=True)
class Case:
    """A program, tensors for it, and what it must answer."""

    made: Made
    program: Program
    inputs: list[torch.Tensor]
    expected: Callable[..., Any]
    """From inputs to outputs."""
    eager: Callable[[], Any] | None = None
    """The same by Triton's own launcher or by torch, for do_bench."""


def even(**sizes: int) -> tuple[str, ...]:
    """Arguments that Triton specialises: multiples of 16."""
    return tuple(name for name, size in sizes.items() if size % 16 == 0)


def blocks(n: int, size: int) -> int:
    return -(-n // size)


def add(n: int = 1 << 24) -> Case:
    made = Made()
    x, y, out = made.input([n]), made.input([n]), made.tensor([n])
    types = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32"}
    kernel = made.kernel(kernels.add_kernel, types, {"BLOCK": 1024}, even=even(n=n))
    made.nodes.append(made.launch(kernel, (blocks(n, 1024), 1, 1), use(x), use(y), use(out), n))
    a, b = torch.randn(n, device=DEVICE), torch.randn(n, device=DEVICE)
    c = torch.empty_like(a)
    return Case(
        made=made,
        program=made.done(out),
        inputs=[a, b],
        expected=lambda x, y: [x + y],
        eager=lambda: kernels.add_kernel[(blocks(n, 1024),)](a, b, c, n, BLOCK=1024),
    )


def softmax(rows: int = 8192, num: int = 4096) -> Case:
    made = Made()
    x, out = made.input([rows, num]), made.tensor([rows, num])
    types = {"x": "*fp32", "out": "*fp32", "num": "i32"}
    kernel = made.kernel(
        kernels.softmax_kernel,
        types,
        {"BLOCK": 4096},
        options=Options(num_warps=8),
        even=even(num=num),
    )
    made.nodes.append(made.launch(kernel, (rows, 1, 1), use(x), use(out), num))
    a = torch.randn(rows, num, device=DEVICE)
    b = torch.empty_like(a)
    return Case(
        made=made,
        program=made.done(out),
        inputs=[a],
        expected=lambda x: [torch.softmax(x, -1)],
        eager=lambda: kernels.softmax_kernel[(rows,)](a, b, num, BLOCK=4096, num_warps=8),
    )


CONFIGURATIONS = (
    (64, 64, 32, 4, 2),
    (128, 128, 64, 8, 3),
    (128, 256, 64, 8, 4),
    (128, 256, 128, 8, 6),
)
"""BM, BN, BK, warps, stages; the last needs more shared memory than a card has."""


def matmul(size: int = 2048, *, is_fixed: bool = False) -> Case:
    made = Made()
    a, b = made.input([size, size], "float16"), made.input([size, size], "float16")
    out = made.tensor([size, size], "float16")
    types = {"a": "*fp16", "b": "*fp16", "c": "*fp16", "M": "i32", "N": "i32", "K": "i32"}
    alternatives = []
    for bm, bn, bk, warps, stages in CONFIGURATIONS:
        constants = {"BM": bm, "BN": bn, "BK": bk}
        options = Options(num_warps=warps, num_stages=stages)
        kernel = made.kernel(
            kernels.matmul_kernel, types, constants, options=options, even=("M", "N", "K")
        )
        grid = (blocks(size, bm), blocks(size, bn), 1)
        launch = made.launch(kernel, grid, use(a), use(b), use(out), size, size, size)
        alternatives.append(Alternative(label=f"{bm} {bn} {bk}", nodes=(launch,)))
    if is_fixed:
        made.nodes += alternatives[1].nodes
    else:
        made.nodes.append(Choice(alternatives=tuple(alternatives)))
    x = torch.randn(size, size, device=DEVICE, dtype=torch.float16)
    y = torch.randn(size, size, device=DEVICE, dtype=torch.float16)
    return Case(made=made, program=made.done(out), inputs=[x, y], expected=lambda x, y: [x @ y])


def described(rows: int = 4096, columns: int = 4096) -> Case:
    made = Made()
    x, out = made.input([rows, columns]), made.tensor([rows, columns])
    kind = "tensordesc<fp32[64, 64]>"
    types = {"x": kind, "out": kind, "M": "i32", "N": "i32"}
    kernel = made.kernel(kernels.described_kernel, types, {"BM": 64, "BN": 64}, even=("M", "N"))

    def descriptor(tensor: int) -> Descriptor:
        return Descriptor(
            tensor=tensor, shape=(rows, columns), strides=(columns, 1), block_shape=(64, 64)
        )

    sizes = (rows, columns, columns, 1)  # shape and strides, as Triton passes them
    arguments = (descriptor(x), *sizes, descriptor(out), *sizes, rows, columns)
    made.nodes.append(made.launch(kernel, (rows // 64, columns // 64, 1), *arguments))
    a = torch.randn(rows, columns, device=DEVICE)
    return Case(made=made, program=made.done(out), inputs=[a], expected=lambda x: [x * 2])


def described_there(rows: int = 4096, columns: int = 4096) -> Case:
    made = Made()
    x, out = made.input([rows, columns]), made.tensor([rows, columns])
    types = {"x": "*fp32", "out": "*fp32", "M": "i32", "N": "i32"}
    kernel = made.kernel(kernels.made_here_kernel, types, {"BM": 64, "BN": 64}, even=("M", "N"))
    grid = (rows // 64, columns // 64, 1)
    made.nodes.append(made.launch(kernel, grid, use(x), use(out), rows, columns))
    a = torch.randn(rows, columns, device=DEVICE)
    return Case(made=made, program=made.done(out), inputs=[a], expected=lambda x: [x * 2])


def kept(n: int, policy: str) -> Case:
    made = Made()
    x, out = made.input([n]), made.tensor([n])
    types = {"x": "*fp32", "out": "*fp32", "n": "i32"}
    kernel = made.kernel(kernels.kept_kernel, types, {"BLOCK": 1024, "POLICY": policy})
    made.nodes.append(made.launch(kernel, (blocks(n, 1024), 1, 1), use(x), use(out), n))
    a = torch.randn(n, device=DEVICE)
    return Case(made=made, program=made.done(out), inputs=[a], expected=lambda x: [x + 1])


def misbehaving(function: Any, n: int = 1000, *, by: int | None = None) -> Case:
    """A copy by a kernel that does something else besides."""
    made = Made()
    x, out = made.input([n]), made.tensor([n])
    types = {"x": "*fp32", "out": "*fp32", "n": "i32"} | ({} if by is None else {"by": "i64"})
    kernel = made.kernel(function, types, {"BLOCK": 1024})
    extra = () if by is None else (by,)
    made.nodes.append(made.launch(kernel, (1, 1, 1), use(x), use(out), n, *extra))
    a = torch.zeros(n, device=DEVICE)
    return Case(made=made, program=made.done(out), inputs=[a], expected=lambda x: [x])


def without_binary(case: Case, number: int) -> Case:
    """The same with one kernel that did not compile."""
    failure = Failure(kind=FailureKind.COMPILE_ERROR, message="ptxas ran out of registers")
    case.made.binaries[number] = failure
    return case
