# pyright: strict
"""Reads the text of a program's kernels, and what its launches are made of."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from forge.evalpool.judge.compiler.binary import Binary, Failure
from forge.evalpool.judge.execute.outcome import line_of, stores_to
from forge.evalpool.judge.program.dataflow import Access
from forge.evalpool.judge.program.format import Launch, Op, Section
from forge.evalpool.judge.program.ops import MOVES, kind_of
from forge.evalpool.judge.program.walk import op_bytes, variants
from forge.evalpool.judge.ttir.parse import InvalidModule, malformed, parse
from forge.evalpool.judge.ttir.verify import (
    Lookups,
    Use,
    lookups_of,
    operations_of,
    uses_of,
    verify,
)
from forge.evalpool.judge.wide.patterns import VALUE
from forge.records.verdict import LaunchFacts

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from forge.evalpool.judge.program.format import Kernel, Node, Program
    from forge.evalpool.judge.ttir.tree import Module

MAX_LAUNCHES = 256
"""Launches of a call that a profile has."""
MAX_KERNELS = 64
"""Kernels whose accesses are remembered, each with its text: those of the last candidates, which
are captured for several input sets and often alike."""
MAX_MODULES = 2
"""Parsed texts that are remembered: those of the candidate that is judged."""
MAX_KEPT_CHARACTERS = 64 << 10
"""Longest text that is remembered; a candidate may send megabytes."""

Text: TypeAlias = "tuple[tuple[Access, ...], Lookups]"
"""Access of a kernel to the memory behind each of its parameters, and its lookups."""


def _called(program: Program) -> list[Node]:
    """Nodes of one forward call; of a choice that is open, those of its first alternative."""
    nodes = next(variants(program))
    return [placed.node for placed in nodes if placed.section is Section.FORWARD]


def num_launches(program: Program) -> int:
    """Launches of one forward call."""
    return sum(isinstance(node, Launch) for node in _called(program))


def store_line(program: Program, output: int) -> int:
    """The source line of the only store to an output; 0 where there are several, or none."""

    def uses(node: Launch) -> Sequence[Use | None]:
        kernel = program.kernels[node.kernel]
        is_kept = len(kernel.ttir) <= MAX_KEPT_CHARACTERS
        return uses_of(_kept_module(kernel.ttir), kernel.name) if is_kept else ()

    try:
        return line_of(stores_to(program, output, uses))
    except InvalidModule:
        return 0


def operation_line(program: Program, names: Collection[str], place: int) -> int:
    """The source line of operations with these names in the kernels, or of those whose results are
    stored, the first or the last one; 0 for none."""
    found = set[int]()
    for kernel in program.kernels if names else ():
        if len(kernel.ttir) > MAX_KEPT_CHARACTERS:
            return 0
        try:
            functions = _kept_module(kernel.ttir).functions.values()
        except InvalidModule:
            return 0
        for function in functions:
            made = {value: o for o in operations_of(function) for value in o.results}
            stores = [o for o in operations_of(function) if o.name == "tt.store"]
            chosen = [o for o in operations_of(function) if o.name in names]
            if names == VALUE:
                chosen = [made[o.operands[1]] for o in stores if o.operands[1] in made]
            found |= {kernel.lines[o.index] for o in chosen if o.index < len(kernel.lines)}
    return sorted(found - {0})[place] if found - {0} else 0


def torch_share(program: Program) -> float:
    """Share of the work of `forward` that torch's operations do, the rest being the kernels'.

    Work is the bytes of the tensors that a node names; operations that only move data have none.
    """
    own = moved = 0
    for node in _called(program):
        if isinstance(node, Op) and kind_of(program, node) not in MOVES:
            moved += op_bytes(program, node)
        elif isinstance(node, Launch):
            own += op_bytes(program, node)
    return moved / max(own + moved, 1)


def launch_facts(
    program: Program, binaries: Sequence[Binary | Failure | None]
) -> tuple[LaunchFacts, ...]:
    """The launches of one forward call, with what their compilation gave."""
    found = list[LaunchFacts]()
    launches = [node for node in _called(program) if isinstance(node, Launch)]
    for node in launches[:MAX_LAUNCHES]:
        kernel, binary = program.kernels[node.kernel], binaries[node.kernel]
        is_compiled = isinstance(binary, Binary)
        found.append(
            LaunchFacts(
                name=kernel.name,
                grid=node.grid,
                num_warps=kernel.options.num_warps,
                num_stages=kernel.options.num_stages,
                num_bytes=op_bytes(program, node),
                num_registers=binary.num_registers if is_compiled else None,
                num_spills=binary.num_spills if is_compiled else None,
                shared_bytes=binary.shared_bytes if is_compiled else None,
            )
        )
    return tuple(found)


def text_of(kernel: Kernel) -> Text:
    """Accesses and lookups of a kernel. Raises InvalidModule."""
    is_kept = len(kernel.ttir) <= MAX_KEPT_CHARACTERS
    found = (_kept_text if is_kept else _read_text)(kernel.ttir, kernel.name)
    if (num := len(found[0])) != len(kernel.parameters):
        raise InvalidModule(
            f"{num} arguments of the function for {len(kernel.parameters)} parameters"
        )
    return found


def _read_text(ttir: str, name: str) -> Text:
    is_kept = len(ttir) <= MAX_KEPT_CHARACTERS
    module = (_kept_module if is_kept else _module)(ttir)
    with malformed():
        if name not in module.functions:
            raise InvalidModule("no function of this name")
        uses = uses_of(module, name)
        return tuple(_access(use) for use in uses), lookups_of(module, name)


def _module(ttir: str) -> Module:
    """Raises InvalidModule."""
    with malformed():
        module = parse(ttir)
        verify(module)
        return module


_kept_text = lru_cache(maxsize=MAX_KERNELS)(_read_text)
_kept_module = lru_cache(maxsize=MAX_MODULES)(_module)


def _access(use: Use | None) -> Access:
    if use is None:
        return Access.NONE
    found = Access.NONE
    if use.is_read:
        found |= Access.READ
    if use.is_written:
        found |= Access.WRITE
    return found
