"""Small programs that the tests of the room share."""

import dataclasses
from typing import Any

from forge.evalpool.judge.program.format import (
    Alternative,
    Choice,
    Descriptor,
    Kernel,
    Launch,
    Literal,
    NamedConstant,
    Node,
    Op,
    Options,
    Origin,
    Parameter,
    Program,
    Section,
    Storage,
    Tensor,
    TensorUse,
    Value,
)

TTIR = "module { tt.func public @add(%x: !tt.ptr<f32>) { tt.return } }"
OTHER = TTIR.replace("@add", "@described")


def pointers(name: str, *types: str, ttir: str = TTIR) -> Kernel:
    """A kernel with parameters `p0`, `p1`, ... of these types."""
    parameters = tuple(Parameter(name=f"p{at}", type=type) for at, type in enumerate(types))
    return Kernel(name=name, ttir=ttir, options=Options(), parameters=parameters)


def launch(kernel: int, *arguments: int | float | str | None, line: int = 0) -> Launch:
    """A launch; a text `t3` stands for tensor 3, anything else for itself."""
    made = tuple(TensorUse(tensor=int(a[1:])) if isinstance(a, str) else a for a in arguments)
    return Launch(kernel=kernel, grid=(1, 1, 1), arguments=made, line=line)


def op(
    name: str, *arguments: Any, results: tuple[int, ...] = (), line: int = 0, **keywords: Any
) -> Op:
    """An operation; texts `t3` stand for tensors, in lists too."""
    return Op(
        name=name,
        arguments=tuple(literal(a) for a in arguments),
        keywords={key: literal(value) for key, value in keywords.items()},
        results=results,
        line=line,
    )


def literal(value: Any) -> Literal:
    if isinstance(value, str) and value[:1] == "t" and value[1:].isdigit():
        return TensorUse(tensor=int(value[1:]))
    if isinstance(value, list | tuple):
        return tuple(literal(inner) for inner in value)
    return value


def dense(storage: int, *shape: int, dtype: str = "float32") -> Tensor:
    """A contiguous tensor from the start of its storage."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return Tensor(storage=storage, offset=0, shape=shape, strides=tuple(strides), dtype=dtype)


def build(
    *,
    inputs: list[tuple[int, ...]],
    parameters: dict[str, tuple[int, ...]] | None = None,
    buffers: list[tuple[int, ...]] | None = None,
    init_buffers: list[tuple[int, ...]] | None = None,
    kernels: list[Kernel] | None = None,
    init: list[Node] | None = None,
    forward: list[Node],
    outputs: list[int],
) -> Program:
    """A program of fp32 tensors, each the whole of its storage.

    Tensors are numbered in this order: inputs, parameters, init_buffers, buffers.
    """
    shapes: list[tuple[int, ...]] = []
    storages: list[Storage] = []

    def add(shape: tuple[int, ...], origin: Origin, **more: Any) -> None:
        num_bytes = 4
        for size in shape:
            num_bytes *= size
        shapes.append(shape)
        storages.append(Storage(num_bytes=num_bytes, origin=origin, **more))

    for at, shape in enumerate(inputs):
        add(shape, Origin.INPUT, index=at)
    for name, shape in (parameters or {}).items():
        add(shape, Origin.PARAMETER, name=name)
    for shape in init_buffers or []:
        add(shape, Origin.ALLOCATION, section=Section.INIT)
    for shape in buffers or []:
        add(shape, Origin.ALLOCATION)
    return Program(
        target="cuda:90:32",
        storages=tuple(storages),
        tensors=tuple(dense(at, *shape) for at, shape in enumerate(shapes)),
        kernels=tuple(
            kernels if kernels is not None else [pointers("add", "*fp32", "*fp32", "i32")]
        ),
        init=tuple(init or []),
        forward=tuple(forward),
        outputs=tuple(outputs),
        returned="tensor" if len(outputs) == 1 else "tuple",
        triton="3.6.0",
    )


def addition() -> Program:
    """`y = add(x)` by one launch with a scalar, line 31."""
    return build(
        inputs=[(4, 8)], buffers=[(4, 8)], forward=[launch(0, "t0", "t1", 32, line=31)], outputs=[1]
    )


def tuned() -> Program:
    """An autotuner with two configurations, the second with an operation before its launch."""
    program = addition()
    first = Alternative(label="BLOCK: 32", nodes=(program.forward[0],))
    second = Alternative(
        label="BLOCK: 64",
        nodes=(op("aten.fill_.Scalar", "t1", 0.0, results=(1,)), program.forward[0]),
        restored=(1,),
    )
    choice = Choice(alternatives=(first, second), line=30)
    return dataclasses.replace(program, forward=(choice,))


def everything() -> Program:
    """A program with each kind of record."""
    program = build(
        inputs=[(4, 8), (2,)],
        parameters={"fc.weight": (8, 8)},
        init_buffers=[(8, 8)],
        buffers=[(64, 64), (1,)],
        kernels=[
            pointers("add", "*fp32", "*fp32", "i32"),
            pointers("described", "tensordesc<fp32[16, 32]>", "u1", "fp32", "*kfp32", ttir=OTHER),
        ],
        init=[op("aten.clone.default", "t2", memory_format=None, results=(3,))],
        forward=[
            op(
                "aten.full.default",
                [64, 64],
                -0.0,
                dtype=NamedConstant(kind="dtype", name="float32"),
                results=(4,),
            ),
            launch(0, "t0", "t1", -(2**31)),
            Value(tensor=5, answer=2.5, line=7),
        ],
        outputs=[4, 1],
    )
    made = Descriptor(tensor=4, shape=(64, 64), strides=(64, 1), block_shape=(16, 32))
    described = dataclasses.replace(
        launch(1, None, True, 1.0, None), arguments=(made, True, 1, None)
    )
    constant = Storage(num_bytes=3, origin=Origin.CONSTANT)
    return dataclasses.replace(
        program,
        storages=(*program.storages, constant),
        tensors=(*program.tensors, dense(6, 3, dtype="uint8")),
        forward=(*program.forward, described),
        constants=(b"abc",),
        stateful="forward wrote a table",
    )
