# pyright: strict
"""Splits the values of a group of instances that take different ways, and merges them again.

Called by the other files of this room.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from forge.evalpool.judge.ttir.arrange import Value, lanes_of, merge, take
from forge.evalpool.judge.ttir.symbolic import Symbolic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.evalpool.judge.ttir.arrange import Lanes
    from forge.evalpool.judge.ttir.memory.launch import Group
    from forge.evalpool.judge.ttir.plan import Environment
    from forge.evalpool.judge.ttir.values import Array


def split(condition: Array, size: int) -> list[tuple[bool, Lanes | None]]:
    """Both sides of a condition that have instances."""
    first = bool(condition.flat[0])
    if condition.size == 1 or bool((condition == first).all()):
        return [(first, None)]
    return [(True, lanes_of(condition)), (False, lanes_of(~condition))]


def take_any(value: Any, lanes: Lanes) -> Any:
    """`take` for descriptors, too."""
    if value is None or isinstance(value, (np.ndarray, Symbolic)):
        return take(cast("Value | None", value), lanes)
    return replace(
        value,
        base=take(value.base, lanes),
        shape=tuple(take(one, lanes) for one in value.shape),
        strides=tuple(take(one, lanes) for one in value.strides),
    )


def merged(pieces: list[tuple[Lanes, list[Any]]], size: int) -> list[Any]:
    """Values of the whole group, from those of its parts."""
    if len(pieces) == 1:
        return pieces[0][1]
    columns: Any = zip(*(values for _, values in pieces), strict=True)
    return [
        merge([(lanes, value) for (lanes, _), value in zip(pieces, column, strict=True)], size)
        if isinstance(column[0], (np.ndarray, Symbolic))
        else column[0]
        for column in columns
    ]


def subset(
    env: Environment, values: Sequence[int], lanes: Lanes, group: Group
) -> tuple[Environment, Group]:
    """An environment with the values of some instances, and their group."""
    inner = env.copy()
    for value in values:
        inner[value] = take_any(env[value], lanes)
    return inner, group.subset(lanes)
