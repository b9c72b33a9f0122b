# pyright: strict
"""The launches that store to an output, with the source lines of their stores.

Called where an output is wrong or has elements that nothing wrote, in the evaluator's child and in
the judge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge.evalpool.judge.program.format import Descriptor, Launch, TensorUse
from forge.evalpool.judge.program.walk import places

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forge.evalpool.judge.channel.regions import Region
    from forge.evalpool.judge.program.format import Program
    from forge.evalpool.judge.ttir.verify import Use


@dataclass(frozen=True, slots=True)
class Store:
    """A launch that stores to an output."""

    launch: Launch
    lines: tuple[int, ...]
    """Source lines of its stores."""


def stores_to(
    program: Program, output: int, uses: Callable[[Launch], Sequence[Use | None]]
) -> list[Store]:
    """Launches that may store to the memory of an output.

    Args:
        output: its position among the program's outputs.
        uses: accesses of a launch's kernel by its arguments.
    """
    storage = program.tensors[program.outputs[output]].storage
    found: list[Store] = []
    for node in (placed.node for placed in places(program)):
        if not isinstance(node, Launch):
            continue
        lines = program.kernels[node.kernel].lines
        writers = {
            index
            for one, use in zip(node.arguments, uses(node), strict=False)
            if use is not None
            and isinstance(one, (TensorUse, Descriptor))
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
