"""A module compiled into steps, and their run by groups of instances.

`plan_of` works out once what can be known before the first launch. A step is a Python function over
the environment of a function (a list with the value of each SSA number) and the group of instances
that run it; `steps` has those of operations without control flow. Steps of control flow are
generators: they yield while they wait for another instance (`evaluate` says when).

A group is split where its instances take different ways. Groups shrink as instances leave a loop;
in functions with several blocks each part of a group keeps its own position (`_run_blocks`).
Regions of reductions, scans and maps run on whole arrays; one that branches gets an instance for
each element.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from math import prod
from typing import Any, TypeAlias

import numpy as np

from forge.evalpool.judge.ttir import tree, verify
from forge.evalpool.judge.ttir.decisions import Decision, Decisions
from forge.evalpool.judge.ttir.memory.access import may_synchronise, pass_barrier
from forge.evalpool.judge.ttir.memory.storages import Fixed, Group
from forge.evalpool.judge.ttir.parse import malformed, parse
from forge.evalpool.judge.ttir.replay import fixed_in
from forge.evalpool.judge.ttir.semantics import reduce, scan
from forge.evalpool.judge.ttir.steps import HINTS, TensorDescriptor, compute_of, constant_of, hinted
from forge.evalpool.judge.ttir.values import (
    Array,
    Lanes,
    Unsupported,
    dtype_of,
    expanded,
    scalar_of,
    take,
)

Environment: TypeAlias = list[Any]
"""Value of each SSA number: an array, a descriptor, or None."""
Step: TypeAlias = Callable[[Environment, "Group"], None]
Run: TypeAlias = Generator[None, None, list[Any]]
"""Runs instances; returns values of results."""
ControlStep: TypeAlias = Callable[[Environment, "Group"], Run]

PLANS = 64
"""Modules whose plans are kept."""
SPINS = frozenset({"tt.atomic_cas", "tt.atomic_rmw", "tt.atomic_load", "tt.atomic_poll"})
IGNORED = frozenset({"tt.print", "gpu.barrier", "ttg.barrier"})
"""Operations without an effect on values. Instances have no threads that a barrier could order."""


@dataclass(slots=True)
class BlockPlan:
    """Steps of a basic block, but for its terminator."""

    arguments: tuple[int, ...]
    terminator: tree.Operation | None
    steps: list[tuple[Step | ControlStep, bool, tuple[int, ...], int]] = field(
        default_factory=list[tuple["Step | ControlStep", bool, tuple[int, ...], int]]
    )
    """Each with True for control flow, the values that nothing reads after it, and the index of its
    operation; -1 for a step beside one."""

    @property
    def ends(self) -> tuple[int, ...]:
        return () if self.terminator is None else self.terminator.operands


@dataclass(slots=True)
class FunctionPlan:
    function: tree.Function
    template: Environment = field(default_factory=list[Any])
    """Environment with the constants."""
    blocks: list[BlockPlan] = field(default_factory=list[BlockPlan])
    fixed: Fixed = field(default_factory=Fixed)


@dataclass(slots=True)
class ModulePlan:
    module: tree.Module
    functions: dict[str, FunctionPlan] = field(default_factory=dict[str, FunctionPlan])
    max_elements: int = 1
    """Elements of its largest block."""
    is_exact: bool = False
    """True if products of float32 keep what TF32 lacks, whatever precision they ask for."""
    has_spins: bool = False
    """True if an instance may wait in a loop for another one."""
    decisions: list[Decision] = field(default_factory=list[Decision])
    """In the order of the text."""
    ordering: tree.Operation | None = None
    """First atomic operation whose result is used: instances may order themselves by it."""
    _uses: dict[str, tuple[verify.Use | None, ...]] = field(
        default_factory=dict[str, "tuple[verify.Use | None, ...]"]
    )

    def uses(self, name: str) -> tuple[verify.Use | None, ...]:
        """How a kernel accesses memory through each argument (`verify.uses_of`)."""
        if name not in self._uses:
            self._uses[name] = verify.uses_of(self.module, name)
        return self._uses[name]


@lru_cache(maxsize=PLANS)
def plan_of(text: str, *, is_exact: bool = False) -> ModulePlan:
    """The plan of a module's text. Raises InvalidModule for what is not TTIR or not of the closed
    list, Unsupported for an operation that has no semantics here.

    Args:
        is_exact: products of float32 keep what TF32 lacks.
    """
    with malformed():
        module = parse(text)
        verify.verify(module)
        plan = ModulePlan(module, is_exact=is_exact)
        for function in module.functions.values():
            plan.functions[function.name] = FunctionPlan(function)
        for one in plan.functions.values():
            blocks, planner = one.function.body.blocks, Planner(plan, one)
            one.blocks = [planner.block(block, frees=len(blocks) == 1) for block in blocks]
            one.fixed = fixed_in(one.function, plan.decisions)
    return plan


class Planner:
    def __init__(self, module: ModulePlan, plan: FunctionPlan) -> None:
        self.module = module
        self.plan = plan
        plan.template = [None] * len(plan.function.types)
        self.used = verify.values_read(verify.operations_of(plan.function))
        """Values that some operation reads."""
        self.decisions = Decisions(module.module, plan.function)

    def block(self, block: tree.BasicBlock, *, frees: bool = True) -> BlockPlan:
        """The plan of a block; `frees`: its values are read in this block only."""
        operations = block.operations
        has_end = bool(operations) and operations[-1].name in verify.TERMINATORS
        planned = BlockPlan(block.arguments, operations[-1] if has_end else None)
        decided = {one.index: self.decisions.of(one, block) for one in operations}
        last = _last_uses(block, decided) if frees else {}
        self.module.decisions += [one for each in decided.values() for one in each]
        for given in operations:
            notes = [(one.note, False, (), -1) for one in decided[given.index]]
            if given is planned.terminator:
                planned.steps += notes
                continue
            operation = _exact(given) if self.module.is_exact else given
            self._note(operation)
            if may_synchronise(operation):
                planned.steps.append((pass_barrier, False, (), -1))
            if operation.name == "arith.constant":
                self.plan.template[operation.results[0]] = constant_of(operation)
            elif operation.name not in IGNORED:
                is_control = operation.name in CONTROL
                make = CONTROL[operation.name] if is_control else _step
                dead = last.get(operation.index, ())
                planned.steps += [*notes, (make(operation, self), is_control, dead, given.index)]
        return planned

    def outside(self, operation: tree.Operation) -> list[int]:
        """Values from outside of an operation's regions that these read, but for constants."""
        return [value for value in captured(operation) if self.plan.template[value] is None]

    def _note(self, operation: tree.Operation) -> None:
        sizes = [prod(tree.shape_of(kind)) for kind in operation.types.results]
        self.module.max_elements = max(self.module.max_elements, *sizes, 1)
        if operation.name in ("scf.while", "scf.for") and _waits(operation):
            self.module.has_spins = True
        is_read = not self.used.isdisjoint(operation.results)
        if operation.name in SPINS and is_read and self.module.ordering is None:
            self.module.ordering = operation


