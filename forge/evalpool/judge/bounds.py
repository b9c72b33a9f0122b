"""Every load and store of Triton's interpreter, held to the tensors that the launch was given.

The interpreter reads and writes raw addresses: a mask that is too large, or a grid with a row too
many, changes somebody else's memory and the output is right all the same. Installed once in the
zygote, at work in runners. Imports nothing of forge. Promise: an address that a mask lets through
lies in the storage of a tensor argument, or the launch raises `OutOfBounds`.

Not covered: running from one argument into another, or within a storage past the view that was
given. Refused with it: addresses that a kernel is given as integers (`x.data_ptr()`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

if TYPE_CHECKING:
    from collections.abc import Iterator


class OutOfBounds(Exception):
    """A kernel touches memory that is not its own."""


class Launch:
    """The memory that one launch may touch: the storages behind its arguments."""

    def __init__(self, tensors: list[tuple[str, torch.Tensor]]) -> None:
        self._tensors = tensors
        self._spans = list(dict.fromkeys(_span(tensor) for _, tensor in tensors))

    def check(self, doing: str, pointers: Any, mask: Any = None) -> None:
        """Raises OutOfBounds unless all addresses that are not masked lie in a storage.

        Args:
            doing: `load`, `store` or `atomic`, for the message.
            pointers, mask: handles of the interpreter; a descriptor's mask is a plain array in
                Triton 3.7, whose `data` is a buffer.
        """
        addresses = pointers.data
        if mask is not None and not (let_through := np.asarray(mask.data)).all():
            addresses = addresses[np.broadcast_to(let_through, addresses.shape)]
        if not addresses.size:
            return
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        low, high = int(addresses.min()), int(addresses.max()) + size
        if any(start <= low and high <= end for start, end in self._spans):
            return
        inside = np.zeros(addresses.shape, dtype=bool)
        for start, end in self._spans:  # tl.where may choose between two tensors' pointers
            inside |= (addresses >= start) & (addresses <= end - size)
        outside = addresses[~inside]
        if outside.size:
            raise OutOfBounds(
                f"{doing} outside every tensor the kernel was given: {outside.size} of "
                f"{addresses.size} elements; {self._describe(int(outside[0]), size)}"
            )

    def _describe(self, address: int, size: int) -> str:
        """An address as an element of the tensor that lies nearest."""
        if not self._tensors:
            return "it was given none"

        def distance(one: tuple[str, torch.Tensor]) -> int:
            start, end = _span(one[1])
            return max(start - address, address - end)

        name, tensor = min(self._tensors, key=distance)
        start, (_, end) = tensor.data_ptr(), _span(tensor)
        count = (end - start) // size
        return f"the first is element {(address - start) // size} of {name}, which has {count}"


def install() -> None:
    """Makes the interpreter check. A launch inside a launch (a grid's, a hook's) has its own."""
    launches: list[Launch] = []
    launch = interpreter.GridExecutor.__call__
    builder: Any = interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store
    rmw, cas = builder.create_atomic_rmw, builder.create_atomic_cas

    def checked_launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = [*zip(self.arg_names, args, strict=False), *kwargs.items()]
        tensors = [pair for name, value in arguments for pair in _tensors(name, value)]
        launches.append(Launch(tensors))
        try:
            return launch(self, *args, **kwargs)
        finally:
            launches.pop()

    def checked_load(self: Any, ptrs: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        launches[-1].check("load", ptrs, mask)
        return load(self, ptrs, mask, *rest, **named)

    def checked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        launches[-1].check("store", ptrs, mask)
        return store(self, ptrs, value, mask, *rest)

    def checked_rmw(self: Any, op: Any, ptr: Any, val: Any, mask: Any, *rest: Any) -> Any:
        launches[-1].check("atomic", ptr, mask)
        return rmw(self, op, ptr, val, mask, *rest)

    def checked_cas(self: Any, ptr: Any, *rest: Any) -> Any:
        launches[-1].check("atomic", ptr)
        return cas(self, ptr, *rest)

    interpreter.GridExecutor.__call__ = checked_launch
    builder.create_masked_load, builder.create_masked_store = checked_load, checked_store
    builder.create_atomic_rmw, builder.create_atomic_cas = checked_rmw, checked_cas


def _tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that one argument holds."""
    value = interpreter._unwrap_tensor(value)
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, TensorDescriptor):
        yield from _tensors(name, value.base)
    elif isinstance(value, tuple):
        for item in value:
            yield from _tensors(name, item)


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Where a tensor's storage begins and ends: views may be read past their own end."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
