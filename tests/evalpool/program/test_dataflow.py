"""Sources of contents: inputs, launches, sections; nodes that are alive or dead."""

import dataclasses
import itertools
import time
from typing import Any

import pytest

from forge.evalpool.judge.program.dataflow import (
    Access,
    Content,
    Flow,
    Lookup,
    covers_storage,
    trace,
)
from forge.evalpool.judge.program.format import Node, Program, Tensor, Value
from forge.evalpool.judge.program.walk import variants
from tests.evalpool.program.programs import build, launch, op, pointers


def content(inputs: frozenset[int] = frozenset(), **facts: bool) -> Content:
    """A content that the host has not decided about."""
    return Content(inputs=inputs, read=inputs, **facts)


KERNELS = [pointers("kernel", "*fp32", "*fp32")]
KNOWN = {0: [Access.READ, Access.WRITE]}


def flow(program: Program, accesses: Any = None) -> Flow:
    [nodes] = variants(program)
    return trace(program, nodes, accesses)


def built(**more: Any) -> Program:
    """Inputs are tensors 0 and 1, the parameter is 2, init's buffer 3, the others 4 and 5."""
    return build(
        inputs=[(4,), (4,)],
        parameters={"w": (4,)},
        init_buffers=[(4,)],
        buffers=[(4,), (4,)],
        kernels=KERNELS,
        outputs=[5],
        **more,
    )


LAUNCHED = launch(0, "t0", "t5")


@pytest.mark.parametrize(
    ("forward", "inputs", "is_launched"),
    [
        ([launch(0, "t0", "t4"), op("aten.add.Tensor", "t4", "t1", results=(5,))], {0, 1}, True),
        ([LAUNCHED, op("aten.fill_.Scalar", "t5", 0.0, results=(5,))], set(), False),
        ([LAUNCHED, op("aten.add_.Tensor", "t5", "t1", results=(5,))], {0, 1}, True),
        ([LAUNCHED, op("aten.mul.out", "t1", "t1", out="t5", results=(5,))], {1}, False),
        ([op("aten.zeros_like.default", "t0", results=(5,))], set(), False),
        ([op("aten.made_up.default", "t0", "t1", results=(5,))], {0, 1}, False),
    ],
    ids=["follows", "filled", "in place", "out argument", "shape alone", "unknown operation"],
)
def test_content_follows_launches_and_operations(
    forward: list[Node], inputs: set[int], is_launched: bool
) -> None:
    found = flow(built(forward=forward), KNOWN)
    assert found.contents[5] == content(inputs=frozenset(inputs), is_launched=is_launched)
    assert found.contents[0] == content(inputs=frozenset({0}))
    assert 5 in found.writers


def test_a_fill_of_a_part_keeps_what_was_there() -> None:
    program = built(forward=[LAUNCHED, op("aten.fill_.Scalar", "t5", 0.0, results=(5,))])
    half = Tensor(storage=5, offset=0, shape=(2,), strides=(1,), dtype="float32")
    program = dataclasses.replace(program, tensors=(*program.tensors[:5], half))
    assert flow(program, KNOWN).contents[5].is_launched


def test_a_kernel_nothing_is_known_of_may_write_to_all_its_pointers() -> None:
    found = flow(built(forward=[launch(0, "t0", "t1")]))
    assert found.contents[0].inputs == {0, 1}
    assert found.writers == {}


def test_batch_norm_writes_to_its_running_statistics() -> None:
    arguments = ("t0", None, None, "t2", "t3", True, 0.1, 1e-5)
    program = built(forward=[op("aten.native_batch_norm.default", *arguments, results=(5,))])
    assert flow(program).writers.keys() == {2, 3, 5}


def test_a_value_that_the_host_read_reaches_all_that_follows() -> None:
    program = build(
        inputs=[(1,), (4,)],
        buffers=[(4,)],
        kernels=KERNELS,
        forward=[Value(tensor=0, answer=2.0), launch(0, "t1", "t2")],
        outputs=[2],
    )
    assert flow(program, KNOWN).contents[2].inputs == {0, 1}


def test_nodes_on_which_nothing_depends_are_not_live() -> None:
    program = built(
        forward=[
            op("aten.exp.default", "t0", results=(4,)),
            op("aten.exp.default", "t0", results=(5,)),
            launch(0, "t1", "t5"),
            op("aten.zero_.default", "t4", results=(4,)),
        ]
    )
    assert flow(program, KNOWN).live == {"forward[1]", "forward[2]"}
    written = built(forward=[op("aten.relu_.default", "t0", results=(0,))])
    assert flow(written).live == {"forward[0]"}, "an input is the caller's"


def test_a_transposed_tensor_covers_its_storage_and_an_expanded_one_does_not() -> None:
    def covers(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
        view = Tensor(storage=0, offset=0, shape=shape, strides=strides, dtype="float32")
        held = build(inputs=[(3, 4)], forward=[], outputs=[])
        return covers_storage(dataclasses.replace(held, tensors=(view,)), 0)

    assert covers((3, 4), (4, 1))
    assert covers((4, 1, 3), (1, 77, 4))
    assert not covers((3, 4), (0, 1))
    assert not covers((3, 2), (4, 2))


def test_many_launches_of_a_kernel_with_many_lookups_are_read_in_a_moment() -> None:
    """Each of its arguments may choose places in each other."""
    num = 250
    program = build(
        inputs=[(4,)],
        init_buffers=[(4,)],
        kernels=[pointers("k", *["*fp32"] * num)],
        init=[launch(0, *["t1"] * num)],
        forward=[launch(0, "t0", *["t1"] * (num - 1))] * 300,
        outputs=[1],
    )
    began = time.thread_time()
    [nodes] = variants(program)
    pairs = itertools.permutations(range(num), 2)
    lookups = {Lookup(1 << one, 1 << other, 0, is_place=True) for one, other in pairs}
    found = trace(program, nodes, lookups={0: lookups})
    assert 0 < len(found.looked_up) < 10
    assert time.thread_time() - began < 1.0