def _step(operation: tree.Operation, planner: Planner) -> Step:
    """The step of an operation without control flow. Raises Unsupported."""
    if operation.name in ("tt.reduce", "tt.scan", "tt.map_elementwise"):
        return region_step(operation, planner)
    compute = compute_of(operation, planner.used)
    has_hint = not operation.attributes.keys().isdisjoint(HINTS)
    if has_hint:
        is_loaded = bool(planner.decisions.memory_of(operation.results))
        compute = hinted(operation, compute, is_loaded=is_loaded)
    operands, results = operation.operands, operation.results
    if len(results) == 1:
        (result,) = results

        def step(env: Environment, group: Group) -> None:
            env[result] = compute(group, *[env[value] for value in operands])

        return step

    def steps(env: Environment, group: Group) -> None:
        assign(env, results, compute(group, *[env[value] for value in operands]) or ())

    return steps


def _exact(operation: tree.Operation) -> tree.Operation:
    """The same without loss of precision, if it is a product."""
    if operation.name != "tt.dot" or operation.attributes.get("inputPrecision") != "tf32":
        return operation
    return replace(operation, attributes={**operation.attributes, "inputPrecision": "ieee"})


def captured(operation: tree.Operation) -> list[int]:
    """Values from outside that an operation's regions read."""
    if not operation.regions:
        return []
    inner = [*verify.operations_in(*operation.regions)]
    blocks = [b for one in (operation, *inner) for region in one.regions for b in region.blocks]
    inside = {value for one in inner for value in one.results}
    return sorted(verify.values_read(inner) - inside.union(*(block.arguments for block in blocks)))


