"""Rules about the structure of programs: who did the work, and what may outlast a call.

Called by the judge on parsed programs, once the facts of the problem are known; imports no torch.

Two policies. Under `own` the candidate's kernels do the work: beside them, operations of `forward`
may fill, copy, cast and pad, do index bookkeeping up to `INDEX_SHARE` of the necessary work, and
combine partial results up to `COMBINE_SHARE`. Under `hybrid` torch may do heavy work too; the share
of the candidate's kernels is then measured, and one of them at least must be necessary.

Under both, `init` may do any work on parameters, because that is prepacking: layout, casts, padding
and products of weights (`W @ V`) alike. It runs untimed and again for each set of parameters. An
output that no input reaches may not be computed there, nor a table of answers from which values of
an input choose, by an index, a mask or a branch: an embedding may be moved, cast and padded, not
computed further. Weights that are computed with whatever the input is are allowed, and tables that
positions index and no parameter has a part in, as the sines of a rotary embedding.

Structure does not tell a kernel that copies from one that computes; what is left for it to copy is
bounded instead: under `own`, torch can have computed at most a hundredth of the necessary work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from forge.evalpool.judge.program import format as form
from forge.evalpool.judge.program import walk
from forge.evalpool.judge.program.dataflow import Accesses, Content, Flow, Lookups, effects, trace
from forge.evalpool.judge.program.ops import MOVES, Kind, is_integer, kind_of, misuse, packet
from forge.evalpool.judge.program.walk import node_names, storage_name

Policy = Literal["own", "hybrid"]

COMBINE_SHARE = 0.01
"""Largest part of the necessary work that operations may do by combining results."""
INDEX_SHARE = 0.10
"""Largest part of the necessary work that bookkeeping of indices may have."""
ANSWER_SHARE = 1 / 8
"""Bytes of tables that may hold a part of an answer, as a part of the outputs'. A bound or a bias
for each column is less."""
SMALL_BYTES = 4096
"""Work below this takes as long as launching it, so shares of small problems may reach it..."""
SMALL_SHARE = 1 / 8
"""...up to this part of the necessary work."""


class Rule(StrEnum):
    OPERATION = "operation"
    """An operation is not in the closed table, or its arguments do not fit."""
    OUTPUT = "output"
    """No launch of `forward` has a part in an output."""
    INPUT = "input"
    """An input that matters reaches no output."""
    STATE = "state"
    """`forward` writes to something that outlasts the call, and the reference does not."""
    INIT = "init"
    """`init` computes an output, or draws random numbers."""
    TABLE = "table"
    """Values of an input choose from a table that `init` or the host computes: places in it, or
    whether it is used."""
    HEAVY = "heavy"
    RANDOM = "random"
    MOVES = "moves"
    """Torch moves the data in a problem that is about moving data."""
    INDEX = "index"
    COMBINE = "combine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    rule: Rule
    message: str
    """Names the node or storage, and its line: shown to the candidate's author."""
    line: int = 0
    """Line of the node that is refused; 0 if none is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemFacts:
    """The judge's knowledge of a problem, from its reference."""

    num_bytes: int
    """Bytes of its inputs, parameters and outputs: what any solution must move, and the measure of
    its work."""
    needed_inputs: frozenset[int] = frozenset()
    """Positions of tensor inputs that the reference's outputs depend on."""
    float_inputs: frozenset[int] = frozenset()
    """Positions of tensor inputs that the reference reads as floats."""
    has_float_parameters: bool = False
    """True if it reads parameters as floats."""
    written_inputs: frozenset[int] = frozenset()
    """Positions of tensor inputs that the reference writes to."""
    written_parameters: frozenset[str] = frozenset()
    """Names of parameters and buffers that the reference writes to in `forward`."""
    fixed_outputs: frozenset[int] = frozenset()
    """Positions of outputs that no input of the reference reaches."""
    free_outputs: frozenset[int] = frozenset()
    """Positions of outputs that the reference returns without work, such as an input."""
    laid_out: frozenset[int] = frozenset()
    """Positions of outputs whose elements the reference leaves one behind the other in memory."""
    kinds: frozenset[Kind] = frozenset({Kind.HEAVY})
    """Kinds of the reference's own operations."""


