"""Parts of a problem's file: constructor arguments, input sets, tensors on a device."""

import types
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from forge.evalpool.judge.numbers.called import Unjudgeable, on_device
from forge.evalpool.judge.numbers.given import call, constructor_arguments, list_sets, make_inputs
from forge.evalpool.judge.reference.construct import run_eagerly
from forge.records.problem import select_input_set

HEAD = "import torch\ndef get_inputs(n=2):\n    return [torch.randn(n, 3)]\n"


def listed(returned: str, *, head: str = HEAD) -> list[str]:
    return list_sets(f"{head}def get_input_sets():\n    return {returned}\n", file="p.py")


def made(returned: str, number: int) -> list[object]:
    module = types.ModuleType("problem")
    source = select_input_set(f"{HEAD}def get_input_sets():\n    return {returned}\n", number)
    exec(source, module.__dict__)
    return make_inputs(module)


@pytest.mark.parametrize(
    ("returned", "names"),
    [
        ("[[torch.randn(4, 3)], [torch.ones(5, dtype=torch.int64), 7]]",
         ["float32[4, 3]", "int64[5], 7"]),
        ("[lambda: [torch.randn(4, 3)], lambda: (torch.randn(6), None)]",
         ["float32[4, 3]", "float32[6], None"]),
        ("[dict(n=4), {'n': 5}]", ["n=4", "n=5"]),
        ("[get_inputs(), lambda: get_inputs(9), {'n': 4}]",
         ["float32[2, 3]", "float32[9, 3]", "n=4"]),
        ("[[[torch.randn(2), torch.randn(3)]]]", ["[float32[2], float32[3]]"]),
        ("[[1, 2, 3, 4, 5, 6]]", ["1, 2, 3, 4, and 2 more"]),
        ("[[]]", ["no arguments"]),
    ],
)  # fmt: skip
def test_sets_are_named_by_their_keywords_or_by_types_and_shapes(
    returned: str, names: list[str]
) -> None:
    assert listed(returned) == names


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("[]", "returns 0 sets; 1 to 16 allowed"),
        ("[[1]] * 17", "returns 17 sets"),
        ("None", "returns a NoneType; a list is needed"),
        ("torch.ones(3)", "returns a Tensor; a list is needed"),
        ("[3]", "set 0 of get_input_sets() gives a int; a list of arguments, a function"),
        ("[[1], lambda: 3]", "set 1 of get_input_sets() gives a int"),
        ("[{'n': 4}, {'n': 5}, {'n': 4}]", "has n=4 twice; each set once"),
    ],
)
def test_a_list_that_is_none_is_refused(returned: str, words: str) -> None:
    with pytest.raises(Unjudgeable) as error:
        listed(returned)
    assert words in str(error.value)


def test_an_error_of_the_file_is_its_own() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'm'"):
        made("[{'m': 4}]", 0)
    with pytest.raises(ZeroDivisionError):
        listed("1 / 0")


def test_listing_makes_no_tensor_where_the_file_runs_without() -> None:
    assert listed("[[torch.empty(1 << 50)]]") == [f"float32[{1 << 50}]"]


def test_a_file_that_needs_values_is_listed_with_them() -> None:
    head = "import numpy\nimport torch\n"
    returned = "[[torch.from_numpy(numpy.ones(3)), torch.ones(2).sum().item()]]"
    assert listed(returned, head=head) == ["float64[3], 2.0"]


@pytest.mark.parametrize(
    "returned", ["[[torch.ones(4)], [torch.zeros(5)]]", "[lambda: 1, lambda: [torch.zeros(5)]]"]
)
def test_the_selected_set_alone_is_made(returned: str) -> None:
    (one,) = made(returned, 1)
    assert torch.equal(one, torch.zeros(5))  # pyright: ignore[reportArgumentType]


def test_get_inputs_keeps_its_meaning_for_the_file_itself() -> None:
    (one,) = made("[get_inputs(), {'n': 6}]", 0)
    assert isinstance(one, torch.Tensor)
    assert one.shape == (2, 3)
    (one,) = made("[get_inputs(), {'n': 6}]", 1)
    assert isinstance(one, torch.Tensor)
    assert one.shape == (6, 3)


class Sizes:
    def __init__(self, size: int = 1, *, scale: int = 1) -> None:
        self.made = (size, scale)


class Plain:
    def __init__(self) -> None:
        self.made = ()


class Listed:
    """Takes a list and a dict themselves, as no file of KernelBook does."""

    def __init__(self, sizes: list[int], names: dict[str, int]) -> None:
        self.made = (sizes, names)


@pytest.mark.parametrize(
    ("model", "found", "made"),
    [
        (Plain, [], ()),
        (Plain, [[], {}], ()),
        (Sizes, [3], (3, 1)),
        (Sizes, ([3], {"scale": 2}), (3, 2)),
        (Sizes, [[], {"scale": 2}], (1, 2)),
        (Listed, [[3], {"a": 2}], ([3], {"a": 2})),
    ],
)
def test_a_model_is_constructed_with_what_its_problem_returns(
    model: Any, found: Any, made: tuple[Any, ...]
) -> None:
    module = SimpleNamespace(Model=model, get_init_inputs=lambda: found)
    assert call(model, constructor_arguments(module, "Model")).made == made


def test_a_problem_without_get_init_inputs_gives_no_arguments() -> None:
    assert constructor_arguments(SimpleNamespace(Model=Plain), "Model") == []


def test_tensors_without_a_device_are_made_on_the_given_one():
    assert on_device("meta", lambda: torch.ones(3)).device.type == "meta"
    assert on_device("cpu", lambda: torch.ones(3)).device.type == "cpu"


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.from_numpy(torch.ones(3).numpy()),
        lambda: torch.ones(3).index_add(0, torch.tensor([1]), torch.ones(1, device="cpu")),
    ],
)
def test_code_that_needs_tensors_of_the_host_makes_them_there(make):
    assert torch.equal(on_device("meta", make), make())


@pytest.mark.parametrize("error", [ValueError("a meta tensor"), RuntimeError("sizes differ")])
def test_other_errors_are_raised_at_once(error):
    calls = []

    def fail():
        calls.append(None)
        raise error

    with pytest.raises(type(error), match=str(error)):
        on_device("meta", fail)
    assert len(calls) == 1


def refuse(*_):
    raise RuntimeError("no compiler")


@pytest.mark.parametrize(
    ("source", "is_eager"), [("@torch.compile", True), ("import torch", False)]
)
def test_a_source_that_names_the_compiler_runs_without(source, is_eager):
    double = torch.compile(lambda x: x * 2, backend=refuse)
    run_eagerly(source)
    try:
        if is_eager:
            assert double(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]
        else:
            with pytest.raises(RuntimeError, match="no compiler"):
                double(torch.ones(3))
    finally:
        torch.compiler.set_stance("default")
