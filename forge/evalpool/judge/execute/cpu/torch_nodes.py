"""Runs op nodes by torch on a CPU, on tensors that exist already.

A result that torch makes is copied to the tensor that the program has for it; one that an operation
wrote in place is there already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from forge.evalpool.judge.execute.operations import UnknownOperation, call
from forge.evalpool.judge.execute.outcome import ExecutionFailed

if TYPE_CHECKING:
    from forge.evalpool.judge.program.format import Op

MAX_WORDS = 300
CPU = torch.device("cpu")


def run(node: Op, tensor: Callable[[int], torch.Tensor]) -> None:
    """Runs a node; `tensor` gives the program's tensors by number.

    Raises:
        ExecutionFailed: not in the table, or torch refuses its arguments.
    """
    targets = [tensor(number) for number in node.results]
    try:
        with torch.no_grad():
            results = call(node, tensor, kinds=[one.dtype for one in targets], device=CPU)
            if len(results) != len(targets):
                words = f"{node.name} gave {len(results)} results, not {len(targets)}"
                raise ExecutionFailed("operation", words, line=node.line)
            for target, result in zip(targets, results, strict=True):
                _deliver(node, result, target)
    except UnknownOperation as error:
        raise ExecutionFailed("unsupported", str(error)) from None
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