# --- judgement


PLAIN_COPIES = ("clone", "copy", "lift_fresh_copy")
"""Copies to the same place in the order of the axes."""


def judge_policy(
    program: form.Program,
    facts: ProblemFacts,
    policy: Policy,
    accesses: Accesses | None = None,
    lookups: Lookups | None = None,
    *,
    counts_checks: bool = False,
) -> Refusal | None:
    """The first rule that a program breaks; None if it may be judged.

    Of a choice that is still open, each alternative is judged.

    Args:
        program: from `wire.loads`.
        accesses, lookups: of kernels, where the caller knows them from TTIR.
        counts_checks: truth values that the host read are not the same on every input set, so that
            what they depend on is work.
    """
    if refusal := _misused(program):
        return refusal
    seen = dict[
        tuple[int, ...], int
    ]()  # what a variant without a refusal has is none in another one
    for nodes in walk.variants(program):
        judged = _Variant(program, facts, nodes, trace(program, nodes, accesses, lookups, seen))
        if refusal := next(judged.refusals(policy, counts_checks=counts_checks), None):
            return refusal
    return None


def judge_work(prefix: form.Program, facts: ProblemFacts, policy: Policy) -> Refusal | None:
    """The first rule about operations that the beginning of a program breaks; None if it may run,
    to answer a question. Its outputs and inputs are judged in the whole program."""
    if refusal := _misused(prefix):
        return refusal
    for nodes in walk.variants(prefix):
        judged = _Variant(prefix, facts, nodes, trace(prefix, nodes, is_question=True))
        if policy == "own" and (refusal := next(judged.own_work(), None)):
            return refusal
    return None


def _misused(program: form.Program) -> Refusal | None:
    for placed in walk.places(program):
        if isinstance(placed.node, form.Op) and (wrong := misuse(placed.node)):
            return _refuse(program, placed, Rule.OPERATION, wrong)
    return None


def _refuse(program: form.Program, placed: walk.Placed, rule: Rule, reason: str) -> Refusal:
    name = node_names(program)[placed.path]
    return Refusal(rule=rule, message=f"{name}: {reason}", line=placed.node.line)


