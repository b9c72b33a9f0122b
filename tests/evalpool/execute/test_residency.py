"""Which storages float, how long they live, and how steps are numbered."""

import pytest

from forge.evalpool.judge.execute.call import named_steps
from forge.evalpool.judge.execute.gpu import places
from forge.evalpool.judge.program.format import (
    Alternative,
    Choice,
    Launch,
    Node,
    Op,
    Program,
    Section,
    TensorUse,
)
from tests.evalpool.execute.made_programs import Made


def op(result: int, *arguments: int) -> Op:
    uses = tuple(TensorUse(tensor=one) for one in arguments)
    return Op(name="aten.add.Tensor", arguments=(uses,), results=(result,))


def launch(*arguments: int) -> Launch:
    uses = tuple(TensorUse(tensor=one) for one in arguments)
    return Launch(kernel=0, grid=(1, 1, 1), arguments=uses)


def program(*forward: Node, init: tuple[Node, ...] = (), outputs: tuple[int, ...] = ()) -> Program:
    """Storage 0 is an input, storage 9 belongs to init; tensor n is all of storage n."""
    made = Made(init=[*init], nodes=[*forward])
    made.input([1])
    for number in range(1, 10):
        made.tensor([1], section=Section.INIT if number == 9 else Section.FORWARD)
    return made.done(*outputs)


def test_results_of_operations_float_until_their_last_use() -> None:
    found = places.find_residency(
        program(op(1, 0), op(2, 1), launch(1, 3), op(4, 3, 2), outputs=(4,))
    )
    assert found.floating == {1, 2, 4}
    assert found.ends == {2: (1,), 3: (2,)}


@pytest.mark.parametrize(
    "made",
    [program(launch(1), op(1, 0)), program(op(1, 1)), program(op(0, 1), init=(op(9),))],
    ids=["written by a kernel first", "in place", "of inputs and of init"],
)
def test_other_storages_stay(made: Program) -> None:
    assert places.find_residency(made).floating == frozenset()


def test_results_inside_of_a_choice_stay() -> None:
    choice = Choice(alternatives=(Alternative(label="", nodes=(op(1, 0),)),))
    found = places.find_residency(program(op(2, 0), choice, op(3, 1, 2)))
    assert found.floating == {2, 3}
    assert found.ends == {2: (2, 3)}


def test_a_use_inside_of_a_choice_is_a_use() -> None:
    alternatives = (Alternative(label="", nodes=(launch(2, 1),)),)
    found = places.find_residency(program(op(2, 0), Choice(alternatives=alternatives)))
    assert found.ends == {1: (2,)}


def test_steps_count_init_then_forward_and_a_choice_before_its_nodes() -> None:
    choice = Choice(alternatives=(Alternative(label="", nodes=(op(1, 0), op(1, 0))),), line=4)
    steps = named_steps(program(choice, op(2, 0), init=(op(9),)))
    assert [one.line for one in steps] == [0, 4, 0, 0, 0]
    assert steps[1].what == "choice among 1 configurations"
