"""A module compiled into steps: what can be known before the first launch is worked out once.

A step is a Python function over the environment of a function (a list with the value of each SSA
number) and the group of instances that run it. Steps of control flow are generators: they yield
while they wait for another instance (`evaluate` says when).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from forge.evalpool.judge.ttir.decisions import Decision, Decisions
from forge.evalpool.judge.ttir.memory.conflicts import may_synchronise, pass_barrier
from forge.evalpool.judge.ttir.symbolic import Symbolic
from forge.evalpool.judge.ttir.tree import (
    BasicBlock,
    Block,
    Descriptor,
    Function,
    Module,
    Operation,
    Pointer,
    Scalar,
    Type,
    element_of,
    shape_of,
)
from forge.evalpool.judge.ttir.values import Unsupported, dtype_of, fixed
from forge.evalpool.judge.ttir.verify import Use, operations_in, operations_of, uses_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.evalpool.judge.ttir.memory.storages import Group


Environment: TypeAlias = list[Any]
"""Value of each SSA number: an array, a `Symbolic`, a descriptor, or None."""
Step: TypeAlias = Callable[[Environment, "Group"], None]
Run: TypeAlias = Generator[None, None, list[Any]]
"""Runs instances; returns values of results."""
ControlStep: TypeAlias = Callable[[Environment, "Group"], Run]
StepOf: TypeAlias = Callable[["Operation", "Planner"], tuple["Step | ControlStep | None", bool]]

SPINS = frozenset({"tt.atomic_cas", "tt.atomic_rmw", "tt.atomic_load", "tt.atomic_poll"})


@dataclass(slots=True)
class BlockPlan:
    """Steps of a basic block, but for its terminator."""

    arguments: tuple[int, ...]
    terminator: Operation | None
    steps: list[tuple[Step | ControlStep, bool, tuple[int, ...]]] = field(
        default_factory=list[tuple["Step | ControlStep", bool, tuple[int, ...]]]
    )
    """Each with True for control flow, and the values that nothing reads after it."""
    is_straight: bool = True
    """True if no step is control flow."""


@dataclass(slots=True)
class FunctionPlan:
    """A function, ready to run."""

    function: Function
    template: Environment = field(default_factory=list[Any])
    """Environment with the constants."""
    blocks: list[BlockPlan] = field(default_factory=list[BlockPlan])


@dataclass(slots=True)
class ModulePlan:
    """A module, ready to run."""

    module: Module
    functions: dict[str, FunctionPlan] = field(default_factory=dict[str, FunctionPlan])
    max_elements: int = 1
    """Elements of its largest block."""
    is_exact: bool = False
    """True if products of float32 keep what TF32 lacks, whatever precision they ask for."""
    has_spins: bool = False
    """True if an instance may wait in a loop for another one."""
    decisions: list[Decision] = field(default_factory=list[Decision])
    """In the order of the text."""
    ordering: Operation | None = None
    """First atomic operation whose result is used: instances may order themselves by it."""
    _uses: dict[str, tuple[Use | None, ...]] = field(
        default_factory=dict[str, "tuple[Use | None, ...]"]
    )

    def uses(self, name: str) -> tuple[Use | None, ...]:
        """How a kernel accesses memory through each argument (`verify.uses_of`)."""
        if name not in self._uses:
            self._uses[name] = uses_of(self.module, name)
        return self._uses[name]


class Planner:
    """Plans one function."""

    def __init__(self, module: ModulePlan, plan: FunctionPlan, step_of: StepOf) -> None:
        """
        Args:
            step_of: the step of an operation, and True if it is control flow; None where nothing
                happens (`dispatch`).
        """
        self.module = module
        self.plan = plan
        self._step_of = step_of
        plan.template = [None] * plan.function.num_values
        self.used = _used(plan.function)
        """Values that some operation reads."""
        self.decisions = Decisions(module.module, plan.function)

    def run(self) -> None:
        """The plan of the whole function."""
        blocks = self.plan.function.body.blocks
        is_single = len(blocks) == 1
        self.plan.blocks = [self.block(block, frees=is_single) for block in blocks]

    def block(self, block: BasicBlock, *, frees: bool = True) -> BlockPlan:
        """The plan of a block; `frees`: its values are read in this block only."""
        operations = block.operations
        terminator = operations[-1] if operations and _is_terminator(operations[-1]) else None
        planned = BlockPlan(block.arguments, terminator)
        decided = {one.index: self.decisions.of(one, block) for one in operations}
        last = _last_uses(block, decided) if frees else {}
        self.module.decisions += [one for each in decided.values() for one in each]
        for given in operations if terminator is None else operations[:-1]:
            operation = _exact(given) if self.module.is_exact else given
            self._note(operation)
            if may_synchronise(operation):
                planned.steps.append((pass_barrier, False, ()))
            if operation.name == "arith.constant":
                self.plan.template[operation.results[0]] = _constant(operation)
                continue
            step, is_control = self._step_of(operation, self)
            if step is None:
                continue
            planned.steps += [(one.note, False, ()) for one in decided[given.index]]
            planned.is_straight = planned.is_straight and not is_control
            planned.steps.append((step, is_control, last.get(operation.index, ())))
        if terminator is not None:
            planned.steps += [(one.note, False, ()) for one in decided[terminator.index]]
        return planned

    def _note(self, operation: Operation) -> None:
        sizes = [prod(shape_of(kind)) for kind in operation.types.results]
        self.module.max_elements = max(self.module.max_elements, *sizes, 1)
        if operation.name in ("scf.while", "scf.for") and _waits(operation):
            self.module.has_spins = True
        is_read = not self.used.isdisjoint(operation.results)
        if operation.name in SPINS and is_read and self.module.ordering is None:
            self.module.ordering = operation
        if _reveals(operation):
            raise Unsupported(f"line {operation.line}: {operation.name} of an address")


def _reveals(operation: Operation) -> bool:
    """True if the result says something of an address. Triton's verifier has no such text."""
    sources = operation.types.operands
    is_pointer = bool(sources) and isinstance(element_of(sources[0]), Pointer)
    if operation.name == "tt.bitcast":
        return is_pointer and not isinstance(element_of(operation.types.results[0]), Pointer)
    return operation.name == "arith.cmpi" and is_pointer


