"""Captures for other inputs differ by sizes, grids, scalars and branches alone."""

import dataclasses
import time
from typing import Any

from forge.evalpool.judge.program.format import Node, Origin, Program, Storage, Tensor, Value
from forge.evalpool.judge.program.questions import contains, deviation
from tests.evalpool.program.programs import build, dense, launch, op, pointers

KERNELS = [pointers("count", "*fp32", "i32"), pointers("fill", "*fp32", "i32")]


def reading(answer: int, *forward: Any, **more: Any) -> Program:
    """A program that reads how many elements there are, then launches over them."""
    made = build(
        inputs=[(1,)],
        parameters={"w": (8,)},
        init_buffers=[(8,)],
        buffers=[(answer,)],
        kernels=KERNELS,
        init=[op("aten.clone.default", "t1", results=(2,))],
        forward=[
            launch(0, "t0", 1, line=4),
            Value(tensor=0, answer=float(answer), line=5),
            *(forward or [launch(1, "t3", answer, line=6)]),
        ],
        outputs=[3],
    )
    return dataclasses.replace(made, **more)


def test_sizes_grids_and_scalars_may_differ() -> None:
    assert deviation(reading(4), reading(1000)) is None


def test_a_branch_among_shown_nodes_may_be_taken() -> None:
    twice = reading(4, launch(1, "t3", 1, line=6), launch(1, "t3", 2, line=6))
    assert deviation(reading(4), twice) is None


def test_a_size_may_be_a_multiple_of_16_for_one_set_only() -> None:
    head = "tt.func public @fill(%p0: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %p1: i32"
    texts = [head + " {tt.divisibility = 16 : i32}) {", head + ") {", head + "0) {"]
    first, other, changed = (
        reading(4, kernels=(KERNELS[0], pointers("fill", "*fp32", "i32", ttir=one)))
        for one in texts
    )
    assert deviation(first, other) is None
    assert deviation(other, first) is None
    assert deviation(first, changed) is not None


def test_nothing_new_appears() -> None:
    message = "is not in the program of the first input set"
    zeroed = op("aten.zero_.default", "t3", results=(3,), line=6)
    found = [
        deviation(reading(4), reading(4, zeroed)),
        deviation(reading(4), reading(4, launch(0, "t3", 4, line=6))),
        deviation(reading(4), reading(4, kernels=(KERNELS[0], pointers("fill", "*fp32", "i64")))),
    ]
    assert [bool(said and said.endswith(message)) for said in found] == [True] * 3
    assert found[0] == f"op 1 of 1: aten.zero_, line 6: {message}"


def test_constants_are_those_of_the_first_set() -> None:
    held = Storage(num_bytes=1, origin=Origin.CONSTANT)
    storages = (*reading(4).storages, held)
    one = reading(4, storages=storages, constants=(b"a",))
    other = reading(4, storages=storages, constants=(b"b",))
    assert deviation(one, one) is None
    assert deviation(one, other) == "a constant depends on values that the host read"


def holding(values: list[int], dtype: str = "int32", *, size: int = 64, read: str = "") -> Program:
    """A program with a constant, beside an output of `size` elements."""
    one = reading(4)
    content = b"".join(value.to_bytes(4, "little", signed=True) for value in values)
    tensors = list(one.tensors)
    tensors[3] = dataclasses.replace(tensors[3], shape=(size,))
    if read:
        tensors[0] = dataclasses.replace(tensors[0], dtype=read)
    held = Tensor(storage=len(one.storages), offset=0, shape=(2,), strides=(1,), dtype=dtype)
    storage = Storage(num_bytes=len(content), origin=Origin.CONSTANT)
    return dataclasses.replace(
        one,
        tensors=(*tensors, held),
        storages=(*one.storages, storage),
        constants=(content,),
    )


def test_a_few_small_integers_may_depend_on_integers_that_the_host_read() -> None:
    first = holding([0, 1, 1, 3], read="int64")
    assert deviation(first, holding([0, 2, 1, 65536], read="int64")) is None
    assert deviation(first, holding([0, 2], read="int64")) is None
    refused = [
        holding([0, 2], read="float32"),
        holding([0, 2], "float32", read="int64"),
        holding([0, 65537], read="int64"),
        holding([0, -65537], read="int64"),
        holding([0, 1, 2, 3, 4], read="int64"),
        holding([0, 1, 1, 2], size=63, read="int64"),
    ]
    said = "a constant depends on values that the host read"
    assert [deviation(first, one) for one in refused] == [said] * len(refused)


def test_init_is_the_same() -> None:
    cast = op("aten._to_copy.default", "t1", results=(2,))
    assert deviation(reading(4), reading(4, init=(cast,))) == "init differs between input sets"
    storages = list(reading(4).storages)
    storages[2] = dataclasses.replace(storages[2], num_bytes=64)
    larger = reading(4, storages=tuple(storages))
    assert deviation(reading(4), larger) == "init differs between input sets"


def test_outputs_are_as_many() -> None:
    said = deviation(reading(4), reading(4, outputs=(3, 0), returned="tuple"))
    assert said == "target, version or type of result differ between input sets"
    said = deviation(reading(4, returned="tuple"), reading(4, outputs=(3, 0), returned="tuple"))
    assert said == "1 outputs for one input set, 2 for another"


def test_a_long_kernel_is_compared_once() -> None:
    """A program launches it thousands of times, from as many lines."""

    def made() -> Program:
        kernel = dataclasses.replace(
            pointers("k", "*fp32", ttir=f"// {'%a: ' * 200_000}"), lines=(1,) * 100_000
        )
        launches: list[Node] = [launch(0, "t0", line=line) for line in range(1, 2001)]
        constant = Storage(num_bytes=4 << 20, origin=Origin.CONSTANT)
        program = build(inputs=[(4,)], kernels=[kernel], forward=launches, outputs=[0])
        return dataclasses.replace(
            program,
            storages=(*program.storages, constant),
            tensors=(*program.tensors, dense(1, 1 << 20)),
            forward=(*launches, *[op("aten.add.Tensor", "t1", "t1", results=(0,))] * 2000),
            constants=(bytes(4 << 20),),
        )

    first, other = made(), made()
    began = time.thread_time()
    assert deviation(first, other) is None
    assert contains(first, dataclasses.replace(other, outputs=()), [])
    assert time.thread_time() - began < 1.5
