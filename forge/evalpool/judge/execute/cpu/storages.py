"""The memory of a program: binds each storage to bytes, poisons allocations, copies contents.

Called by `sections`. Inputs and parameters stay where the caller has them; constants and
allocations are made here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forge.evalpool.judge.execute.outcome import ExecutionFailed
from forge.evalpool.judge.program.format import ITEM_BYTES, Origin
from forge.evalpool.judge.ttir.memory.storages import Memory, Storage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from forge.evalpool.judge.execute.cpu.conditions import Poison
    from forge.evalpool.judge.program.format import Program, Section


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


def poison_allocations(program: Program, memory: Memory, section: Section, poison: Poison) -> None:
    """Poisons the allocations of a section, which count as unwritten from then on."""
    for number, one in enumerate(program.storages):
        if one.origin is Origin.ALLOCATION and one.section is section:
            storage = memory.storages[number]
            poison.fill(storage.data)
            storage.forget()


def contents(
    program: Program, memory: Memory, numbers: Iterable[int]
) -> dict[int, NDArray[np.uint8]]:
    """Copies of those storages that are no allocations."""
    return {
        number: memory.storages[number].data.copy()
        for number in numbers
        if program.storages[number].origin is not Origin.ALLOCATION
    }


def put_back(memory: Memory, data_of: Mapping[int, NDArray[np.uint8]]) -> None:
    """Writes contents over their storages."""
    for number, data in data_of.items():
        memory.storages[number].data[:] = data


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
