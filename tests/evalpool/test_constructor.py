"""Constructor arguments: a list of positional ones, or a pair of positional and named ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from forge.evalpool.judge.numbers.constructor import call, constructor_arguments


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