@dataclass(frozen=True, slots=True)
class _Variant:
    """A straight-line list of a program's nodes under judgement."""

    program: form.Program
    facts: ProblemFacts
    nodes: Sequence[walk.Placed]
    flow: Flow

    def refusals(self, policy: Policy, *, counts_checks: bool) -> Iterator[Refusal]:
        """The rules that are broken, lazily."""
        yield from self._work_of_init()
        yield from self._tables()
        if policy == "own":
            yield from self.own_work(counts_checks=counts_checks)
        yield from self._outputs(policy)
        yield from self._layout()
        yield from self._inputs()
        yield from self._state()

    # --- evidence in the dataflow

    def _outputs(self, policy: Policy) -> Iterator[Refusal]:
        """Outputs come out of launches: each of them, or under `hybrid` one at least. One without
        elements owes nothing."""
        outputs = self.program.outputs
        is_empty = [0 in self.program.tensors[number].shape for number in outputs]
        free = self.facts.free_outputs
        owed = [at for at, empty in enumerate(is_empty) if not empty and at not in free]
        without = [at for at in owed if not self._content(at).is_launched]
        if without and (policy == "own" or without == owed):
            words = f"output {without[0]} does not come out of a kernel that forward launches"
            tensors = self.program.tensors
            launches = (
                placed.node for placed in self.nodes if isinstance(placed.node, form.Launch)
            )
            given = {tensors[one].storage for node in launches for one in walk.tensors_of(node)}
            why = "no launch gets it"
            if tensors[outputs[without[0]]].storage in given:
                why = (
                    "a launch gets it and stores nothing of its own to it; are arguments exchanged?"
                )
            yield Refusal(rule=Rule.OUTPUT, message=f"{words}: {why}")

    def _layout(self) -> Iterator[Refusal]:
        """Views that leave the work to their reader, where the reference writes each element in
        order: elements that stand for several, and where the problem is to move data, another order
        of the axes."""
        is_move = self.facts.kinds <= MOVES
        for at, number in enumerate(self.program.outputs):
            tensor = self.program.tensors[number]
            if at not in self.facts.laid_out or 0 in tensor.shape:
                continue
            if walk.is_repeating(tensor) or (is_move and walk.is_permuted(tensor)):
                words = f"output {at} is a view; the reference writes each of its elements in order"
                yield Refusal(rule=Rule.MOVES, message=words)

    def _inputs(self) -> Iterator[Refusal]:
        reached = frozenset[int]().union(
            *(self._content(at).inputs for at in range(len(self.program.outputs)))
        )
        kept = ": a call must use its own inputs, and not what an earlier one was given or made"
        hint = kept if self.program.stateful else ""
        for index in sorted(self.facts.needed_inputs - reached):
            yield Refusal(rule=Rule.INPUT, message=f"input {index} cannot reach any output{hint}")

    def _content(self, output: int) -> Content:
        return self.flow.contents[self.program.tensors[self.program.outputs[output]].storage]

    # --- state

    def _state(self) -> Iterator[Refusal]:
        for storage, placed in self.flow.writers.items():
            if self._outlasts(storage, placed):
                name = storage_name(self.program, storage)
                reason = f"writes to {name}, which outlasts the call; the reference does not"
                yield _refuse(self.program, placed, Rule.STATE, reason)

    def _outlasts(self, storage: int, writer: walk.Placed) -> bool:
        """True if a write of `forward` would be seen outside, or by the next call.

        A buffer that `init` allocated and left uninitialised is a workspace, like one of `forward`.
        A kernel may have a store to an input that no call reaches (Liger's cross-entropy, for
        labels that are ignored): if nothing reads the input afterwards, the run decides, which
        compares inputs. An answer may be in place: an input that it writes to and returns is the
        call's own, if the reference hands out no input.
        """
        held = self.program.storages[storage]
        match held.origin:
            case form.Origin.INPUT:
                matters = not isinstance(writer.node, form.Launch) or storage in self.flow.reread
                is_answer = held.index in walk.returned_inputs(self.program)
                if is_answer and not self.facts.free_outputs:
                    return False
                return matters and held.index not in self.facts.written_inputs
            case form.Origin.PARAMETER:
                return held.name not in self.facts.written_parameters
            case form.Origin.CONSTANT:
                return True
            case form.Origin.ALLOCATION:
                return storage in self.flow.prepared

    # --- work of operations

    def _work_of_init(self) -> Iterator[Refusal]:
        for placed in self._operations(form.Section.INIT):
            if self._kind(placed) == Kind.RANDOM and placed.path in self.flow.live:
                reason = "draws random numbers that no parameter replaces"
                yield _refuse(self.program, placed, Rule.INIT, reason)
        for at in range(len(self.program.outputs)):
            content = self._content(at)
            is_fixed = not content.read or at in self.facts.fixed_outputs
            if content.is_prepared and is_fixed:
                message = f"output {at} is computed in init or on the host, which is not timed"
                yield Refusal(rule=Rule.INIT, message=message)

    def _tables(self) -> Iterator[Refusal]:
        """A table of answers: values of inputs choose its places, or whether it is used at all,
        which makes what `init` or the host computes on all of them the work of `forward`. Positions
        may choose among what no parameter has a part in, as the sines of a rotary embedding. A
        choice to use a table is an answer only if the tables are about as large as the outputs."""
        storages = self.program.storages
        read = [storages[one.storage] for one in self.program.tensors if not is_integer(one.dtype)]
        floats = frozenset(one.index for one in read if one.origin == form.Origin.INPUT)
        num_bytes = sum(
            walk.tensor_bytes(self.program.tensors[one]) for one in self.program.outputs
        )
        is_answer = self.flow.num_table_bytes >= ANSWER_SHARE * num_bytes
        for one in self.flow.looked_up:
            if not one.table.has_parameters and not one.index.inputs & floats:
                continue
            reason = (
                "looks up values of an input in a table that init or the host computes"
                if one.is_place
                else "values of an input decide whether what init or the host computes is used: "
                "compute it in forward"
            )
            if one.is_place or is_answer:
                yield _refuse(self.program, one.placed, Rule.TABLE, reason)

    def own_work(self, *, counts_checks: bool = False) -> Iterator[Refusal]:
        """The rules about operations that are broken, where the kernels do the work. What only
        decides truth values that the host reads, such as an assertion, is none of it."""
        forward = list(self._operations(form.Section.FORWARD))
        reasons = {
            Kind.HEAVY: (Rule.HEAVY, "torch does work that a kernel should do"),
            Kind.RANDOM: (Rule.RANDOM, "draw random numbers in a kernel"),
        }
        for placed in forward:
            if found := reasons.get(self._kind(placed)):
                yield _refuse(self.program, placed, *found)
        if not counts_checks:
            forward = [placed for placed in forward if placed.path not in self.flow.checks]
        yield from self._over(forward, Rule.COMBINE, {Kind.COMBINE}, COMBINE_SHARE)
        yield from self._over(forward, Rule.INDEX, {Kind.INDEX, Kind.COMBINE}, INDEX_SHARE)
        kinds = self.facts.kinds
        if kinds <= MOVES:  # moves are free where the problem is not about them, so are fills
            moves = MOVES if kinds == frozenset({Kind.FILL}) else MOVES - {Kind.FILL}
            yield from self._over(forward, Rule.MOVES, moves, COMBINE_SHARE)
        if kinds <= MOVES | {Kind.INDEX}:
            rearranged = [at for at in forward if self._rearranges(at)]
            yield from self._over(rearranged, Rule.MOVES, {Kind.COPY}, COMBINE_SHARE)

    def _rearranges(self, placed: walk.Placed) -> bool:
        """True for a copy of floats in another order: a reference that moves by constant indices
        is a flip, say. To copy a whole tensor as it lies is honest there, too."""
        node = placed.node
        assert isinstance(node, form.Op)
        read = [
            self.program.tensors[one] for one in walk.tensors_of(node) if one not in node.results
        ]
        if not any(map(self._is_float, read)):
            return False
        is_plain = packet(node.name) in PLAIN_COPIES
        return not (is_plain and all(walk.is_as_it_lies(one) for one in read))

    def _is_float(self, tensor: form.Tensor) -> bool:
        """True for floats, whatever type a view gives them."""
        content = self.flow.contents[tensor.storage]
        is_given = content.inputs & self.facts.float_inputs or (
            content.has_parameters and self.facts.has_float_parameters
        )
        return bool(is_given) or not is_integer(tensor.dtype)

    def _over(
        self, forward: list[walk.Placed], rule: Rule, kinds: Set[Kind], share: float
    ) -> Iterator[Refusal]:
        """Refuses the largest operation of these kinds if all of them move too much."""
        moved = [
            (walk.op_bytes(self.program, at.node), at)
            for at in forward
            if isinstance(at.node, form.Op) and self._kind(at) in kinds
        ]
        total = sum(num_bytes for num_bytes, _ in moved)
        work = self.facts.num_bytes
        allowed = int(max(share * work, min(SMALL_BYTES, SMALL_SHARE * work)))
        if total > allowed:
            reason = (
                f"operations like this ({', '.join(sorted(kinds))}) move {total} bytes; "
                f"{allowed} are allowed in this problem, so a kernel must do it"
            )
            _, largest = max(moved, key=lambda pair: pair[0])
            yield _refuse(self.program, largest, rule, reason)

    def _operations(self, section: form.Section) -> Iterator[walk.Placed]:
        for placed in self.nodes:
            if placed.section == section and isinstance(placed.node, form.Op):
                yield placed

    def _kind(self, placed: walk.Placed) -> Kind:
        assert isinstance(placed.node, form.Op)
        return kind_of(self.program, placed.node)


