"""Finds calls that depend on what an earlier call left in memory. Called by `confirm`.

An allocator hands out memory again with its old content, where a kernel may know its own marks. The
call runs on other inputs twice: behind the earlier call's content, and behind poison.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forge.evalpool.judge.execute.cpu.conditions import Conditions, Poison
from forge.evalpool.judge.execute.cpu.differences import has_other_outputs
from forge.evalpool.judge.execute.cpu.tensors import RAW
from forge.evalpool.judge.execute.outcome import ExecutionFailed, Outcome
from forge.evalpool.judge.program.format import ITEM_BYTES, Origin

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from forge.evalpool.judge.execute.cpu.sections import Sections
    from forge.evalpool.judge.program.format import Program


def uses_leftovers(sections: Sections, kept: Mapping[int, NDArray[np.uint8]]) -> bool:
    """True if outputs on other inputs depend on what the last call has left in memory that nothing
    has written.

    Args:
        kept: Content before the call of what it may write to.
    """
    sizes = _float_inputs(sections.program)
    given = {number: sections.memory.storages[number].data.copy() for number in sizes}
    try:
        _mix(sections, given, sizes)
        mixed = {**kept, **sections.contents(given)}
        _call_on(sections, mixed, Conditions(poison=Poison.LEFT))
        outputs = sections.tensors.outputs()
        _call_on(sections, mixed, Conditions())
        return has_other_outputs(sections.tensors, outputs)
    except ExecutionFailed:  # other inputs may be out of its range
        return False
    finally:
        sections.put_back(given)


def _call_on(
    sections: Sections, data_of: Mapping[int, NDArray[np.uint8]], conditions: Conditions
) -> None:
    sections.put_back(data_of)
    sections.call(Outcome(), conditions)


def _float_inputs(program: Program) -> dict[int, int]:
    """Bytes of an element, by storage, of the inputs of floats."""
    return {
        one.storage: ITEM_BYTES[one.dtype]
        for one in program.tensors
        if "float" in one.dtype and program.storages[one.storage].origin is Origin.INPUT
    }


def _mix(sections: Sections, given: Iterable[int], sizes: Mapping[int, int]) -> None:
    """Exchanges a random half of the elements of inputs among each other."""
    draw = np.random.default_rng()
    for number in given:
        data = sections.memory.storages[number].data
        elements = data[: len(data) // sizes[number] * sizes[number]].view(RAW[sizes[number]])
        chosen = np.flatnonzero(draw.random(len(elements)) < 0.5)
        elements[chosen] = elements[draw.permutation(chosen)]
