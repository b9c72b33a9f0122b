"""Each value that the host has read stands in the program, behind what computed it; captures for
other inputs differ by sizes, grids, scalars and branches alone."""

import dataclasses
import time
from typing import Any

import pytest

from forge.evalpool.judge.program.format import (
    Alternative,
    Choice,
    Node,
    Origin,
    Program,
    Storage,
    Tensor,
    Value,
)
from forge.evalpool.judge.program.questions import (
    MAX_FLOATS,
    MAX_VALUES,
    Question,
    concealed,
    contains,
    deviation,
    excess,
    unanswerable,
)
from tests.evalpool.program.programs import build, dense, launch, op, pointers

KERNELS = [pointers("sum", "*fp32", "*fp32"), pointers("fill", "*fp32", "fp32")]
SUM = launch(0, "t0", "t2", line=4)


def made(*forward: Any, outputs: tuple[int, ...] = (3,), dtype: str = "float32") -> Program:
    """Tensors: the input, a parameter, the sum's buffer of one element, the result."""
    program = build(
        inputs=[(4,)],
        parameters={"w": (1,)},
        buffers=[(1,), (4,)],
        kernels=KERNELS,
        forward=list(forward),
        outputs=list(outputs),
    )
    tensors = (*program.tensors[:2], dense(2, 1, dtype=dtype), *program.tensors[3:])
    return dataclasses.replace(program, tensors=tensors)


def value(answer: float, tensor: int = 2) -> Value:
    return Value(tensor=tensor, answer=answer, line=5)


def fill(answer: float) -> Any:
    return launch(1, "t3", answer, line=6)


ASKED = Question(made(SUM, outputs=(2,)), (0.5,))
HIDDEN = "values were read on the host that the program does not read"


def test_a_value_that_the_program_reads_is_not_concealed() -> None:
    assert concealed(made(SUM, value(0.5), fill(0.5)), [ASKED, ASKED]) is None
    assert concealed(made(SUM, fill(0.5)), []) is None


@pytest.mark.parametrize(
    "forward",
    [
        (SUM, fill(0.5)),  # the value is left out
        (value(0.5), fill(0.5)),  # what computed it is left out
        (value(0.5), SUM, fill(0.5)),  # it is read before it is computed
        (SUM, value(0.25), fill(0.5)),  # another answer
        (dataclasses.replace(SUM, grid=(2, 1, 1)), value(0.5), fill(0.5)),  # on another grid
        (launch(0, "t1", "t2", line=4), value(0.5), fill(0.5)),  # of another tensor
        (SUM, value(0.5, tensor=1), fill(0.5)),  # the value of another tensor
    ],
)
def test_a_program_without_what_was_asked_is_refused(forward: Any) -> None:
    assert concealed(made(*forward), [ASKED]) == HIDDEN


def test_several_values_of_one_question_stand_together() -> None:
    pair = Question(made(SUM, outputs=(2, 2)), (1.0, float("nan")))
    assert concealed(made(SUM, value(1.0), value(float("nan")), fill(1.0)), [pair]) is None
    assert concealed(made(SUM, value(float("nan")), value(1.0), fill(1.0)), [pair]) == HIDDEN


def test_a_call_may_do_more_than_the_one_that_asked() -> None:
    first = Question(made(fill(1.0), SUM, outputs=(2,)), (0.5,))  # a state of its first call
    assert concealed(made(SUM, fill(2.0), value(0.5), fill(0.5)), [first]) is None
    assert concealed(made(fill(2.0), value(0.5), SUM, fill(0.5)), [first]) == HIDDEN


def test_a_choice_hides_no_alternative_that_reads_an_input() -> None:
    alternatives = tuple(
        Alternative(label=str(at), nodes=one) for at, one in enumerate([(), (SUM,)])
    )
    asked = Question(made(Choice(alternatives=alternatives, key="k"), outputs=(2,)), (0.5,))
    assert asked.reads_inputs
    assert concealed(made(fill(0.5)), [asked]) == HIDDEN
    shown = made(Choice(alternatives=alternatives, key="k"), value(0.5), fill(0.5))
    assert concealed(shown, [asked]) is None


def test_integers_carry_no_floats() -> None:
    sizes = [value(1023)] * 60
    assert concealed(made(*sizes, fill(1.0), dtype="int64"), []) is None
    many = made(*[value(1 << 60)] * 20, fill(1.0), dtype="int64")
    assert (
        concealed(many, [])
        == "1220 bits of integers read on the host; 1024 are allowed in one call"
    )


@pytest.mark.parametrize(
    ("outputs", "is_one"), [((2,), True), ((2, 1), True), ((0,), False), ((), False)]
)
def test_a_question_is_about_single_elements(outputs: tuple[int, ...], is_one: bool) -> None:
    assert (unanswerable(made(SUM, outputs=outputs)) is None) == is_one


def test_values_of_parameters_alone_may_be_kept() -> None:
    of_parameter = Question(made(outputs=(1,)), (2.0,))
    assert not of_parameter.reads_inputs
    assert concealed(made(fill(2.0)), [of_parameter]) is None


def test_few_floats_and_some_integers_may_be_read() -> None:
    few = [value(float(i)) for i in range(MAX_FLOATS)]
    assert concealed(made(SUM, *few), []) is None
    said = concealed(made(SUM, *few, value(0.5)), [])
    assert said == "9 floats read on the host in one call; 8 are allowed"
    some = [Value(tensor=2, answer=i, line=5) for i in range(MAX_VALUES)]
    assert concealed(made(SUM, *some, dtype="int64"), []) is None
    said = concealed(made(SUM, *some, *some, dtype="int64"), [])
    assert said == "128 values read on the host in one call; 64 are allowed"


def test_a_capture_may_not_ask_without_end() -> None:
    assert excess(3 * MAX_VALUES) is None
    assert excess(3 * MAX_VALUES + 1) == "more than 64 values of tensors read on the host"


def test_a_fill_takes_no_number_that_the_host_computed() -> None:
    def filled(answer: float, by: float) -> Program:
        zero = op("aten.fill_.Scalar", "t3", by, results=(3,), line=6)
        return made(SUM, value(answer), zero)

    assert deviation(filled(0.5, 0.5), filled(0.7, 0.7)) is None
    assert deviation(filled(0.5, 0.0), filled(0.7, 0.0)) is None
    said = deviation(filled(0.5, 1.5), filled(0.7, 1.7))
    assert said.endswith("is not in the program of the first input set")


# --- captures for other inputs


COUNTERS = [pointers("count", "*fp32", "i32"), pointers("fill", "*fp32", "i32")]


def reading(answer: int, *forward: Any, **more: Any) -> Program:
    """A program that reads how many elements there are, then launches over them."""
    made = build(
        inputs=[(1,)],
        parameters={"w": (8,)},
        init_buffers=[(8,)],
        buffers=[(answer,)],
        kernels=COUNTERS,
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
        reading(4, kernels=(COUNTERS[0], pointers("fill", "*fp32", "i32", ttir=one)))
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
        deviation(reading(4), reading(4, kernels=(COUNTERS[0], pointers("fill", "*fp32", "i64")))),
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
        one, tensors=(*tensors, held), storages=(*one.storages, storage), constants=(content,)
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
