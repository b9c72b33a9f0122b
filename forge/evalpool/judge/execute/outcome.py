"""Results of one section of a program: its launches, failures, and memory errors in words; and the
launches that store to an output, with the lines of their stores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from forge.evalpool.judge.channel.regions import Region, region_of
from forge.evalpool.judge.program import format as form
from forge.evalpool.judge.program.walk import places
from forge.evalpool.judge.ttir.memory.storages import Fault, FaultKind
from forge.evalpool.judge.ttir.verify import Use


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultReport:
    """A memory error that changes an output, in words."""

    kind: str
    """A `FaultKind`, or `unwritten` for an output with elements that nothing wrote."""
    message: str
    line: int


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A memory error that may not matter."""

    kind: FaultKind
    report: Callable[[], FaultReport]


@dataclass(slots=True, kw_only=True)
class Outcome:
    """One run of a section: its launches so far, and the bytes that their instances move."""

    num_launches: int = 0
    num_bytes: int = 0
    faults: list[FaultReport] = field(default_factory=list[FaultReport])


class ExecutionFailed(Exception):
    """A program cannot be run to its end."""

    def __init__(self, kind: str, message: str, *, line: int = 0) -> None:
        super().__init__(message)
        self.kind = kind
        """`unsupported`, `misfit`, `operation`, `value`, or a `FaultKind`."""
        self.message = message
        self.line = line


WORDS = {
    FaultKind.OUT_OF_BOUNDS: "is out of bounds",
    FaultKind.MISALIGNED: "is not aligned to its element size",
    FaultKind.UNINITIALISED: "reads memory that nothing has written, and the output depends on it",
    FaultKind.ORDER: "depends on the order in which programs run, and so does the output",
    FaultKind.BARRIER: "is of what another thread of this program has stored; tl.debug_barrier()"
    " must be between",
    FaultKind.RACE: "races with another program of the launch, and the output depends on the order",
    FaultKind.LANES: "has two lanes with one address and other values, and the output depends on"
    " which of them is last",
}


@dataclass(frozen=True, slots=True)
class Place:
    """A launch within its program."""

    program: form.Program
    node: form.Launch
    number: int
    """Position among the launches of its section."""


def fault_report(fault: Fault, place: Place) -> FaultReport:
    kernel = place.program.kernels[place.node.kernel]
    line = kernel.lines[fault.index] if fault.index < len(kernel.lines) else 0
    access = "store" if "store" in fault.operation else "load"
    access = "atomic" if "atomic" in fault.operation or "reduce" in fault.operation else access
    where = f"kernel {kernel.name}" + (f", line {line}" if line else "")
    who = f"program {_id(fault.instance)}"
    if fault.kind is FaultKind.RACE and fault.other is not None:
        who += f" (and program {_id(fault.other)})"
    what = f"{who}: {access} of {_target(fault, place)}"
    if fault.kind is FaultKind.ORDER:
        what = f"the result of {fault.operation}"
    message = f"{where}: {what} {WORDS[fault.kind]}"
    if fault.kind is FaultKind.OUT_OF_BOUNDS and access != "atomic":
        message += (
            "; its mask lets it through" if fault.is_masked else f"; the {access} has no mask"
        )
    elif fault.kind is FaultKind.UNINITIALISED and access == "atomic":
        message += "; make it with torch.zeros, not torch.empty"
    if place.number:
        message += f" (launch {place.number})"
    return FaultReport(kind=str(fault.kind), message=message, line=line or place.node.line)


def operation_report(node: form.Op) -> FaultReport:
    """The report of an operation that reads what nothing has written."""
    words = f"{node.name} {WORDS[FaultKind.UNINITIALISED]}"
    return FaultReport(kind=str(FaultKind.UNINITIALISED), message=words, line=node.line)


def unwritten_report(
    program: form.Program,
    output: int,
    missing: NDArray[np.bool_],
    uses: Callable[[form.Launch], Sequence[Use | None]],
) -> FaultReport:
    """The report of elements of an output that nothing wrote; arguments as of `stores_to`."""
    first = tuple(int(one) for one in np.unravel_index(int(np.argmax(missing)), missing.shape))
    count = int(np.count_nonzero(missing))
    name = "output" if len(program.outputs) == 1 else f"output {output}"
    words = f"{count} of {missing.size} elements of {name} are never written"
    found = region_of(missing, least=1)
    line, cause = unwritten_cause(found, missing.shape, stores_to(program, output, uses))
    if found is None:
        words += f", the first is {first}" if count < missing.size else ""
    else:
        part = f"{name}{found.place}" if found.place else found.words
        remark = f" ({found.words})" if found.place and found.words else ""
        words += f": {part}{remark}"
    words += f"; {cause}" if cause else ""
    return FaultReport(kind="unwritten", message=words, line=line)


