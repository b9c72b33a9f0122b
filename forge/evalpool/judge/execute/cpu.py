"""A whole program on a CPU: launches by the evaluator of `ttir`, operations by torch.

Called by `child_cpu.py` for each call of a candidate. Imports torch only where an operation runs.
Inputs and parameters stay where the caller has them; constants and allocations belong to the
executor. An allocation is poisoned and counts as uninitialised until something writes to it; those
of `init` are put back before each call, so that nothing survives one.

A race or an uninitialised read counts only if it changes an output: the call runs again with the
instances in another order or with another poison. A call may also depend on what an earlier call
left in memory: an allocator hands out memory again with its old content, where a kernel may know
its own marks. So a call runs on other inputs twice: behind the earlier call's content, and behind
poison.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from forge.evalpool.judge.execute.outcome import (
    ExecutionFailed,
    FaultReport,
    Outcome,
    Place,
    Suspicion,
    fault_report,
    operation_report,
    unwritten_report,
)
from forge.evalpool.judge.program.format import (
    ITEM_BYTES,
    Choice,
    Descriptor,
    Launch,
    LaunchArgument,
    Node,
    Op,
    Origin,
    Program,
    Section,
    TensorUse,
    Value,
)
from forge.evalpool.judge.program.format import Storage as ProgramStorage
from forge.evalpool.judge.program.ops import KINDS, MOVES, Kind, packet
from forge.evalpool.judge.program.walk import alternative, open_alternatives, places, tensors_in
from forge.evalpool.judge.ttir.decisions import ANY, PARAMETER, Decision, Noted, note_all
from forge.evalpool.judge.ttir.evaluate import Address, Argument, HostDescriptor, Order, launch
from forge.evalpool.judge.ttir.memory.storages import Faulted, FaultKind, Memory, Storage
from forge.evalpool.judge.ttir.parse import InvalidModule
from forge.evalpool.judge.ttir.plan import ModulePlan, plan_of
from forge.evalpool.judge.ttir.values import Unsupported
from forge.evalpool.judge.ttir.verify import Use

Content: TypeAlias = dict[int, tuple[NDArray[np.uint8], NDArray[np.bool_] | None]]
Bytes: TypeAlias = dict[int, NDArray[np.uint8]]


POISON = 0xFF
"""Byte of uninitialised memory: NaN in every float type, -1 in integers."""


class Poison(StrEnum):
    """Content of memory that nothing has written."""

    SAME = "same"
    RANDOM = "random"
    ZEROS = "zeros"
    """As fresh memory of a card often is."""
    NUMBERS = "numbers"
    """Floats around 1, as tensors that were freed have them."""
    LEFT = "left"
    """Content that an earlier call on other inputs left."""

    def fill(self, data: NDArray[np.uint8]) -> None:
        if self is Poison.LEFT:
            return
        if self in (Poison.SAME, Poison.ZEROS):
            data.fill(POISON if self is Poison.SAME else 0)
            return
        draw = np.random.default_rng()
        if self is Poison.RANDOM:
            data[:] = draw.integers(0, 256, data.shape, np.uint8)
            return
        numbers = draw.standard_normal(-(-len(data) // 4), np.float32)
        data[:] = numbers.view(np.uint8)[: len(data)]


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of one run that may not change its outputs."""

    order: Order = Order.NATURAL
    poison: Poison = Poison.SAME


def chosen_nodes(nodes: Sequence[Node], *, turn: int, shift: int) -> list[Node]:
    """Nodes in order, with the chosen alternative of each choice, or that of this turn."""
    found: list[Node] = []
    num_choices = 0
    for node in nodes:
        if isinstance(node, Choice):
            allowed = open_alternatives(node)
            chosen = allowed[alternative(len(allowed), turn, num_choices * shift)]
            found += chosen_nodes(node.alternatives[chosen].nodes, turn=turn, shift=shift)
            num_choices += len(allowed) > 1
        else:
            found.append(node)
    return found


POISONS = [Conditions(poison=one) for one in Poison if one not in (Poison.SAME, Poison.LEFT)]


RAW = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}
"""Type of raw elements, by their size in bytes."""