# --- facts of a reference


GATHERS = {"embedding", "index", "_unsafe_index", "index_select", "gather", "take"}
"""Operations that read as many elements of their first argument as their result has."""
COPIES = {
    *("tril", "triu", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    *(f"_upsample_nearest_exact{axes}d" for axes in (1, 2, 3)),
}
"""Operations that move elements to places that depend on no data, though their kind says more."""
MINOR_SHARE = 0.1
"""Light work below this part of the necessary work leaves a problem about moving data."""


def facts_of(reference: form.Program) -> ProblemFacts:
    """Returns the facts of the problem that a reference poses.

    A large table of which few rows are read counts with those rows, and a parameter that nothing
    reads does not count: else torch could do the work of a small problem within a share of them.
    """
    nodes = next(walk.variants(reference))
    forward = [placed for placed in nodes if placed.section == form.Section.FORWARD]
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
        float_inputs=frozenset(one.index for one in read if one.origin == form.Origin.INPUT),
        has_float_parameters=any(one.origin == form.Origin.PARAMETER for one in read),
        written_inputs=frozenset(one.index for one in written if one.origin == form.Origin.INPUT),
        written_parameters=frozenset(
            one.name for one in written if one.origin == form.Origin.PARAMETER
        ),
        fixed_outputs=frozenset(at for at, inputs in enumerate(reached) if not inputs),
        free_outputs=frozenset(
            at
            for at, storage in enumerate(outputs)
            if _is_given(reference.storages[storage]) and storage not in flow.writers
        ),
        laid_out=frozenset(
            at
            for at, output in enumerate(reference.outputs)
            if walk.is_as_it_lies(reference.tensors[output])
        ),
        kinds=_kinds(reference, forward, work=num_bytes),
    )


