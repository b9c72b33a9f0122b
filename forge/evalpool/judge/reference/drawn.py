"""Tensors that a reference's constructor draws and no `state_dict` has: `self.h0 = torch.randn(8)`.

Called by the oracle, for the candidate, which cannot draw the same random numbers. Another model is
constructed: a tensor is drawn if it has other values there. What is computed from numbers that
another tensor of the model has as well, is left to the candidate's constructor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from forge.evalpool.judge.numbers.called import leaves
from forge.evalpool.judge.numbers.inputs.seeds import unseeded
from forge.evalpool.judge.reference.construct import held_tensors, saved_tensors

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_BYTES = 64 << 20
"""Size of a tensor that a candidate may get."""
DTYPES = {
    *(torch.float32, torch.float16, torch.bfloat16, torch.float64),
    *(torch.int64, torch.int32, torch.bool),
}


class Origins(TorchDispatchMode):
    """Within, notes the random operations that each tensor's values come from."""

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[int, tuple[Any, frozenset[int]]] = {}
        """Storage, which is kept so that its address is not reused, and numbers of operations."""
        self._count = 0

    def of(self, tensor: torch.Tensor) -> frozenset[int]:
        """Numbers of the operations."""
        if tensor.layout is not torch.strided:
            return frozenset()
        return self._found.get(tensor.untyped_storage()._cdata, (None, frozenset[int]()))[1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation."""
        result = func(*args, **(kwargs or {}))
        found = frozenset[int]().union(*map(self.of, leaves([*args, *(kwargs or {}).values()])))
        if torch.Tag.nondeterministic_seeded in func.tags:
            self._count += 1
            found |= {self._count}
        if found:
            for one in leaves([result]):
                if one.layout is torch.strided:
                    storage = one.untyped_storage()
                    self._found[storage._cdata] = (storage, found | self.of(one))
        return result


def drawn_tensors(model: Any, construct: Callable[[], Any]) -> dict[str, torch.Tensor]:
    """Copies of the drawn tensors of a model, by name.

    Args:
        construct: constructs another one.
    """
    try:
        held = {one.name: one.tensor for one in held_tensors(model) if _is_plain(one.tensor)}
        if not held:
            return {}
        with unseeded(), Origins() as origins:
            other = construct()
        others = {one.name: one.tensor for one in held_tensors(other)}
        every = [*saved_tensors(other), *others.values()]
        return {
            name: tensor.detach().clone()
            for name, tensor in held.items()
            if name in others
            and _is_other(others[name], tensor)
            and not any(
                origins.of(others[name]) & origins.of(one)
                for one in every
                if one is not others[name]
            )
        }
    except Exception:  # a constructor may run once alone: then nobody knows what it draws
        return {}


def _is_plain(tensor: torch.Tensor) -> bool:
    is_plain = tensor.layout is torch.strided and not tensor.is_meta
    return is_plain and tensor.dtype in DTYPES and 0 < tensor.nbytes <= MAX_BYTES


def _is_other(one: torch.Tensor, tensor: torch.Tensor) -> bool:
    is_alike = (one.shape, one.dtype) == (tensor.shape, tensor.dtype)
    return is_alike and not torch.equal(one.to(tensor.device), tensor)