def _exact(operation: Operation) -> Operation:
    """The same without loss of precision, if it is a product."""
    if operation.name != "tt.dot" or operation.attributes.get("inputPrecision") != "tf32":
        return operation
    return replace(operation, attributes={**operation.attributes, "inputPrecision": "ieee"})


def _used(function: Function) -> frozenset[int]:
    found: set[int] = set()
    for operation in operations_of(function):
        found.update(operation.operands)
        for jump in operation.jumps:
            found.update(jump.arguments)
    return frozenset(found)


def captured(operation: Operation) -> tuple[int, ...]:
    """Values from outside that an operation's regions read."""
    inside = _arguments_in(operation)
    read: set[int] = set()
    for one in operations_in(*operation.regions):
        read.update(one.operands)
        for jump in one.jumps:
            read.update(jump.arguments)
        inside |= _arguments_in(one)
        inside.update(one.results)
    return tuple(sorted(read - inside))


def _arguments_in(operation: Operation) -> set[int]:
    """Arguments of the blocks of an operation's regions."""
    return {v for region in operation.regions for block in region.blocks for v in block.arguments}


def _last_uses(
    block: BasicBlock, decided: Mapping[int, Sequence[Decision]]
) -> dict[int, tuple[int, ...]]:
    """For each operation, by index: values of this block that nothing reads after it.

    Constants stay in the environment: a loop needs them again.
    """
    computed = (one.results for one in block.operations if one.name != "arith.constant")
    own = set(block.arguments).union(*computed)
    last: dict[int, int] = {}
    for operation in block.operations:
        masks = [mask for one in decided[operation.index] for mask in one.masks]
        for value in (*operation.operands, *captured(operation), *operation.results, *masks):
            if value in own:
                last[value] = operation.index
    found: dict[int, list[int]] = {}
    for value, index in last.items():
        found.setdefault(index, []).append(value)
    return {index: tuple(values) for index, values in found.items()}


def _is_terminator(operation: Operation) -> bool:
    return operation.name in TERMINATORS


TERMINATORS = frozenset(
    {
        *("tt.return", "tt.reduce.return", "tt.scan.return", "tt.map_elementwise.return"),
        *("scf.yield", "scf.condition", "cf.br", "cf.cond_br", "cf.switch", "ub.unreachable"),
    }
)


def _waits(operation: Operation) -> bool:
    """True if a loop polls memory: atomics or volatile loads of a `while`, compare-and-swap."""
    return any(
        operation.name == "scf.while" or one.name == "tt.atomic_cas"
        for one in operations_in(*operation.regions)
        if one.name in SPINS or one.attributes.get("isVolatile")
    )


def _constant(operation: Operation) -> Any:
    """Integers of blocks as sums; the rest as compact arrays."""
    kind = operation.types.results[0]
    element = element_of(kind)
    value = operation.attributes["value"]
    shape = shape_of(kind)
    if not isinstance(element, Scalar):
        raise Unsupported("arith.constant of pointers")
    dtype = dtype_of(element)
    if isinstance(value, np.ndarray):
        return fixed(value.reshape(1, *shape).astype(dtype))
    is_sum = shape and not element.is_float and element.name != "i1"
    if is_sum:
        return Symbolic.constant(int(value), len(shape))
    with np.errstate(all="ignore"):
        return fixed(np.full((1,) * (len(shape) + 1), value, dtype))


def block_of(kind: Type) -> Block:
    """The block type of a descriptor. Raises Unsupported for other types."""
    if not isinstance(kind, Descriptor):
        raise Unsupported(f"{kind} is no descriptor")
    return kind.block
