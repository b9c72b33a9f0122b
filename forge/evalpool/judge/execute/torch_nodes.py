"""Runs op nodes of a program by torch's own operations on a CPU, on tensors that exist already.

Only names of the closed table (`program.ops`) are looked up. A result that torch makes is copied to
the tensor that the program has for it; one that an operation wrote in place is there already.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from forge.evalpool.judge.execute.default_type import default_float
from forge.evalpool.judge.execute.outcome import ExecutionFailed
from forge.evalpool.judge.program.format import Literal, NamedConstant, Op, TensorUse
from forge.evalpool.judge.program.ops import schemas

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_WORDS = 300


@cache
def operation(name: str) -> Callable[..., Any]:
    """Torch's function for `aten.mm.default`. Raises ExecutionFailed beyond the closed table."""
    if name not in schemas():
        raise ExecutionFailed("unsupported", f"operation {name} is not allowed in a program")
    space, function, overload = name.split(".")
    try:
        return getattr(getattr(getattr(torch.ops, space), function), overload)
    except AttributeError:
        words = f"operation {name} is not known to torch {torch.__version__}"
        raise ExecutionFailed("unsupported", words) from None


def run(node: Op, tensor: Callable[[int], torch.Tensor]) -> None:
    """Runs a node; `tensor` gives the program's tensors by number.

    Raises:
        ExecutionFailed: not in the table, or torch refuses its arguments.
    """
    function = operation(node.name)
    arguments = [_argument(one, tensor) for one in node.arguments]
    keywords = {name: _argument(one, tensor) for name, one in node.keywords.items()}
    targets = [tensor(number) for number in node.results]
    try:
        with torch.no_grad(), default_float([one.dtype for one in targets]):
            results = _leaves(function(*arguments, **keywords))
            if len(results) != len(targets):
                words = f"{node.name} gave {len(results)} results, not {len(targets)}"
                raise ExecutionFailed("operation", words, line=node.line)
            for target, result in zip(targets, results, strict=True):
                _deliver(node, result, target)
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as error:
        words = f"{node.name}: {type(error).__name__}: {error}"[:MAX_WORDS]
        raise ExecutionFailed("operation", words, line=node.line) from error


def _deliver(node: Op, result: torch.Tensor, target: torch.Tensor) -> None:
    if result.shape != target.shape or result.dtype != target.dtype:
        found = f"{result.dtype} {tuple(result.shape)}"
        words = f"{node.name} gave {found}, not {target.dtype} {tuple(target.shape)}"
        raise ExecutionFailed("operation", words, line=node.line)
    is_there = result.data_ptr() == target.data_ptr() and result.stride() == target.stride()
    if not is_there:
        target.copy_(result)


def _argument(value: Literal, tensor: Callable[[int], torch.Tensor]) -> Any:
    if isinstance(value, TensorUse):
        return tensor(value.tensor)
    if isinstance(value, NamedConstant):
        return getattr(torch, value.name)
    if isinstance(value, tuple):
        return [_argument(one, tensor) for one in value]
    return value


def _leaves(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (tuple, list)):
        items: list[Any] = list(result)  # pyright: ignore[reportUnknownArgumentType]
        return [leaf for item in items for leaf in _leaves(item)]
    return []
