"""Each value that the host has read stands in the program, behind what computed it."""

import dataclasses
from typing import Any

import pytest

from forge.evalpool.judge.program.format import Alternative, Choice, Program, Value
from forge.evalpool.judge.program.questions import (
    MAX_FLOATS,
    MAX_VALUES,
    Question,
    concealed,
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
