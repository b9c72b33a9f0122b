# pyright: strict
"""Rules about the structure of programs: who did the work, and what may outlast a call.

Two policies. Under `own` the candidate's kernels do the work: beside them, operations of `forward`
may fill, copy, cast and pad, keep books of indices up to `INDEX_SHARE` of the necessary work, and
combine partial results up to `COMBINE_SHARE`. Under `hybrid` torch may do heavy work too; the share
of the candidate's kernels is then measured, and one of them at least must be necessary.

Under both, `init` may do any work on parameters, because that is prepacking: layout, casts, padding
and products of weights (`W @ V`) alike. It runs untimed and again for each set of parameters, and
`prepacking` lists what it computes. An output that no input reaches may not be computed there.

Structure does not tell a kernel that copies from one that computes; what is left for it to copy is
bounded instead: under `own`, torch can have computed at most a hundredth of the necessary work.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from forge.evalpool.judge.program.costs import op_bytes
from forge.evalpool.judge.program.dataflow import Content, Flow, computes_on_data, trace
from forge.evalpool.judge.program.explain import node_names, storage_name
from forge.evalpool.judge.program.format import Launch, Op, Origin, Program, Section
from forge.evalpool.judge.program.ops import MOVES, Kind, kind_of, misuse
from forge.evalpool.judge.program.walk import Placed, places, variants

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from forge.evalpool.judge.program.dataflow import Accesses

Policy = Literal["own", "hybrid"]

COMBINE_SHARE = 0.01
"""Largest part of the necessary work that operations may do by combining results."""
INDEX_SHARE = 0.10
"""Largest part of the necessary work that bookkeeping of indices may have."""
SMALL_BYTES = 4096
"""Work below this takes as long as launching it, so shares of small problems may reach it..."""
SMALL_SHARE = 1 / 8
"""...up to this part of the necessary work."""
FLOPS_PER_BYTE = 300
"""Operations that a card does while it moves a byte, with tensor cores: work is in bytes."""


class Rule(StrEnum):
    """The rule that a program breaks."""

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
    HEAVY = "heavy"
    RANDOM = "random"
    MOVES = "moves"
    """Torch moves the data in a problem that is about moving data."""
    INDEX = "index"
    COMBINE = "combine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A program that a policy refuses."""

    rule: Rule
    message: str
    """Names the node or storage, and its line: shown to the candidate's author."""
    path: str = ""
    """Place of the node that is refused; empty if none is."""
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemFacts:
    """The judge's knowledge of a problem, from its reference."""

    num_bytes: int
    """Bytes of its inputs, parameters and outputs: what any solution must move."""
    flops: int = 0
    """Floating-point operations that any solution needs; 0 where nobody knows. The reference's
    count is no such bound: it may be wasteful."""
    needed_inputs: frozenset[int] = frozenset()
    """Positions of tensor inputs that the reference's outputs depend on."""
    written_inputs: frozenset[int] = frozenset()
    """Positions of tensor inputs that the reference writes to."""
    written_parameters: frozenset[str] = frozenset()
    """Names of parameters and buffers that the reference writes to in `forward`."""
    free_outputs: frozenset[int] = frozenset()
    """Positions of outputs that the reference returns without work, such as an input."""
    kinds: frozenset[Kind] = frozenset({Kind.HEAVY})
    """Kinds of the reference's own operations, by `kinds_of` its captured program."""

    @property
    def work(self) -> float:
        """The necessary work in bytes."""
        return max(self.num_bytes, self.flops / FLOPS_PER_BYTE)

    def allowance(self, share: float) -> float:
        """Bytes that operations of a kind may move, which may do this share of the work."""
        return max(share * self.work, min(SMALL_BYTES, SMALL_SHARE * self.work))


def kinds_of(program: Program) -> frozenset[Kind]:
    """Kinds of the operations of `forward`, for the facts of a reference.

    Operations outside the table count as heavy.
    """
    return frozenset(
        Kind.HEAVY if misuse(placed.node) else kind_of(program, placed.node)
        for placed in places(program)
        if placed.section == Section.FORWARD and isinstance(placed.node, Op)
    )


def prepacking(program: Program) -> list[str]:
    """Names of the nodes of `init` that compute: legal, and reported."""
    names = node_names(program)
    return [
        names[placed.path]
        for placed in places(program)
        if placed.section == Section.INIT
        and (isinstance(placed.node, Launch) or computes_on_data(program, placed.node))
    ]


def judge_policy(
    program: Program, facts: ProblemFacts, policy: Policy, accesses: Accesses | None = None
) -> Refusal | None:
    """The first rule that a program breaks; None if it may be judged.

    Of a choice that is still open, each alternative is judged.

    Args:
        program: from `wire.loads`.
        accesses: reads and writes of kernels, where the caller knows them from TTIR.
    """
    for placed in places(program):
        if isinstance(placed.node, Op) and (wrong := misuse(placed.node)):
            return _refuse(program, placed, Rule.OPERATION, wrong)
    for nodes in variants(program):
        judged = _Variant(program, facts, nodes, trace(program, nodes, accesses))
        if refusal := next(judged.refusals(policy), None):
            return refusal
    return None


def _refuse(program: Program, placed: Placed, rule: Rule, reason: str) -> Refusal:
    name = node_names(program)[placed.path]
    return Refusal(rule=rule, message=f"{name}: {reason}", path=placed.path, line=placed.node.line)


