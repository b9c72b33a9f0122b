"""Calls of a program as the judge asks an executor for them, the answers, and the names of nodes.

Both ends use it. The executor's process writes the number of the step that it runs into shared
memory; the judge, after a kill or a fault, finds the node by it. Both count nodes in program order:
those of `init`, then those of `forward`; a choice comes before the nodes of its alternatives.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import Field, TypeAdapter

from forge.evalpool.judge.program.format import Choice, Launch, Node, Op, Program, Value
from forge.evalpool.judge.program.walk import places

T = TypeVar("T")
Us: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A time in microseconds."""
BLOCK_ALIGNMENT_BYTES = 256
"""Alignment of everything in the block that the judge and the executor share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call as the judge asks for it. Pairs are (storage or tensor, offset in the block)."""

    fills: tuple[tuple[int, int], ...] = ()
    """Storages to fill: inputs and parameters."""
    takes: tuple[tuple[int, int], ...] = ()
    """Tensors to copy out afterwards, each contiguous."""
    copies: tuple[tuple[int, int], ...] = ()
    """Storages to copy out afterwards, as they are: inputs that the reference changes in place."""
    intact: tuple[tuple[int, int], ...] = ()
    """Storages that must afterwards equal the block's bytes."""
    seed: int = 0
    """Seed of torch's random operations."""
    slack: int = 0xFF
    """Byte beside the buffers, which must stay."""
    poison: int = 0
    """Seed of the random bytes in memory that nothing has written; 0 for bytes of 0xFF."""
    is_kept: bool = False
    """True for a call on what the one before left, as a model is called twice: nothing but `fills`
    is written anew, and `init` does not run. Its placement and slack are those of that one."""
    placement: str = "start"
    """`end` or `start` of its mapping, for every buffer; timed calls have them at the start."""
    choices: tuple[tuple[int, int], ...] = ()
    """Pairs of a choice's step and the alternative that runs in place of the winner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """Outcome of one call."""

    changed: tuple[int, ...]
    """Storages that should be intact and are not."""
    written: tuple[int, ...]
    """Storages beside which the program wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCall:
    """Outcome of one timed call."""

    gpu_us: Us
    """By the card's events."""
    changed: tuple[int, ...]
    """Storages that should be intact and are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTime:
    """GPU time of one node of `forward`."""

    what: str
    line: int
    us: Us


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceReport:
    """Outcome of one choice."""

    step: int
    chosen: int
    times_us: tuple[Us | None, ...]
    """Median of each alternative; None where it was skipped."""


def parsed(kind: type[T], body: Any) -> T:
    """Records as a message has them, which `pydantic_core.to_jsonable_python` made. Raises
    ValueError for another form."""
    return _reader(kind).validate_python(body)


@cache
def _reader(kind: type[T]) -> TypeAdapter[T]:
    return TypeAdapter(kind)


PROGRESS = struct.Struct("=q")
"""Number of the step that runs; 0 before the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedStep:
    """One node for a verdict."""

    what: str
    line: int
    """Line of the candidate's source; 0 where unknown."""


def named_steps(program: Program) -> tuple[NamedStep, ...]:
    """Every node; the one with number n stands at position n - 1."""
    found: list[NamedStep] = []
    for placed in places(program):
        node = placed.node
        kernel = program.kernels[node.kernel].name if isinstance(node, Launch) else ""
        found.append(NamedStep(what=what_of(node, kernel=kernel), line=node.line))
    return tuple(found)


def named_choices(program: Program) -> dict[int, Choice]:
    """Choices with a key, by the number of their step."""
    nodes = (placed.node for placed in places(program))
    return {
        number: node
        for number, node in enumerate(nodes, 1)
        if isinstance(node, Choice) and node.key
    }


def what_of(node: Node, *, kernel: str) -> str:
    """A node in words."""
    match node:
        case Launch():
            return f"launch of {kernel}"
        case Op():
            return node.name
        case Value():
            return "read of a value"
        case Choice():
            return f"choice among {len(node.alternatives)} configurations"