def _kinds(reference: form.Program, forward: list[walk.Placed], *, work: int) -> frozenset[Kind]:
    """Kinds of the operations that a problem is about. Beside copies, light work on a small part
    is not: torch would do all but that part for a candidate."""
    moved: dict[Kind, int] = {}
    for placed in forward:
        if isinstance(placed.node, form.Op):
            is_copy = packet(placed.node.name) in COPIES
            kind = Kind.COPY if is_copy else kind_of(reference, placed.node)
            moved[kind] = moved.get(kind, 0) + walk.op_bytes(reference, placed.node)
    light = moved.get(Kind.COMBINE, 0) + moved.get(Kind.INDEX, 0)
    if moved.keys() & {Kind.COPY, Kind.CAST, Kind.PAD} and light <= MINOR_SHARE * work:
        return frozenset(moved.keys() - {Kind.COMBINE, Kind.INDEX})
    return frozenset(moved)


def necessary_bytes(reference: form.Program, forward: list[walk.Placed]) -> int:
    """Counts the given bytes that `forward` reads, and those of the outputs."""
    read = dict.fromkeys(range(len(reference.storages)), 0)
    for placed in forward:
        if not isinstance(placed.node, form.Op):
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
    return given + sum(walk.tensor_bytes(reference.tensors[one]) for one in set(reference.outputs))


def _reads(reference: form.Program, op: form.Op) -> dict[int, int]:
    """Bytes that an operation reads of each storage, at most."""
    found: dict[int, int] = {}
    for number in set(walk.tensors_of(op)):
        tensor = reference.tensors[number]
        found[tensor.storage] = found.get(tensor.storage, 0) + walk.tensor_bytes(tensor)
    source = op.arguments[0] if op.arguments else None
    if packet(op.name) in GATHERS and isinstance(source, form.TensorUse) and op.results:
        table = reference.tensors[source.tensor]
        taken = walk.tensor_bytes(reference.tensors[op.results[0]])
        found[table.storage] = min(found[table.storage], taken)
    return found


def _is_given(storage: form.Storage) -> bool:
    return storage.origin != form.Origin.ALLOCATION
