"""Facts of a problem from its reference's captured program: the bytes that any solution must move,
the inputs that matter, and what the reference itself writes to.
"""

from __future__ import annotations

from forge.evalpool.judge.program.dataflow import effects, trace
from forge.evalpool.judge.program.format import Op, Origin, Program, Section, Storage, TensorUse
from forge.evalpool.judge.program.ops import Kind, is_integer, kind_of, packet
from forge.evalpool.judge.program.policy import ProblemFacts
from forge.evalpool.judge.program.walk import (
    Placed,
    is_as_it_lies,
    op_bytes,
    tensor_bytes,
    tensors_of,
    variants,
)

GATHERS = {"embedding", "index", "_unsafe_index", "index_select", "gather", "take"}
"""Operations that read as many elements of their first argument as their result has."""
COPIES = {
    *("tril", "triu", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    *(f"_upsample_nearest_exact{axes}d" for axes in (1, 2, 3)),
}
"""Operations that move elements to places that depend on no data, though their kind says more."""
MINOR_SHARE = 0.1
"""Light work below this part of the necessary work leaves a problem about moving data."""


def facts_of(reference: Program) -> ProblemFacts:
    """Returns the facts of the problem that a reference poses.

    A large table of which few rows are read counts with those rows, and a parameter that nothing
    reads does not count: else torch could do the work of a small problem within a share of them.
    """
    nodes = next(variants(reference))
    forward = [placed for placed in nodes if placed.section == Section.FORWARD]
    flow = trace(reference, nodes)
    written = [reference.storages[storage] for storage in flow.writers]
    outputs = [reference.tensors[output].storage for output in reference.outputs]
    reached = [flow.contents[storage].inputs for storage in outputs]
    num_bytes = necessary_bytes(reference, forward)
    floats = {one.storage for one in reference.tensors if not is_integer(one.dtype)}
    read = [reference.storages[storage] for storage in floats]
    return ProblemFacts(
        num_bytes=num_bytes,
        needed_inputs=frozenset[int]().union(*reached),
        float_inputs=frozenset(one.index for one in read if one.origin == Origin.INPUT),
        has_float_parameters=any(one.origin == Origin.PARAMETER for one in read),
        written_inputs=frozenset(one.index for one in written if one.origin == Origin.INPUT),
        written_parameters=frozenset(one.name for one in written if one.origin == Origin.PARAMETER),
        fixed_outputs=frozenset(at for at, inputs in enumerate(reached) if not inputs),
        free_outputs=frozenset(
            at
            for at, storage in enumerate(outputs)
            if _is_given(reference.storages[storage]) and storage not in flow.writers
        ),
        laid_out=frozenset(
            at
            for at, output in enumerate(reference.outputs)
            if is_as_it_lies(reference.tensors[output])
        ),
        kinds=_kinds(reference, forward, work=num_bytes),
    )


def _kinds(reference: Program, forward: list[Placed], *, work: int) -> frozenset[Kind]:
    """Kinds of the operations that a problem is about. Beside copies, light work on a small part
    is not: torch would do all but that part for a candidate."""
    moved: dict[Kind, int] = {}
    for placed in forward:
        if isinstance(placed.node, Op):
            is_copy = packet(placed.node.name) in COPIES
            kind = Kind.COPY if is_copy else kind_of(reference, placed.node)
            moved[kind] = moved.get(kind, 0) + op_bytes(reference, placed.node)
    light = moved.get(Kind.COMBINE, 0) + moved.get(Kind.INDEX, 0)
    if moved.keys() & {Kind.COPY, Kind.CAST, Kind.PAD} and light <= MINOR_SHARE * work:
        return frozenset(moved.keys() - {Kind.COMBINE, Kind.INDEX})
    return frozenset(moved)


def necessary_bytes(reference: Program, forward: list[Placed]) -> int:
    """Counts the given bytes that `forward` reads, and those of the outputs."""
    read = dict.fromkeys(range(len(reference.storages)), 0)
    for placed in forward:
        if not isinstance(placed.node, Op):
            continue
        sources = effects(reference, placed.node, {}).reads
        for storage, size in _reads(reference, placed.node).items():
            if storage in sources:
                read[storage] += size
    given = sum(
        min(size, reference.storages[storage].num_bytes)
        for storage, size in read.items()
        if _is_given(reference.storages[storage])
    )
    return given + sum(tensor_bytes(reference.tensors[one]) for one in set(reference.outputs))


def _reads(reference: Program, op: Op) -> dict[int, int]:
    """Bytes that an operation reads of each storage, at most."""
    found: dict[int, int] = {}
    for number in set(tensors_of(op)):
        tensor = reference.tensors[number]
        found[tensor.storage] = found.get(tensor.storage, 0) + tensor_bytes(tensor)
    source = op.arguments[0] if op.arguments else None
    if packet(op.name) in GATHERS and isinstance(source, TensorUse) and op.results:
        table = reference.tensors[source.tensor]
        taken = tensor_bytes(reference.tensors[op.results[0]])
        found[table.storage] = min(found[table.storage], taken)
    return found


def _is_given(storage: Storage) -> bool:
    return storage.origin != Origin.ALLOCATION