@dataclass(frozen=True, slots=True)
class _Variant:
    """A straight-line list of a program's nodes under judgement."""

    program: Program
    facts: ProblemFacts
    nodes: Sequence[Placed]
    flow: Flow

    def refusals(self, policy: Policy) -> Iterator[Refusal]:
        """The rules that are broken, lazily."""
        yield from self._work_of_init()
        if policy == "own":
            yield from self._own_work()
        yield from self._outputs(policy)
        yield from self._inputs()
        yield from self._state()

    # --- evidence in the dataflow

    def _outputs(self, policy: Policy) -> Iterator[Refusal]:
        """Outputs come out of launches: each of them, or under `hybrid` one at least."""
        owed = [at for at in range(len(self.program.outputs)) if at not in self.facts.free_outputs]
        without = [at for at in owed if not self._content(at).is_launched]
        if without and (policy == "own" or without == owed):
            yield Refusal(
                rule=Rule.OUTPUT,
                message=f"output {without[0]} does not come out of a kernel that forward launches",
            )

    def _inputs(self) -> Iterator[Refusal]:
        reached = frozenset[int]().union(
            *(self._content(at).inputs for at in range(len(self.program.outputs)))
        )
        for index in sorted(self.facts.needed_inputs - reached):
            yield Refusal(rule=Rule.INPUT, message=f"input {index} cannot reach any output")

    def _content(self, output: int) -> Content:
        return self.flow.contents[self.program.tensors[self.program.outputs[output]].storage]

    # --- state

    def _state(self) -> Iterator[Refusal]:
        for storage, placed in self.flow.writers.items():
            if self._outlasts(storage):
                name = storage_name(self.program, storage)
                reason = f"writes to {name}, which outlasts the call; the reference does not"
                yield _refuse(self.program, placed, Rule.STATE, reason)

    def _outlasts(self, storage: int) -> bool:
        """Tells if a write of `forward` would be seen outside, or by the next call.

        A buffer that `init` allocated and left uninitialised is a workspace, like one of `forward`.
        """
        held = self.program.storages[storage]
        match held.origin:
            case Origin.INPUT:
                return held.index not in self.facts.written_inputs
            case Origin.PARAMETER:
                return held.name not in self.facts.written_parameters
            case Origin.CONSTANT:
                return True
            case Origin.ALLOCATION:
                return storage in self.flow.prepared

    # --- work of operations

    def _work_of_init(self) -> Iterator[Refusal]:
        for placed in self._operations(Section.INIT):
            is_random = self._kind(placed) == Kind.RANDOM
            if is_random and placed.path in self.flow.live:
                yield _refuse(self.program, placed, Rule.INIT, "init may not draw random numbers")
        for at in range(len(self.program.outputs)):
            content = self._content(at)
            if content.is_prepared and not content.inputs:
                message = f"output {at} is computed in init, which is not timed"
                yield Refusal(rule=Rule.INIT, message=message)

    def _own_work(self) -> Iterator[Refusal]:
        forward = list(self._operations(Section.FORWARD))
        for placed in forward:
            match self._kind(placed):
                case Kind.HEAVY:
                    yield _refuse(
                        self.program, placed, Rule.HEAVY, "torch does work that a kernel should do"
                    )
                case Kind.RANDOM:
                    yield _refuse(
                        self.program, placed, Rule.RANDOM, "draw random numbers in a kernel"
                    )
                case _:
                    pass
        yield from self._over(forward, Rule.COMBINE, {Kind.COMBINE}, COMBINE_SHARE)
        yield from self._over(forward, Rule.INDEX, {Kind.INDEX, Kind.COMBINE}, INDEX_SHARE)
        yield from self._over(forward, Rule.MOVES, self._moves_of_problem(), COMBINE_SHARE)

    def _moves_of_problem(self) -> frozenset[Kind]:
        """Kinds of moves that the problem is about: free for the candidate otherwise."""
        if not self.facts.kinds <= MOVES:
            return frozenset()
        is_fill = self.facts.kinds == frozenset({Kind.FILL})
        return MOVES if is_fill else MOVES - {Kind.FILL}

    def _over(
        self, forward: list[Placed], rule: Rule, kinds: Set[Kind], share: float
    ) -> Iterator[Refusal]:
        """Refuses the largest operation of these kinds if all of them move too much."""
        moved = {at: self._bytes(at) for at in forward if self._kind(at) in kinds}
        allowed = self.facts.allowance(share)
        if sum(moved.values()) > allowed:
            reason = (
                f"operations like this ({', '.join(sorted(kinds))}) move {sum(moved.values())} "
                f"bytes; {int(allowed)} are allowed in this problem, so a kernel must do it"
            )
            yield _refuse(self.program, max(moved, key=moved.__getitem__), rule, reason)

    def _operations(self, section: Section) -> Iterator[Placed]:
        for placed in self.nodes:
            if placed.section == section and isinstance(placed.node, Op):
                yield placed

    def _kind(self, placed: Placed) -> Kind:
        assert isinstance(placed.node, Op)
        return kind_of(self.program, placed.node)

    def _bytes(self, placed: Placed) -> int:
        assert isinstance(placed.node, Op)
        return op_bytes(self.program, placed.node)
