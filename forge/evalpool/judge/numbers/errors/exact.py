"""The reference in float64, against which the errors of eager are measured.

Called by own_error.py. One that fails there is tried once more with what it makes itself in
float64, too (an LSTM's first state); one that insists on its types is run as it is, where eager had
TF32, without it.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch

from forge.evalpool.judge.numbers.called import call_on, copied, replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def run_exact(
    model: Any,
    inputs: list[Any],
    *,
    changed: list[int],
    is_tf32: bool = False,
    widen: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> list[torch.Tensor] | None:
    """Results in float64, on inputs of its own; None where there are none.

    Args:
        changed: numbers of the inputs whose contents after the call are results, too.
        is_tf32: eager had TF32: results in fp32 without it are better than none.
        widen: a tensor of the inputs in float64; None stands for `to_double`.
    """

    def in_double() -> tuple[Any, list[Any]]:
        return copied(model).double(), replaced(inputs, lambda _, one: (widen or to_double)(one))

    def as_it_is() -> tuple[Any, list[Any]]:
        return copied(model), copy.deepcopy(inputs)

    with _without_tf32():
        if (found := _results(in_double, changed)) is not None:
            return found
        with _making(torch.float64):
            found = _results(in_double, changed)
        if found is not None or not is_tf32:
            return found
        found = _results(as_it_is, changed) or []
    return None if any(one.dtype is torch.float64 for one in found) else found or None


def _results(
    make: Callable[[], tuple[Any, list[Any]]], changed: list[int]
) -> list[torch.Tensor] | None:
    """Results of a model on inputs; None where it fails on them: it may insist on its types. Raises
    OutOfMemoryError."""
    try:
        model, inputs = make()
        return call_on(model, inputs).results(changed)
    except torch.OutOfMemoryError:
        raise
    except Exception:
        return None


def to_double(value: torch.Tensor) -> torch.Tensor:
    """A copy in float64, or of what has no floats."""
    return value.to(torch.float64, copy=True) if value.is_floating_point() else value.clone()


@contextmanager
def _making(kind: torch.dtype) -> Iterator[None]:
    """Within, floating tensors are made in a type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _without_tf32() -> Iterator[None]:
    """Within, products and convolutions in fp32 have all of their bits."""
    backends: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn]
    before: list[tuple[Any, bool]] = []
    for backend in backends:
        with suppress(RuntimeError):  # a reference has set it by another name: it stays
            before.append((backend, backend.allow_tf32))
            backend.allow_tf32 = False
    try:
        yield
    finally:
        for backend, is_allowed in before:
            backend.allow_tf32 = is_allowed