@dataclass(slots=True)
class Tensors:
    """The tensors of a program, by their numbers."""

    program: Program
    memory: Memory
    _made: dict[int, Any] = field(init=False, default_factory=dict[int, Any])

    def torch(self, number: int) -> Any:
        if number in self._made:
            return self._made[number]
        import torch

        one = self.program.tensors[number]
        dtype, data = getattr(torch, one.dtype), self.memory.storages[one.storage].data
        if math.prod(one.shape) == 0:
            self._made[number] = torch.empty(one.shape, dtype=dtype)
        else:
            flat: Any = data[: len(data) // ITEM_BYTES[one.dtype] * ITEM_BYTES[one.dtype]]
            whole: Any = torch.as_tensor(flat).view(dtype)
            self._made[number] = whole.as_strided(one.shape, one.strides, one.offset)
        return self._made[number]

    def read(self, number: int) -> NDArray[Any]:
        one = self.program.tensors[number]
        return np.array(self._raw(number), order="C").reshape(one.shape)

    def copy(self, number: int, target: NDArray[np.uint8]) -> None:
        """Writes a tensor's raw elements, contiguous, over as many bytes."""
        raw = self._raw(number)
        np.ndarray(raw.shape, raw.dtype, buffer=target)[...] = raw

    def outputs(self) -> list[NDArray[Any]]:
        return [self.read(number) for number in self.program.outputs]

    def mark_written(self, number: int) -> None:
        storage = self._storage(number)
        if storage.written is not None:
            self._entries(number, storage.written, storage.granule)[...] = True
            if storage.written.all():
                storage.written = None

    def unwritten(self, number: int) -> NDArray[np.bool_] | None:
        """True for each element that nothing has written whole; None where there is none."""
        storage = self._storage(number)
        if storage.written is None:
            return None
        entries = self._entries(number, storage.written, storage.granule)
        missing = np.logical_not(np.all(entries, axis=-1, keepdims=True))[..., 0]
        return missing if missing.any() else None

    def _storage(self, number: int) -> Storage:
        return self.memory.storages[self.program.tensors[number].storage]

    def _raw(self, number: int) -> NDArray[Any]:
        one = self.program.tensors[number]
        size = ITEM_BYTES[one.dtype]
        data = self.memory.storages[one.storage].data
        if math.prod(one.shape) == 0:
            return np.empty(one.shape, RAW[size])
        return np.ndarray(
            one.shape,
            RAW[size],
            buffer=data,
            offset=one.offset * size,
            strides=tuple(stride * size for stride in one.strides),
        )

    def _entries(self, number: int, record: NDArray[Any], granule: int) -> NDArray[Any]:
        """Entries of a record by granule, with an axis for the granules of each element."""
        one = self.program.tensors[number]
        per = max(ITEM_BYTES[one.dtype] // granule, 1)
        if math.prod(one.shape) == 0:
            return np.empty((*one.shape, per), record.dtype)
        return np.ndarray(
            (*one.shape, per),
            record.dtype,
            buffer=record,
            offset=one.offset * per * record.itemsize,
            strides=(*(stride * per * record.itemsize for stride in one.strides), record.itemsize),
        )


NUM_SMS, THREADS_OF_SM, BLOCKS_OF_SM, WARP = 132, 2048, 32, 32
"""The card that instances which wait for each other are held against: an H100."""
MAX_WORDS = 300


def run_operation(node: Op, tensors: Tensors) -> list[Suspicion]:
    """Runs an operation by torch, on tensors that exist already; a result that torch makes is
    copied to the tensor that the program has for it. Returns what may be wrong with it. Raises
    ExecutionFailed: not in the table, or torch refuses its arguments."""
    import torch

    from forge.evalpool.judge.execute import operations

    reads_poison = any(tensors.unwritten(number) is not None for number in _read_by(node))
    targets = [tensors.torch(number) for number in node.results]
    kinds, cpu = [one.dtype for one in targets], torch.device("cpu")
    try:
        with torch.no_grad():
            results = operations.call(node, tensors.torch, kinds=kinds, device=cpu)
            if len(results) != len(targets):
                raise _misfit(node, f"{len(results)} results, not {len(targets)}")
            for target, result in zip(targets, results, strict=True):
                _deliver(node, result, target)
    except operations.UnknownOperation as error:
        raise ExecutionFailed("unsupported", str(error)) from None
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as error:
        words = f"{node.name}: {type(error).__name__}: {error}"[:MAX_WORDS]
        raise ExecutionFailed("operation", words, line=node.line) from error
    for number in node.results:
        tensors.mark_written(number)
    if not reads_poison:
        return []
    return [Suspicion(FaultKind.UNINITIALISED, partial(operation_report, node))]


def _deliver(node: Op, result: Any, target: Any) -> None:
    if result.shape != target.shape or result.dtype != target.dtype:
        wanted = f"{target.dtype} {tuple(target.shape)}"
        raise _misfit(node, f"{result.dtype} {tuple(result.shape)}, not {wanted}")
    is_there = result.data_ptr() == target.data_ptr() and result.stride() == target.stride()
    if not is_there:
        target.copy_(result)


def _misfit(node: Op, words: str) -> ExecutionFailed:
    return ExecutionFailed("operation", f"{node.name} gave {words}", line=node.line)


def _read_by(node: Op) -> set[int]:
    """Tensors whose content an operation may read. Too many cost a few calls and no more."""
    kind = KINDS.get(packet(node.name))
    if kind is Kind.FILL:
        return set()
    literals = (*node.arguments, *node.keywords.values())
    given = {number for literal in literals for number in tensors_in(literal)}
    return given - {*node.results} if kind in MOVES else given


@dataclass(slots=True)
class CpuExecutor:
    """A program bound to a call's memory.

    Attributes:
        program: A checked program (`wire.loads`).
        inputs: Bytes of each tensor input, in the order of the call's arguments.
        parameters: Bytes of each parameter and buffer of the reference, by name.
        has_tf32: Matrix products lose what TF32 lacks. A reference's products on a CPU do not, and
            are held to float32's tolerance; so kernels that ask for TF32 compute in float32 by
            default. Where the reference has none, there is no reason to lose anything.
    """

    program: Program
    inputs: Sequence[NDArray[np.uint8]]
    parameters: Mapping[str, NDArray[np.uint8]]
    has_tf32: bool = False
    noted: Noted = field(default_factory=dict[Any, Any])
    """Gets the sides of decisions that launches take."""
    memory: Memory = field(init=False)
    tensors: Tensors = field(init=False)
    _seen: dict[Decision, int] = field(init=False, default_factory=dict["Decision", int])
    turn: int = field(init=False, default=0)
    shift: int = field(init=False, default=0)
    """Turn and shift of the current call, which all of its runs share."""
    written: frozenset[int] = field(init=False)
    given: Bytes = field(init=False, default_factory=dict[int, Any])
    """Content before `init` of storages, other than allocations, that it may write to."""
    saved: Content = field(init=False, default_factory=dict[int, Any])
    """Content of the allocations of `init` after it."""
    _of_init: list[Suspicion] = field(init=False, default_factory=list["Suspicion"])
    """Suspicions of `init`, which each call confirms or not."""
    _settled: set[int] = field(init=False, default_factory=set[int])
    """Turns of calls that have shown that no output depends on the order of atomics; later calls
    of the same nodes try one other order."""

    def __post_init__(self) -> None:
        smallest = [8] * len(self.program.storages)
        for one in self.program.tensors:
            smallest[one.storage] = min(smallest[one.storage], ITEM_BYTES[one.dtype])
        every = zip(self.program.storages, smallest, strict=True)
        storages = [Storage(data=self._bytes(one), granule=granule) for one, granule in every]
        self.memory = Memory(storages)
        self.tensors = Tensors(self.program, self.memory)
        self.written = self._written_storages(Section.FORWARD)

    def _bytes(self, one: ProgramStorage) -> NDArray[np.uint8]:
        """Memory of a storage. Raises ExecutionFailed where the call's does not fit."""
        match one.origin:
            case Origin.ALLOCATION:
                return np.empty(one.num_bytes, np.uint8)
            case Origin.CONSTANT:
                data = np.frombuffer(self.program.constants[one.index], np.uint8).copy()
            case Origin.INPUT if one.index < len(self.inputs):
                data = self.inputs[one.index]
            case Origin.PARAMETER if one.name in self.parameters:
                data = self.parameters[one.name]
            case _:
                name = f"{one.origin} {one.name or one.index}"
                raise ExecutionFailed("misfit", f"the call has no {name}")
        if len(data) < one.num_bytes:
            name = f"{one.origin} {one.name or one.index}"
            words = f"{name} has {len(data)} bytes, the program uses {one.num_bytes}"
            raise ExecutionFailed("misfit", words)
        return data[: one.num_bytes]

    @property
    def reruns_init(self) -> bool:
        """True if `init` must run before each call: it has a choice, or writes to parameters, which
        each call finds as the reference has them."""
        has_choices = any(len(open_alternatives(node)) > 1 for node in self.program.init)
        return has_choices or bool(self.given)

    def init(self, *, turn: int = 0, shift: int = 0) -> None:
        """Runs `init`, once for each set of parameters. Turn, shift and errors as of `forward`."""
        self.turn, self.shift = turn, shift
        self.given = self._contents(self._written_storages(Section.INIT))
        self._of_init = self._prepare(Outcome(), Conditions())

    def forward(self, *, turn: int = 0, shift: int = 0) -> Outcome:
        """Runs one call on what the inputs and parameters hold now. Raises ExecutionFailed.

        Args:
            turn: which alternative of each open choice runs: 0 is the first of each, and as many
                turns as a choice has alternatives run each of them once.
            shift: choices of as many alternatives run different ones, so far apart; a kernel that
                is wrong beside certain alternatives of others cannot know which are tried.
        """
        self.turn, self.shift = turn, shift
        kept = self._contents(self.written)
        outcome = Outcome()
        suspicions = [*self._of_init, *self._call(outcome, Conditions())]
        for place, number in enumerate(self.program.outputs):
            if (missing := self.tensors.unwritten(number)) is not None:
                report = unwritten_report(self.program, place, missing, self.uses)
                outcome.faults.append(report)
        if suspicions:
            outcome.faults += self._confirmed(suspicions, kept)
        return outcome

    def _contents(self, numbers: Iterable[int]) -> Bytes:
        """Copies of those storages that are no allocations."""
        return {
            number: self.memory.storages[number].data.copy()
            for number in numbers
            if self.program.storages[number].origin is not Origin.ALLOCATION
        }

    def _put_back(self, data_of: Mapping[int, NDArray[np.uint8]]) -> None:
        for number, data in data_of.items():
            self.memory.storages[number].data[:] = data

    def _prepare(self, outcome: Outcome, conditions: Conditions) -> list[Suspicion]:
        """Runs `init` on its parameters and keeps what it made; returns what may be wrong."""
        self._put_back(self.given)
        self._poison(Section.INIT, conditions.poison)
        suspicions = self._run(self.program.init, outcome, conditions)
        for number in self._allocations(Section.INIT):
            storage = self.memory.storages[number]
            written = storage.written
            copied = None if written is None else written.copy()
            self.saved[number] = (storage.data.copy(), copied)
        return suspicions

    def _call(self, outcome: Outcome, conditions: Conditions) -> list[Suspicion]:
        """Runs `forward`. Returns what may be wrong with it."""
        self._restore(conditions)
        self._poison(Section.FORWARD, conditions.poison)
        return self._run(self.program.forward, outcome, conditions)

    def _restore(self, conditions: Conditions, *, is_whole: bool = False) -> None:
        """Puts back what `init` made, if it `is_whole` also what `forward` does not write to; what
        it left unwritten is poisoned."""
        for number, (data, written) in self.saved.items():
            storage = self.memory.storages[number]
            if not (is_whole or number in self.written or storage.written is not None):
                continue
            if written is None or conditions.poison is Poison.SAME:
                storage.data[:] = data
            else:
                conditions.poison.fill(storage.data)
                is_made = np.repeat(written, storage.granule)[: len(data)]
                np.copyto(storage.data, data, where=is_made)
            storage.written = None if written is None else written.copy()

    def _allocations(self, section: Section) -> list[int]:
        return [
            number
            for number, one in enumerate(self.program.storages)
            if one.origin is Origin.ALLOCATION and one.section is section
        ]

    def _poison(self, section: Section, poison: Poison) -> None:
        """Poisons the allocations of a section, which count as unwritten from then on."""
        for number in self._allocations(section):
            poison.fill(self.memory.storages[number].data)
            self.memory.storages[number].forget()

    def _written_storages(self, section: Section) -> frozenset[int]:
        written: list[int] = []
        for node in (one.node for one in places(self.program) if one.section is section):
            if isinstance(node, Op):
                written += node.results
            elif isinstance(node, Launch):
                written += (
                    one.tensor
                    for one, use in zip(node.arguments, self.uses(node), strict=False)
                    if use and use.is_written and isinstance(one, (TensorUse, Descriptor))
                )
        return frozenset(self.program.tensors[one].storage for one in written)

    def _run(
        self, nodes: Sequence[Node], outcome: Outcome, conditions: Conditions
    ) -> list[Suspicion]:
        suspicions: list[Suspicion] = []
        for node in chosen_nodes(nodes, turn=self.turn, shift=self.shift):
            if isinstance(node, Launch):
                suspicions += self._launch(node, outcome, conditions)
            elif isinstance(node, Op):
                suspicions += run_operation(node, self.tensors)
            elif isinstance(node, Value):
                self._check_value(node)
        return suspicions

    def _check_value(self, node: Value) -> None:
        found = self.tensors.torch(node.tensor).item()
        is_same = found == node.answer or (found != found and node.answer != node.answer)
        if node.answer is not None and not is_same:
            words = f"a value read on the host is {found}; the program was made for {node.answer}"
            raise ExecutionFailed("value", words, line=node.line)

    def _plan(self, node: Launch) -> ModulePlan:
        """The plan of a launch's kernel. Raises ExecutionFailed where the evaluator has none."""
        kernel = self.program.kernels[node.kernel]
        try:
            return plan_of(kernel.ttir, is_exact=not self.has_tf32)
        except InvalidModule as error:
            words = f"kernel {kernel.name}: {error}"
            raise ExecutionFailed("unsupported", words, line=node.line) from error
        except Unsupported as error:
            raise ExecutionFailed("unsupported", str(error), line=node.line) from error

    def uses(self, node: Launch) -> Sequence[Use | None]:
        return self._plan(node).uses(self.program.kernels[node.kernel].name)

    def _launch(self, node: Launch, outcome: Outcome, conditions: Conditions) -> list[Suspicion]:
        """Runs a launch and counts it in the outcome. Returns what may be wrong with it."""
        place, plan = Place(self.program, node, outcome.num_launches), self._plan(node)
        kernel = self.program.kernels[node.kernel]
        arguments = [self._argument(one) for one in node.arguments]
        threads = WARP * kernel.options.num_warps
        try:
            report = launch(
                plan,
                kernel.name,
                node.grid,
                arguments,
                self.memory,
                order=conditions.order,
                # As many as the assumed card holds at once, if threads are the only limit.
                num_resident=max(1, NUM_SMS * min(THREADS_OF_SM // threads, BLOCKS_OF_SM)),
                num_warps=kernel.options.num_warps,
                seen=self._seen,
                key=id(node),
            )
            memory = [self._memory_of(one) for one in node.arguments]
            note_all(self.noted, plan.decisions, self._seen, kernel, memory)
        except Faulted as error:
            found = fault_report(error.fault, place)
            raise ExecutionFailed(found.kind, found.message, line=found.line) from error
        except Unsupported as error:
            words = f"kernel {kernel.name}: {error}"
            raise ExecutionFailed("unsupported", words, line=node.line) from error
        outcome.num_launches += 1
        outcome.num_bytes += report.num_bytes
        return [Suspicion(one.kind, partial(fault_report, one, place)) for one in report.suspicions]

    def _argument(self, argument: LaunchArgument) -> Argument:
        if isinstance(argument, TensorUse):
            return self._address(argument.tensor)
        if isinstance(argument, Descriptor):
            return HostDescriptor(
                base=self._address(argument.tensor),
                shape=argument.shape,
                strides=argument.strides,
                padding=math.nan if argument.padding == "nan" else 0.0,
            )
        return Address(None) if argument is None else argument

    def _memory_of(self, argument: LaunchArgument) -> str:
        """The input that an argument points to, by its number; a parameter by its name; or ANY."""
        if not isinstance(argument, TensorUse | Descriptor):
            return ANY
        storage = self.program.storages[self.program.tensors[argument.tensor].storage]
        known = {Origin.INPUT: str(storage.index), Origin.PARAMETER: PARAMETER + storage.name}
        return known.get(storage.origin, ANY)

    def _address(self, tensor: int) -> Address:
        one = self.program.tensors[tensor]
        return Address(one.storage, one.offset * ITEM_BYTES[one.dtype])

    def _confirmed(self, suspicions: Sequence[Suspicion], kept: Bytes) -> list[FaultReport]:
        """Reports of the suspicions that change an output; `kept` is the content before the call of
        what it may write to. Leaves memory as the first run did."""
        outputs, saved = self.tensors.outputs(), dict(self.saved)
        after = {number: self.memory.storages[number].data.copy() for number in self.written}
        found = [one.report() for one in suspicions if one.kind is FaultKind.BARRIER]
        has_choices = any(len(open_alternatives(node)) > 1 for node in self.program.nodes)
        turn = self.turn if has_choices else 0
        reversed_, orders = Conditions(order=Order.REVERSED), [Conditions(order=Order.SHUFFLED)]
        orders += [] if turn in self._settled else [reversed_]
        for kind, tried in {
            FaultKind.RACE: orders,
            FaultKind.LANES: [reversed_],
            FaultKind.ORDER: orders,
            FaultKind.UNINITIALISED: POISONS,
        }.items():
            mine = [one for one in suspicions if one.kind is kind]
            is_left = bool(mine) and kind is FaultKind.UNINITIALISED and self._uses_leftovers(kept)
            if mine and (is_left or any(self._is_changed(one, kept, outputs) for one in tried)):
                found += [one.report() for one in mine]
            elif mine and kind is FaultKind.ORDER:
                self._settled.add(turn)
        if self._of_init:
            self.saved = saved
            self._restore(Conditions(), is_whole=True)
        self._put_back(after)
        return found

    def _is_changed(self, conditions: Conditions, kept: Bytes, outputs: list[NDArray[Any]]) -> bool:
        """True if a call under other conditions has other outputs, or fails."""
        self._put_back(kept)
        try:
            if self._of_init:
                self._prepare(Outcome(), conditions)
            self._call(Outcome(), conditions)
        except ExecutionFailed:
            return True
        return self._has_other_outputs(outputs)

    def _uses_leftovers(self, kept: Bytes) -> bool:
        """True if outputs on other inputs depend on what the last call has left in memory that
        nothing has written: a random half of the elements of inputs change places."""
        sizes = {
            one.storage: ITEM_BYTES[one.dtype]
            for one in self.program.tensors
            if "float" in one.dtype and self.program.storages[one.storage].origin is Origin.INPUT
        }
        given = {number: self.memory.storages[number].data.copy() for number in sizes}
        draw = np.random.default_rng()
        try:
            for number, size in sizes.items():
                data = self.memory.storages[number].data
                elements = data[: len(data) // size * size].view(RAW[size])
                chosen = np.flatnonzero(draw.random(len(elements)) < 0.5)
                elements[chosen] = elements[draw.permutation(chosen)]
            mixed = {**kept, **self._contents(given)}
            self._put_back(mixed)
            self._call(Outcome(), Conditions(poison=Poison.LEFT))
            outputs = self.tensors.outputs()
            self._put_back(mixed)
            self._call(Outcome(), Conditions())
            return self._has_other_outputs(outputs)
        except ExecutionFailed:  # other inputs may be out of its range
            return False
        finally:
            self._put_back(given)

    def _has_other_outputs(self, outputs: list[NDArray[Any]]) -> bool:
        return any(
            _differ(before, self.tensors.read(number), self.program.tensors[number].dtype)
            for before, number in zip(outputs, self.program.outputs, strict=True)
        )


TOLERANCE = 1e-3
"""Relative difference of an output between two orders that atomic sums of floats may have."""
FLOATS = {"float64": np.float64, "float32": np.float32, "float16": np.float16}


def _differ(before: NDArray[Any], after: NDArray[Any], dtype: str) -> bool:
    """True if two runs' outputs differ by more than the order of a sum explains."""
    if np.array_equal(before, after):
        return False
    if dtype == "bfloat16":
        values = [(one.astype(np.uint32) << 16).view(np.float32) for one in (before, after)]
    elif dtype in FLOATS:
        values = [one.view(FLOATS[dtype]) for one in (before, after)]
    else:
        return True
    with np.errstate(all="ignore"):  # poison may be a signalling NaN
        first, second = (one.astype(np.float64) for one in values)
        scale = float(np.abs(first[np.isfinite(first)]).max(initial=0.0))
        near = np.isclose(first, second, rtol=TOLERANCE, atol=TOLERANCE * scale, equal_nan=True)
    return not bool(near.all())
