"""Calls torch operations of a program, in the executors of a CPU and of a card.

Only names of the closed table (`program.ops`) are looked up, and literals become torch's values.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from forge.evalpool.judge.program.format import Literal, NamedConstant, Op, TensorUse
from forge.evalpool.judge.program.ops import schemas

CONSTANTS = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}


class UnknownOperation(Exception):
    """The table, or this torch, has no such operation."""


@cache
def operation(name: str) -> Callable[..., Any]:
    """Torch's function for `aten.mm.default`. Raises UnknownOperation."""
    if name not in schemas():
        raise UnknownOperation(f"operation {name[:80]} is not allowed in a program")
    space, function, overload = name.split(".")
    try:
        return getattr(getattr(getattr(torch.ops, space), function), overload)
    except (AttributeError, RuntimeError) as error:
        words = f"operation {name} is not known to torch {torch.__version__}"
        raise UnknownOperation(words) from error


@cache
def takes_device(name: str) -> bool:
    """True if the operation makes tensors on a device of the caller's choice."""
    schema = getattr(operation(name), "_schema", None)
    return schema is not None and any(one.name == "device" for one in schema.arguments)


def call(
    op: Op,
    tensor: Callable[[int], torch.Tensor],
    *,
    kinds: Sequence[torch.dtype],
    device: torch.device,
) -> list[torch.Tensor]:
    """Runs an operation on the program's tensors, which `tensor` gives by number; returns the
    tensors among its results, in order, which are of these `kinds`."""
    function = operation(op.name)
    arguments = [value_of(one, tensor) for one in op.arguments]
    keywords = {name: value_of(one, tensor) for name, one in op.keywords.items()}
    if takes_device(op.name):
        keywords["device"] = device
    with default_float(kinds):
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


@contextmanager
def default_float(kinds: Sequence[torch.dtype]) -> Generator[None]:
    """Within, float64 is torch's default where a result is float64: `zeros(3)` of a wide program
    names no type, and in any other program nothing that gives float64 asks for the default."""
    before = torch.get_default_dtype()
    if all(one != torch.float64 for one in kinds):
        yield
        return
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _tensors(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, list | tuple):
        items: list[Any] = list(result)  # pyright: ignore[reportUnknownArgumentType]
        return [found for one in items for found in _tensors(one)]
    return []