def _id(instance: tuple[int, int, int]) -> str:
    x, y, z = instance
    if z:
        return f"({x}, {y}, {z})"
    return f"({x}, {y})" if y else str(x)


def _target(fault: Fault, place: Place) -> str:
    """The element that was accessed, by the argument that its address comes from."""
    program, kernel = place.program, place.program.kernels[place.node.kernel]
    for parameter, argument in zip(kernel.parameters, place.node.arguments, strict=False):
        if not isinstance(argument, (form.TensorUse, form.Descriptor)):
            continue
        one = program.tensors[argument.tensor]
        if one.storage == fault.storage:
            element = fault.offset // form.ITEM_BYTES[one.dtype] - one.offset
            origin = _origin(program, one)
            return f"element {element} of {parameter.name} ({origin}, {_shape(one.shape)})"
    return "an address outside every tensor"


def _origin(program: form.Program, one: form.Tensor) -> str:
    storage = program.storages[one.storage]
    if storage.origin is form.Origin.INPUT:
        return f"input {storage.index}"
    if storage.origin is form.Origin.PARAMETER:
        return f"parameter {storage.name}"
    if any(program.tensors[number].storage == one.storage for number in program.outputs):
        return "output"
    return "constant" if storage.origin is form.Origin.CONSTANT else "temporary"


def _shape(shape: Sequence[int]) -> str:
    sizes = "x".join(map(str, shape)) or "scalar"
    return f"{sizes}, {math.prod(shape)} elements" if len(shape) > 1 else sizes


# --- stores to an output


@dataclass(frozen=True, slots=True)
class Store:
    """A launch that stores to an output."""

    launch: form.Launch
    lines: tuple[int, ...]
    """Source lines of its stores."""


def stores_to(
    program: form.Program, output: int, uses: Callable[[form.Launch], Sequence[Use | None]]
) -> list[Store]:
    """Launches that may store to the memory of an output, by its position among the program's;
    `uses` gives accesses of a launch's kernel by its arguments."""
    storage = program.tensors[program.outputs[output]].storage
    found: list[Store] = []
    for node in (placed.node for placed in places(program)):
        if not isinstance(node, form.Launch):
            continue
        lines = program.kernels[node.kernel].lines
        writers = {
            index
            for one, use in zip(node.arguments, uses(node), strict=False)
            if use is not None
            and isinstance(one, (form.TensorUse, form.Descriptor))
            and program.tensors[one.tensor].storage == storage
            for index in use.writers
        }
        if writers:
            known = {lines[index] for index in writers if index < len(lines)} - {0}
            found.append(Store(node, tuple(sorted(known))))
    return found


def line_of(stores: Sequence[Store]) -> int:
    """The line of the only store; 0 if there is none or several."""
    lines = {line for one in stores for line in one.lines}
    return lines.pop() if len(lines) == 1 else 0


def unwritten_cause(
    region: Region | None, shape: Sequence[int], stores: Sequence[Store]
) -> tuple[int, str]:
    """Finds the line that leaves elements of an output unwritten, and why, where its grid shows it.

    A grid that is too small ends after a multiple of its programs: one index, or a block of a power
    of two, for each.
    """
    if not stores:
        return 0, "no kernel stores to it"
    line, num = line_of(stores), region.num_before if region else None
    if region is None or num is None or len({one.launch.grid for one in stores}) > 1:
        return line, ""
    size = shape[region.axis] if region.axis is not None else math.prod(shape)
    inner = math.prod(shape[1:]) if region.axis == 0 else 1
    grid = stores[0].launch.grid
    for unit in sorted({1, inner}):
        for count in sorted({*grid, math.prod(grid)} - {1}, reverse=True):
            block = num * unit // count
            if num * unit % count == 0 and not block & (block - 1):
                words = f"the grid {_shown(grid)} has {count} programs"
                words += f" of {block} elements" if block > 1 else ""
                words += f", which end at {num * unit} of {size * unit}: use more"
                return stores[0].launch.line, words
    if 1 in grid and not num * inner & (num * inner - 1):
        words = f"one program ends at {num * inner} of {size * inner}: use more programs along an"
        return line, f"{words} axis of the grid {_shown(grid)}, a larger block or a loop"
    return line, f"its store ends at {num} of {size}: is its mask too short?"


def _shown(grid: Sequence[int]) -> str:
    x, y, z = grid
    return f"({x}, {y}, {z})" if z > 1 else f"({x}, {y})" if y > 1 else f"({x},)"
