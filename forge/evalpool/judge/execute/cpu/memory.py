"""The memory of a program: storages bound to bytes, and views of its tensors over them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from forge.evalpool.judge.execute.outcome import ExecutionFailed
from forge.evalpool.judge.program.format import ITEM_BYTES, Origin, Program
from forge.evalpool.judge.ttir.memory.storages import Memory, Storage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray


def bound_memory(
    program: Program,
    inputs: Sequence[NDArray[np.uint8]],
    parameters: Mapping[str, NDArray[np.uint8]],
) -> Memory:
    """The storages of a program. Raises ExecutionFailed where the call's memory does not fit."""
    granules = _granules(program)
    return Memory(
        [
            Storage(data=_bytes(program, number, inputs, parameters), granule=granules[number])
            for number in range(len(program.storages))
        ]
    )


def _granules(program: Program) -> list[int]:
    """Smallest element of each storage, in bytes."""
    found = [16] * len(program.storages)
    for one in program.tensors:
        found[one.storage] = min(found[one.storage], ITEM_BYTES[one.dtype])
    return [min(one, 8) for one in found]


def _bytes(
    program: Program,
    number: int,
    inputs: Sequence[NDArray[np.uint8]],
    parameters: Mapping[str, NDArray[np.uint8]],
) -> NDArray[np.uint8]:
    one = program.storages[number]
    if one.origin is Origin.ALLOCATION:
        return np.empty(one.num_bytes, np.uint8)
    if one.origin is Origin.CONSTANT:
        data = np.frombuffer(program.constants[one.index], np.uint8).copy()
    elif one.origin is Origin.INPUT:
        if one.index >= len(inputs):
            raise ExecutionFailed("misfit", f"the call has no tensor input {one.index}")
        data = inputs[one.index]
    else:
        if one.name not in parameters:
            raise ExecutionFailed("misfit", f"the reference has no parameter {one.name}")
        data = parameters[one.name]
    if len(data) < one.num_bytes:
        name = f"{one.origin} {one.name or one.index}"
        words = f"{name} has {len(data)} bytes, the program uses {one.num_bytes}"
        raise ExecutionFailed("misfit", words)
    return data[: one.num_bytes]


RAW = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}
"""Type of raw elements, by their size in bytes."""


@dataclass(slots=True)
class Tensors:
    """The tensors of a program, by their numbers."""

    program: Program
    memory: Memory
    _made: dict[int, Any] = field(init=False, default_factory=dict[int, Any])

    def torch(self, number: int) -> Any:
        """A torch tensor over the memory of a tensor of the program."""
        if number not in self._made:
            import torch

            one = self.program.tensors[number]
            dtype = getattr(torch, one.dtype)
            data = self.memory.storages[one.storage].data
            if math.prod(one.shape) == 0:
                self._made[number] = torch.empty(one.shape, dtype=dtype)
            else:
                size = ITEM_BYTES[one.dtype]
                flat: Any = data[: len(data) // size * size]
                whole: Any = torch.as_tensor(flat).view(dtype)
                view = whole.as_strided(one.shape, one.strides, one.offset)
                self._made[number] = view
        return self._made[number]

    def read(self, number: int) -> NDArray[Any]:
        """A contiguous copy of a tensor's raw elements."""
        one = self.program.tensors[number]
        return np.array(self._raw(number), order="C").reshape(one.shape)

    def copy(self, number: int, target: NDArray[np.uint8]) -> None:
        """Writes a tensor's raw elements, contiguous, over as many bytes."""
        raw = self._raw(number)
        np.ndarray(raw.shape, raw.dtype, buffer=target)[...] = raw

    def outputs(self) -> list[NDArray[Any]]:
        """Copies of the program's outputs."""
        return [self.read(number) for number in self.program.outputs]

    def mark_written(self, number: int) -> None:
        """Records that something has written all of a tensor."""
        storage = self._storage(number)
        if storage.written is not None:
            self._entries(number, storage.written, storage.granule)[...] = True
            if storage.written.all():
                storage.written = None

    def is_partly_unwritten(self, number: int) -> bool:
        """True if a tensor has elements that nothing has written whole."""
        storage = self._storage(number)
        if storage.written is None:
            return False
        return not bool(self._entries(number, storage.written, storage.granule).all())

    def unwritten(self, number: int) -> NDArray[np.bool_] | None:
        """True for each element that nothing has written whole; None where there is none."""
        storage = self._storage(number)
        if storage.written is None:
            return None
        entries = self._entries(number, storage.written, storage.granule)
        missing = np.logical_not(np.all(entries, axis=-1, keepdims=True))[..., 0]
        return missing if missing.any() else None

    def _storage(self, number: int) -> Storage:
        return self.memory.storages[self.program.tensors[number].storage]

    def _raw(self, number: int) -> NDArray[Any]:
        """A strided view of a tensor's raw elements."""
        one = self.program.tensors[number]
        size = ITEM_BYTES[one.dtype]
        data = self.memory.storages[one.storage].data
        if math.prod(one.shape) == 0:
            return np.empty(one.shape, RAW[size])
        return np.ndarray(
            one.shape,
            RAW[size],
            buffer=data,
            offset=one.offset * size,
            strides=tuple(stride * size for stride in one.strides),
        )

    def _entries(self, number: int, record: NDArray[Any], granule: int) -> NDArray[Any]:
        """Entries of a record by granule, with an axis for the granules of each element."""
        one = self.program.tensors[number]
        per = max(ITEM_BYTES[one.dtype] // granule, 1)
        if math.prod(one.shape) == 0:
            return np.empty((*one.shape, per), record.dtype)
        return np.ndarray(
            (*one.shape, per),
            record.dtype,
            buffer=record,
            offset=one.offset * per * record.itemsize,
            strides=(*(stride * per * record.itemsize for stride in one.strides), record.itemsize),
        )