def _last_uses(
    block: tree.BasicBlock, decided: Mapping[int, Sequence[Decision]]
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
    found: dict[int, tuple[int, ...]] = {}
    for value, index in last.items():
        found[index] = (*found.get(index, ()), value)
    return found


def _waits(operation: tree.Operation) -> bool:
    """True if a loop polls memory: atomics or volatile loads of a `while`, compare-and-swap."""
    return any(
        operation.name == "scf.while" or one.name == "tt.atomic_cas"
        for one in verify.operations_in(*operation.regions)
        if one.name in SPINS or one.attributes.get("isVolatile")
    )


# --- groups of instances


def run_block(block: BlockPlan, env: Environment, group: Group) -> Run:
    group.launch.spend(len(block.steps) + 1)
    skipped = group.launch.tape.skipped
    for step, is_control, dead, index in block.steps:
        work = None if index in skipped else step(env, group)
        if is_control:
            assert work is not None
            yield from work
        for value in dead:
            env[value] = None
    return []


def assign(env: Environment, numbers: Sequence[int], values: Sequence[Any]) -> None:
    for number, value in zip(numbers, values, strict=True):
        env[number] = value


def run_function(plan: FunctionPlan, arguments: Sequence[Any], group: Group) -> Run:
    """Runs a function; the generator returns the values of its results."""
    env = plan.template.copy()
    assign(env, plan.blocks[0].arguments, arguments)
    if len(plan.blocks) == 1:
        yield from run_block(plan.blocks[0], env, group)
        return [env[value] for value in plan.blocks[0].ends]
    return (yield from run_blocks(plan, env, group))


def run_blocks(plan: FunctionPlan, env: Environment, group: Group) -> Run:
    """Runs blocks in their order, each for the instances that are there."""
    everyone = np.arange(group.size)
    waiting: list[tuple[int, int, Any, Environment, Group]] = [(0, 0, everyone, env, group)]
    pieces: list[tuple[Lanes, list[Any]]] = []
    count = 1
    while waiting:
        number, _, lanes, env, part = heapq.heappop(waiting)
        block = plan.blocks[number]
        yield from run_block(block, env, part)
        end = block.terminator
        assert end is not None
        if not end.jumps:
            pieces.append((lanes, [env[value] for value in end.operands]))
            continue
        if end.name not in ("cf.br", "cf.cond_br"):
            raise Unsupported(f"line {end.line}: {end.name}")
        ways: list[tuple[int, Lanes | None]] = [(0, None)]  # successors, with their instances
        if end.name == "cf.cond_br":
            sides = split(env[end.operands[0]], part.size)
            ways = [(1 - is_true, chosen) for is_true, chosen in sides]
        for jump, chosen in ways:
            target, subset, there = env, lanes, part
            if chosen is not None:
                there = part.subset(chosen)
                target = [take_any(value, chosen) for value in env]
                subset = lanes[chosen]
            way = end.jumps[jump]
            values = [target[value] for value in way.arguments]
            assign(target, plan.blocks[way.block].arguments, values)
            heapq.heappush(waiting, (way.block, count, subset, target, there))
            count += 1
    return merged(pieces, group.size)


def lanes_of(mask: Array) -> Lanes:
    """Positions where the mask is True; a slice where they are consecutive."""
    found = np.flatnonzero(mask)
    first, last = int(found[0]), int(found[-1])
    return slice(first, last + 1) if last - first + 1 == len(found) else found


def split(condition: Array, size: int) -> list[tuple[bool, Lanes | None]]:
    """Both sides of a condition that have instances."""
    first = bool(condition.flat[0])
    if condition.size == 1 or bool((condition == first).all()):
        return [(first, None)]
    return [(True, lanes_of(condition)), (False, lanes_of(~condition))]


def take_any(value: Any, lanes: Lanes) -> Any:
    """`take` for descriptors, too."""
    if value is None:
        return value
    if not isinstance(value, TensorDescriptor):
        return take(value, lanes)
    return replace(
        value,
        base=take(value.base, lanes),
        shape=tuple(take(one, lanes) for one in value.shape),
        strides=tuple(take(one, lanes) for one in value.strides),
    )


def merged(pieces: list[tuple[Lanes, list[Any]]], size: int) -> list[Any]:
    """Values of the whole group, from those of its parts."""
    if len(pieces) == 1:
        return pieces[0][1]
    columns: Any = zip(*(values for _, values in pieces), strict=True)
    return [
        _merge([lanes for lanes, _ in pieces], column, size)
        if not isinstance(column[0], TensorDescriptor)
        else column[0]
        for column in columns
    ]


def _merge(lanes: Sequence[Lanes], arrays: Sequence[Array], size: int) -> Array:
    first = arrays[0]
    if len(first) == 1 and all(one is first for one in arrays):
        return first
    shape = np.broadcast_shapes(*(one.shape[1:] for one in arrays))
    found = np.empty((size, *shape), first.dtype)
    for chosen, one in zip(lanes, arrays, strict=True):
        found[chosen] = one
    return found


def subset(
    env: Environment, values: Sequence[int], lanes: Lanes, group: Group
) -> tuple[Environment, Group]:
    inner = env.copy()
    for value in values:
        inner[value] = take_any(env[value], lanes)
    return inner, group.subset(lanes)


# --- steps


def if_step(operation: tree.Operation, planner: Planner) -> ControlStep:
    (condition,) = operation.operands
    branches = [planner.block(region.blocks[0]) for region in operation.regions]
    outside, results = planner.outside(operation), operation.results

    def run(env: Environment, group: Group) -> Run:
        pieces: list[tuple[Lanes, list[Any]]] = []
        for is_true, lanes in split(env[condition], group.size):
            place = 1 - is_true
            if place >= len(branches) or not (branches[place].steps or results):
                continue
            inner, part = env, group
            if lanes is not None:
                inner, part = subset(env, outside, lanes, group)
            yield from run_block(branches[place], inner, part)
            values = [inner[value] for value in branches[place].ends]
            pieces.append((slice(None) if lanes is None else lanes, values))
        if results:
            assign(env, results, merged(pieces, group.size))
        return []

    return run


MAX_CALLS = 64
"""Depth of calls."""


def call_step(operation: tree.Operation, planner: Planner) -> ControlStep:
    target = planner.module.functions[operation.attributes["callee"]]

    def run(env: Environment, group: Group) -> Run:
        launch = group.launch
        launch.depth += 1
        if launch.depth > MAX_CALLS:
            raise Unsupported(f"calls deeper than {MAX_CALLS}")
        found = yield from run_function(target, [env[one] for one in operation.operands], group)
        launch.depth -= 1
        assign(env, operation.results, found)
        return []

    return run


class _Remaining:
    """Instances of a group that are still in a loop: they leave it one after the other."""

    def __init__(self, env: Environment, group: Group, outside: Sequence[int]) -> None:
        """`outside`: values from outside of the loop that differ between instances."""
        self.env, self.group = env, group
        self.staying: Lanes = slice(None)
        """Positions that the last `stay` has kept, among the instances before it."""
        self._outside, self._size = outside, group.size
        self._positions = np.arange(group.size)
        self._pieces: list[tuple[Lanes, list[Any]]] = []

    def stay(self, is_staying: Array, values: list[Any]) -> list[Any] | None:
        """Takes the values of instances that leave for their results. Returns the values of those
        that stay; None if all have left."""
        self.staying = slice(None)
        ways = split(is_staying, self.group.size)
        if ways == [(True, None)]:
            return values
        if len(ways) == 1:
            self._pieces.append((self._positions, values))
            return None
        (_, staying), (_, leaving) = ways
        assert staying is not None
        assert leaving is not None
        left = [take_any(value, leaving) for value in values]
        self._pieces.append((self._positions[leaving], left))
        self.env, self.group = subset(self.env, self._outside, staying, self.group)
        self._positions, self.staying = self._positions[staying], staying
        return [take_any(value, staying) for value in values]

    def results(self) -> list[Any]:
        return merged(self._pieces, self._size)


def for_step(operation: tree.Operation, planner: Planner) -> ControlStep:
    body, outside = planner.block(operation.regions[0].blocks[0]), planner.outside(operation)
    dtype = dtype_of(scalar_of(operation.types.operands[0]))
    is_unsigned = bool(operation.attributes.get("unsigned"))
    low, high, step, *initial = operation.operands

    def run(env: Environment, group: Group) -> Run:
        bounds = [env[value] for value in (low, high, step)]
        bounds = [one.view(f"u{one.itemsize}") for one in bounds] if is_unsigned else bounds
        start, end, stride = (one.astype(np.int64) for one in bounds)
        if (stride <= 0).any():
            raise Unsupported(f"line {operation.line}: a loop whose step is not positive")
        trips = np.maximum(-((start - end) // stride), 0)
        values: list[Any] | None = [env[value] for value in initial]
        rest, done = _Remaining(env, group, outside), 0
        while values is not None:
            count = int(trips.min())
            for number in range(done, count):
                induction = (start + stride * number).astype(dtype)
                assign(rest.env, body.arguments, [induction, *values])
                yield from run_block(body, rest.env, rest.group)
                values = [rest.env[value] for value in body.ends]
            done = count
            values = rest.stay(trips > count, values)
            start, stride, trips = (take_any(one, rest.staying) for one in (start, stride, trips))
        assign(env, operation.results, rest.results())
        return []

    return run


def while_step(operation: tree.Operation, planner: Planner) -> ControlStep:
    before, after = (planner.block(region.blocks[0]) for region in operation.regions)
    outside = planner.outside(operation)
    condition, *forwarded = before.ends

    def run(env: Environment, group: Group) -> Run:
        rest = _Remaining(env, group, outside)
        values: list[Any] = [env[value] for value in operation.operands]
        while True:
            assign(rest.env, before.arguments, values)
            yield from run_block(before, rest.env, rest.group)
            forward = [rest.env[value] for value in forwarded]
            staying = rest.stay(rest.env[condition], forward)
            if staying is None:
                break
            assign(rest.env, after.arguments, staying)
            yield from run_block(after, rest.env, rest.group)
            values = [rest.env[value] for value in after.ends]
            if group.launch.is_serial:
                yield  # another instance may change what this one waits for
        assign(env, operation.results, rest.results())
        return []

    return run


def region_step(operation: tree.Operation, planner: Planner) -> Step:
    evaluate = _elementwise(operation, planner)
    attributes = operation.attributes
    is_map = operation.name == "tt.map_elementwise"
    if is_map and attributes.get("pack", 1) != 1:
        raise Unsupported(f"line {operation.line}: tt.map_elementwise of packs")
    axis = 0 if is_map else attributes["axis"]
    name, reverse = _single_name(operation), bool(attributes.get("reverse"))
    combined = partial(scan, reverse=reverse) if operation.name == "tt.scan" else reduce

    def step(env: Environment, group: Group) -> None:
        operands = [env[value] for value in operation.operands]

        def combine(left: Sequence[Array], right: Sequence[Array]) -> list[Array]:
            return evaluate([*left, *right], env, group)

        if is_map:
            found = evaluate(operands, env, group)
        else:
            full: list[Array] = []
            for array, kind in zip(operands, operation.types.operands, strict=True):
                sizes = list(array.shape[1:])
                sizes[axis] = tree.shape_of(kind)[axis]
                full.append(expanded(array, sizes))
            found = combined(full, axis=axis, combine=combine, name=name)
        assign(env, operation.results, found)

    return step


def _single_name(operation: tree.Operation) -> str:
    """Name of the operation that the region consists of, on its two arguments in order."""
    block = operation.regions[0].blocks[0]
    if len(block.operations) != 2 or len(block.arguments) != 2:
        return ""
    only, end = block.operations
    is_plain = only.operands == block.arguments and end.operands == only.results
    return only.name if is_plain and not only.regions else ""


def _elementwise(
    operation: tree.Operation, planner: Planner
) -> Callable[[list[Array], Environment, Group], list[Array]]:
    """Evaluates a region on arrays of one shape, element by element."""
    inside = operation.regions[0].blocks
    blocks = [planner.block(one, frees=len(inside) == 1) for one in inside]
    block = blocks[0]
    region = replace(planner.plan, blocks=blocks)
    outside = planner.outside(operation)

    def straight(arrays: list[Array], env: Environment, group: Group) -> list[Array]:
        kept = {value: env[value] for value in outside}
        rank = arrays[0].ndim
        for value in outside:
            env[value] = env[value].reshape(-1, *(1,) * (rank - 1))
        assign(env, block.arguments, arrays)
        for step, *_ in block.steps:
            step(env, group)
        for value, before in kept.items():
            env[value] = before
        return [env[value] for value in block.ends]

    def branching(arrays: list[Array], env: Environment, group: Group) -> list[Array]:
        """Each element is an instance of its own."""
        full = np.broadcast_arrays(*arrays)
        inner = planner.plan.template.copy()  # elements have no other values in common
        for value in outside:
            one = env[value].reshape(-1, *(1,) * (full[0].ndim - 1))
            inner[value] = np.broadcast_to(one, full[0].shape).reshape(-1)
        for number, array in zip(block.arguments, full, strict=True):
            inner[number] = array.reshape(-1)
        size = full[0].size
        found: list[Any] = []

        def run() -> Generator[None]:
            found.extend((yield from run_blocks(region, inner, group.elements(size))))

        for _ in run():
            pass  # it waits for no other instance
        return [np.broadcast_to(value, (size,)).reshape(full[0].shape) for value in found]

    has_branch = len(blocks) > 1 or any(is_control for _, is_control, *_ in block.steps)
    return branching if has_branch else straight


CONTROL: dict[str, Callable[[tree.Operation, Planner], ControlStep]] = {
    "scf.if": if_step,
    "scf.for": for_step,
    "scf.while": while_step,
    "tt.call": call_step,
}
