"""Calls a torch operation of a program: its name becomes a function, its literals torch's values.

Used by `run.py`, which holds a candidate's operations against the closed table (`program/ops.py`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from forge.evalpool.judge.program.format import NamedConstant, TensorUse

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.evalpool.judge.program.format import Literal, Op

NAMESPACES = ("aten", "prims")
CONSTANTS = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}


class UnknownOperation(Exception):
    """This torch has no such operation."""


@cache
def operation(name: str) -> Callable[..., Any]:
    """The overload `aten.mm.default`. Raises UnknownOperation."""
    parts = name.split(".")
    if len(parts) != 3 or parts[0] not in NAMESPACES:
        raise UnknownOperation(f"no operation {name[:80]}")
    try:
        return getattr(getattr(getattr(torch.ops, parts[0]), parts[1]), parts[2])
    except (AttributeError, RuntimeError) as error:
        raise UnknownOperation(f"no operation {name[:80]}") from error


@cache
def takes_device(name: str) -> bool:
    """True if the operation makes tensors on a device of the caller's choice."""
    schema = getattr(operation(name), "_schema", None)
    return schema is not None and any(one.name == "device" for one in schema.arguments)


def call(
    op: Op, tensor: Callable[[int], torch.Tensor], *, device: torch.device
) -> list[torch.Tensor]:
    """Runs an operation; returns the tensors among its results, in order."""
    function = operation(op.name)
    arguments = [value_of(one, tensor) for one in op.arguments]
    keywords = {name: value_of(one, tensor) for name, one in op.keywords.items()}
    if takes_device(op.name):
        keywords["device"] = device
    return list(_tensors(function(*arguments, **keywords)))


def value_of(literal: Literal, tensor: Callable[[int], torch.Tensor]) -> Any:
    """A literal as torch takes it; a tuple stands for a list."""
    if isinstance(literal, TensorUse):
        return tensor(literal.tensor)
    if isinstance(literal, NamedConstant):
        value = getattr(torch, literal.name, None)
        if literal.kind not in CONSTANTS or not isinstance(value, CONSTANTS[literal.kind]):
            raise UnknownOperation(f"no {literal.kind} {literal.name[:80]}")
        return value
    if isinstance(literal, tuple):
        return [value_of(one, tensor) for one in literal]
    return literal


def _tensors(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, list | tuple):
        return [found for one in result for found in _tensors(one)]
    return []
