# pyright: strict
"""Steps of undefined values (`ub.poison`), `tl.assume` and assertions. Called by `dispatch`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forge.evalpool.judge.ttir.symbolic import Symbolic
from forge.evalpool.judge.ttir.types import Scalar, element_of, shape_of
from forge.evalpool.judge.ttir.values import Unsupported, dtype_of

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.memory.launch import Group
    from forge.evalpool.judge.ttir.plan import Environment, Step
    from forge.evalpool.judge.ttir.tree import Operation


def poison(operation: Operation) -> Step:
    """`ub.poison`: zeros."""
    (result,) = operation.results
    kind = operation.types.results[0]
    element = element_of(kind)
    rank = len(shape_of(kind))

    def step(env: Environment, group: Group) -> None:
        if isinstance(element, Scalar):
            env[result] = np.zeros((1,) * (rank + 1), dtype_of(element))
        else:
            env[result] = Symbolic.constant(0, rank)

    return step


def assume(operation: Operation) -> Step:
    """`tl.assume`: what a card's compiler takes for true must be true, or the kernel means nothing
    there."""
    (condition,) = operation.operands
    line = operation.line

    def step(env: Environment, group: Group) -> None:
        if not np.all(env[condition]):
            raise Unsupported(f"line {line}: tl.assume of something that is false")

    return step


def assertion(operation: Operation) -> Step:
    """`tl.device_assert`, which is in a text only where a kernel asks for it (`debug=True`)."""
    condition = operation.operands[0]
    line = operation.line

    def step(env: Environment, group: Group) -> None:
        if not np.all(env[condition]):
            raise Unsupported(f"line {line}: tl.device_assert of something that is false")

    return step
