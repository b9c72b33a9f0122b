# pyright: strict
"""Runs a whole program on a CPU: launches by the evaluator of `ttir`, op nodes by torch.

Inputs and parameters stay where the caller has them; constants and allocations belong to the
executor. An allocation is poisoned and counts as uninitialised until something writes to it; those
of `init` are put back before each call, so that nothing survives one.

A race or an uninitialised read is reported only if it changes an output: the call runs again with
the instances in another order, or with another poison, and its outputs are compared.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from forge.evalpool.judge.execute.dependent import EARLY_WORDS, Unfinished, used_storages
from forge.evalpool.judge.execute.outcome import (
    ExecutionFailed,
    FaultReport,
    NodeCost,
    Outcome,
)
from forge.evalpool.judge.execute.report import (
    Place,
    fault_report,
    operation_report,
    unwritten_report,
)
from forge.evalpool.judge.program.format import (
    ITEM_BYTES,
    Choice,
    Descriptor,
    Launch,
    Op,
    Origin,
    Section,
    TensorUse,
    Value,
)
from forge.evalpool.judge.program.ops import KINDS, MOVES, Kind, packet
from forge.evalpool.judge.program.walk import open_alternatives, places, tensors_in, tensors_of
from forge.evalpool.judge.ttir.contraction import ALL, NONE
from forge.evalpool.judge.ttir.evaluate import Address, HostDescriptor, Order, launch
from forge.evalpool.judge.ttir.memory.storages import (
    ALIGNMENTS,
    Faulted,
    FaultKind,
    Memory,
    Storage,
)
from forge.evalpool.judge.ttir.plan import plan_of
from forge.evalpool.judge.ttir.scan import InvalidModule
from forge.evalpool.judge.ttir.values import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from forge.evalpool.judge.program.format import LaunchArgument, Node, Program
    from forge.evalpool.judge.ttir.contraction.rewrite import Fusion
    from forge.evalpool.judge.ttir.evaluate import Argument

    Content: TypeAlias = dict[int, tuple[NDArray[np.uint8], NDArray[np.bool_] | None]]

POISON = 0xFF
"""Byte of uninitialised memory: NaN in every float type, -1 in integers."""
TOLERANCE = 1e-3
"""Relative difference of an output between two orders that atomic sums of floats may have."""
TF32 = "inputPrecision = tf32 "
"""Attribute of a matrix product in TTIR."""
NUM_SMS, THREADS_OF_SM, BLOCKS_OF_SM, WARP = 132, 2048, 32, 32
"""The card that instances which wait for each other are held against: an H100."""
PRODUCT = re.compile(r"tt\.dot .*: tensor<(?:\d+x)+(?P<element>\w+)")
"""A matrix product in TTIR, with the element of its left operand."""
RAW = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}
FLOATS = {"float64": np.float64, "float32": np.float32, "float16": np.float16}


class Poison(StrEnum):
    """Content of memory that nothing has written."""

    SAME = "same"
    """`POISON` everywhere."""
    RANDOM = "random"
    """Any bytes."""
    ZEROS = "zeros"
    """As fresh memory of a card often is."""
    NUMBERS = "numbers"
    """Floats around 1, as tensors that were freed have them."""
    LEFT = "left"
    """Content that an earlier call on other inputs left."""

    def fill(self, data: NDArray[np.uint8]) -> None:
        """Writes it over a storage."""
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
class _Mode:
    """Conditions of one run."""

    order: Order = Order.NATURAL
    poison: Poison = Poison.SAME
    layout: tuple[bool, int] | None = None
    """`is_near` and `alignment` of other addresses (`Memory.move`)."""


@dataclass(frozen=True, slots=True)
class _Suspicion:
    """A memory error that may not matter."""

    kind: FaultKind
    report: Callable[[], FaultReport]


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
    memory: Memory = field(init=False)
    _saved: Content = field(init=False)
    """Content of the allocations of `init` after it."""
    _given: dict[int, NDArray[np.uint8]] = field(init=False, default_factory=dict[int, Any])
    """Content before `init` of other storages that it may write to."""
    _of_init: list[_Suspicion] = field(init=False, default_factory=list[_Suspicion])
    """Suspicions of `init`, which each call confirms or not."""
    _tensors: dict[int, Any] = field(init=False, default_factory=dict[int, Any])
    _settled: set[int] = field(init=False, default_factory=set[int])
    """Turns of calls that have shown that no output depends on the order of atomics; later calls
    of the same nodes try one other order."""
    _turn: int = field(init=False, default=0)
    """Number of the alternative that runs of the first open choice."""
    _shift: int = field(init=False, default=0)
    """Distance from it of the alternative of the next one."""
    _fusion: Fusion = field(init=False, default=ALL)
    """Sums of a product that are fused with it."""
    _written: frozenset[int] = field(init=False)
    """Storages that `forward` may write to."""

    def __post_init__(self) -> None:
        granules = self._granules()
        self.memory = Memory(
            [
                Storage(data=self._bytes(number), granule=granules[number])
                for number in range(len(self.program.storages))
            ]
        )
        self._saved = {}
        self._written = self._written_storages(Section.FORWARD)

    @property
    def reruns_init(self) -> bool:
        """True if `init` must run before each call: it has a choice, or writes to parameters, which
        each call finds as the reference has them."""
        has_choices = any(len(open_alternatives(node)) > 1 for node in self.program.init)
        return has_choices or bool(self._given)

    def init(self, *, turn: int = 0, shift: int = 0, fusion: Fusion = ALL) -> Outcome:
        """Runs the section `init`, once for each set of parameters.

        Args:
            turn, shift, fusion: as of `forward`.

        Raises:
            ExecutionFailed: the program cannot be run, or accesses memory out of bounds.
        """
        self._turn, self._shift, self._fusion = turn, shift, fusion
        outcome = Outcome()
        self._given = self._contents(self._written_storages(Section.INIT))
        self._of_init = self._prepare(outcome, _Mode())
        return outcome

    def _prepare(self, outcome: Outcome, mode: _Mode) -> list[_Suspicion]:
        """Runs `init` and keeps what it made."""
        for number, data in self._given.items():
            self.memory.storages[number].data[:] = data
        self._poison(Section.INIT, mode)
        suspicions = self._run(self.program.init, outcome, mode)
        for number, one in enumerate(self.program.storages):
            if one.origin is Origin.ALLOCATION and one.section is Section.INIT:
                storage = self.memory.storages[number]
                written = storage.written
                copied = None if written is None else written.copy()
                self._saved[number] = (storage.data.copy(), copied)
        return suspicions

    def _contents(self, numbers: Iterable[int]) -> dict[int, NDArray[np.uint8]]:
        """Content of those storages that are no allocations."""
        return {
            number: self.memory.storages[number].data.copy()
            for number in numbers
            if self.program.storages[number].origin is not Origin.ALLOCATION
        }

    def forward(self, *, turn: int = 0, shift: int = 0, fusion: Fusion = ALL) -> Outcome:
        """Runs one call on what the inputs and parameters hold now.

        Args:
            turn: which alternative of each open choice runs: 0 is the first of each, and as many
                turns as a choice has alternatives run each of them once.
            shift: choices of as many alternatives run different ones, so far apart; a kernel that
                is wrong beside certain alternatives of others cannot know which are tried.
            fusion: which sums of a product are fused with it, in kernels that allow it. With ALL of
                them, as on a card, elementary functions have a card's errors.

        Raises:
            ExecutionFailed: the program cannot be run, or accesses memory out of bounds.
        """
        self._turn, self._shift, self._fusion = turn, shift, fusion
        kept = self._contents(self._written)
        outcome = Outcome()
        suspicions = [*self._of_init, *self._call(outcome, _Mode())]
        outcome.faults += self._unwritten()
        if suspicions:
            outcome.faults += self._confirmed(suspicions, kept)
        return outcome

    def read(self, tensor: int) -> NDArray[Any]:
        """A tensor of the program as a contiguous copy of raw elements (unsigned integers)."""
        one = self.program.tensors[tensor]
        return np.array(self._raw(tensor), order="C").reshape(one.shape)

    def scalar(self, tensor: int) -> bool | int | float:
        """Value of a tensor of one element."""
        return self._tensor(tensor).item()

    # storages

    def _granules(self) -> list[int]:
        """Smallest element of each storage, in bytes."""
        found = [16] * len(self.program.storages)
        for one in self.program.tensors:
            found[one.storage] = min(found[one.storage], ITEM_BYTES[one.dtype])
        return [min(one, 8) for one in found]

    def _bytes(self, number: int) -> NDArray[np.uint8]:
        one = self.program.storages[number]
        if one.origin is Origin.ALLOCATION:
            return np.empty(one.num_bytes, np.uint8)
        if one.origin is Origin.CONSTANT:
            data = np.frombuffer(self.program.constants[one.index], np.uint8).copy()
        elif one.origin is Origin.INPUT:
            if one.index >= len(self.inputs):
                raise ExecutionFailed("misfit", f"the call has no tensor input {one.index}")
            data = self.inputs[one.index]
        else:
            if one.name not in self.parameters:
                raise ExecutionFailed("misfit", f"the reference has no parameter {one.name}")
            data = self.parameters[one.name]
        if len(data) < one.num_bytes:
            name = f"{one.origin} {one.name or one.index}"
            words = f"{name} has {len(data)} bytes, the program uses {one.num_bytes}"
            raise ExecutionFailed("misfit", words)
        return data[: one.num_bytes]

    def _poison(self, section: Section, mode: _Mode) -> None:
        for number, one in enumerate(self.program.storages):
            if one.origin is Origin.ALLOCATION and one.section is section:
                storage = self.memory.storages[number]
                mode.poison.fill(storage.data)
                storage.forget()

    def _restore(self, mode: _Mode, *, is_whole: bool = False) -> None:
        """Puts back what `init` made; what it left unwritten is poisoned."""
        for number, (data, written) in self._saved.items():
            storage = self.memory.storages[number]
            if not (is_whole or number in self._written or storage.written is not None):
                continue
            if written is None or mode.poison is Poison.SAME:
                storage.data[:] = data
            else:
                mode.poison.fill(storage.data)
                is_made = np.repeat(written, storage.granule)[: len(data)]
                np.copyto(storage.data, data, where=is_made)
            storage.written = None if written is None else written.copy()

    def _written_storages(self, section: Section) -> frozenset[int]:
        """Storages that a node of a section may write to."""
        found: set[int] = set()
        placed = (one for one in places(self.program) if one.section is section)
        for node in (one.node for one in placed):
            if isinstance(node, Op):
                found.update(self.program.tensors[one].storage for one in node.results)
            elif isinstance(node, Launch):
                found.update(self._written_by(node))
        return frozenset(found)

    def _written_by(self, node: Launch) -> set[int]:
        kernel = self.program.kernels[node.kernel]
        plan = self._plan(node)
        uses = plan.uses(kernel.name)
        return {
            self.program.tensors[one.tensor].storage
            for one, use in zip(node.arguments, uses, strict=False)
            if use is not None and use.is_written and isinstance(one, (TensorUse, Descriptor))
        }

    # running

    def _nodes(self, nodes: Sequence[Node]) -> list[Node]:
        """Nodes in order, with the chosen alternative of each choice, or that of this turn."""
        found: list[Node] = []
        num_choices = 0
        for node in nodes:
            if isinstance(node, Choice):
                allowed = open_alternatives(node)
                chosen = allowed[alternative(len(allowed), self._turn, num_choices * self._shift)]
                found += self._nodes(node.alternatives[chosen].nodes)
                num_choices += len(allowed) > 1
            else:
                found.append(node)
        return found

    def _call(self, outcome: Outcome, mode: _Mode) -> list[_Suspicion]:
        self._restore(mode)
        self._poison(Section.FORWARD, mode)
        return self._run(self.program.forward, outcome, mode)

    def _run(self, nodes: Sequence[Node], outcome: Outcome, mode: _Mode) -> list[_Suspicion]:
        suspicions: list[_Suspicion] = []
        unfinished = Unfinished(self.program)
        for node in self._nodes(nodes):
            if isinstance(node, Launch):
                if not unfinished.begin(node, self._plan(node)):
                    raise ExecutionFailed("unsupported", EARLY_WORDS, line=node.line)
                suspicions += self._launch(node, outcome, mode)
            elif isinstance(node, Op):
                unfinished.pass_by(node)
                suspicions += self._operation(node)
                outcome.costs.append(self._cost_of(node))
            elif isinstance(node, Value):
                self._check_value(node)
        return suspicions

    def _plan(self, node: Launch) -> Any:
        kernel = self.program.kernels[node.kernel]
        try:
            return plan_of(kernel.ttir, is_exact=not self.has_tf32)
        except InvalidModule as error:
            words = f"kernel {kernel.name}: {error}"
            raise ExecutionFailed("unsupported", words, line=node.line) from error
        except Unsupported as error:
            raise ExecutionFailed("unsupported", str(error), line=node.line) from error

    def _launch(self, node: Launch, outcome: Outcome, mode: _Mode) -> list[_Suspicion]:
        kernel = self.program.kernels[node.kernel]
        plan = self._plan(node)
        arguments = [self._argument(one) for one in node.arguments]
        try:
            report = launch(
                plan,
                kernel.name,
                node.grid,
                arguments,
                self.memory,
                order=mode.order,
                num_resident=self._num_resident(node),
                num_warps=kernel.options.num_warps,
                fusion=self._fusion if kernel.options.enable_fp_fusion else NONE,
                as_card=self._fusion == ALL,
            )
        except Faulted as error:
            found = fault_report(error.fault, Place(self.program, node, outcome.num_launches))
            raise ExecutionFailed(found.kind, found.message, line=found.line) from error
        except Unsupported as error:
            words = f"kernel {kernel.name}: {error}"
            raise ExecutionFailed("unsupported", words, line=node.line) from error
        place = Place(self.program, node, outcome.num_launches)
        read, written = self._bytes_of(node, plan)
        loaded, stored = report.bytes_loaded, report.bytes_stored
        outcome.costs.append(
            NodeCost(
                name=kernel.name,
                line=node.line,
                tensor_bytes=min(loaded, read) + min(stored, written),
                requested_bytes=loaded + stored,
                flops=report.flops,
                kind=_arithmetic(kernel.ttir),
                num_programs=math.prod(node.grid),
            )
        )
        return [
            _Suspicion(one.kind, partial(fault_report, one, place)) for one in report.suspicions
        ]

    def _num_resident(self, node: Launch) -> int:
        """Instances of a launch that the assumed card holds at once, if their threads are the only
        limit."""
        options = self.program.kernels[node.kernel].options
        num_threads = WARP * options.num_warps
        num_blocks = NUM_SMS * min(THREADS_OF_SM // num_threads, BLOCKS_OF_SM)
        found = max(1, num_blocks // options.num_ctas)
        if options.launch_cooperative_grid and math.prod(node.grid) > found:
            words = f"a cooperative launch of {math.prod(node.grid)} programs; a card holds {found}"
            raise Unsupported(words)
        return found

    def _bytes_of(self, node: Launch, plan: Any) -> tuple[int, int]:
        """Bytes of the storages that a launch may read, and of those that it may write to."""
        uses = plan.uses(self.program.kernels[node.kernel].name)
        read, written = used_storages(self.program, node, uses)
        storages = self.program.storages
        return (
            sum(storages[number].num_bytes for number in read),
            sum(storages[number].num_bytes for number in written),
        )

    def _cost_of(self, node: Op) -> NodeCost:
        tensors = [self.program.tensors[number] for number in {*tensors_of(node)}]
        num_bytes = sum(math.prod(one.shape) * ITEM_BYTES[one.dtype] for one in tensors)
        return NodeCost(name=node.name, line=node.line, tensor_bytes=num_bytes)

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

    def _address(self, tensor: int) -> Address:
        one = self.program.tensors[tensor]
        return Address(one.storage, one.offset * ITEM_BYTES[one.dtype])

    def _operation(self, node: Op) -> list[_Suspicion]:
        from forge.evalpool.judge.execute import torch_nodes

        reads_poison = any(self._is_partly_unwritten(number) for number in self._read_by(node))
        torch_nodes.run(node, self._tensor)
        for number in node.results:
            storage = self.memory.storages[self.program.tensors[number].storage]
            if storage.written is not None:
                self._entries(number, storage.written, storage.granule)[...] = True
                if storage.written.all():
                    storage.written = None
        if not reads_poison:
            return []
        return [_Suspicion(FaultKind.UNINITIALISED, partial(operation_report, node))]

    def _read_by(self, node: Op) -> set[int]:
        """Tensors whose content an operation may read. Too many cost a few calls and no more."""
        kind = KINDS.get(packet(node.name))
        if kind is Kind.FILL:
            return set()
        literals = (*node.arguments, *node.keywords.values())
        given = {number for literal in literals for number in tensors_in(literal)}
        return given - {*node.results} if kind in MOVES else given

    def _is_partly_unwritten(self, number: int) -> bool:
        storage = self.memory.storages[self.program.tensors[number].storage]
        if storage.written is None:
            return False
        return not bool(self._entries(number, storage.written, storage.granule).all())

    def _check_value(self, node: Value) -> None:
        found = self.scalar(node.tensor)
        is_same = found == node.answer or (found != found and node.answer != node.answer)
        if node.answer is not None and not is_same:
            words = f"a value read on the host is {found}; the program was made for {node.answer}"
            raise ExecutionFailed("value", words, line=node.line)

    # tensors

    def _tensor(self, number: int) -> Any:
        """A torch tensor over the memory of a tensor of the program."""
        if number not in self._tensors:
            import torch

            one = self.program.tensors[number]
            dtype = getattr(torch, one.dtype)
            data = self.memory.storages[one.storage].data
            if math.prod(one.shape) == 0:
                self._tensors[number] = torch.empty(one.shape, dtype=dtype)
            else:
                size = ITEM_BYTES[one.dtype]
                flat: Any = data[: len(data) // size * size]
                whole: Any = torch.as_tensor(flat).view(dtype)
                view = whole.as_strided(one.shape, one.strides, one.offset)
                self._tensors[number] = view
        return self._tensors[number]

    def _raw(self, number: int) -> NDArray[Any]:
        """A strided view of a tensor's raw elements."""
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

    # faults

    def _unwritten(self) -> list[FaultReport]:
        """Outputs with elements that nothing wrote."""
        found: list[FaultReport] = []
        for place, number in enumerate(self.program.outputs):
            storage = self.memory.storages[self.program.tensors[number].storage]
            if storage.written is None:
                continue
            entries = self._entries(number, storage.written, storage.granule)
            missing = np.logical_not(np.all(entries, axis=-1, keepdims=True))[..., 0]
            if missing.any():
                found.append(unwritten_report(self._output_name(place), missing))
        return found

    def _output_name(self, place: int) -> str:
        return "the output" if len(self.program.outputs) == 1 else f"output {place}"

    def _confirmed(
        self, suspicions: list[_Suspicion], kept: Mapping[int, NDArray[np.uint8]]
    ) -> list[FaultReport]:
        """Reports of the suspicions that change an output. Leaves memory as the first run did."""
        after = {number: self.memory.storages[number].data.copy() for number in self._written}
        saved, layout = dict(self._saved), self.memory.layout
        outputs = [self.read(number) for number in self.program.outputs]
        found = [one.report() for one in suspicions if one.kind is FaultKind.BARRIER]
        orders = [_Mode(order=Order.SHUFFLED)]
        turn = self._turn if has_open_choices(self.program) else 0
        if turn not in self._settled:
            orders.append(_Mode(order=Order.REVERSED))
        modes = {
            FaultKind.RACE: orders,
            FaultKind.ORDER: orders,
            FaultKind.ADDRESS: [
                _Mode(layout=(is_near, alignment))
                for is_near in (True, False)
                for alignment in ALIGNMENTS
            ],
            FaultKind.UNINITIALISED: [
                _Mode(poison=poison)
                for poison in Poison
                if poison not in (Poison.SAME, Poison.LEFT)
            ],
        }
        for kind, tried in modes.items():
            mine = [one for one in suspicions if one.kind is kind]
            is_left = mine and kind is FaultKind.UNINITIALISED and self._is_kept(kept)
            if is_left or (mine and any(self._is_changed(outputs, kept, one) for one in tried)):
                found += [one.report() for one in mine]
            elif mine and kind is FaultKind.ORDER:
                self._settled.add(turn)
        self.memory.layout = layout  # init may have kept addresses
        if self._of_init:
            self._saved = saved
            self._restore(_Mode(), is_whole=True)
        for number, data in after.items():
            self.memory.storages[number].data[:] = data
        return found

    def _is_changed(
        self,
        outputs: list[NDArray[Any]],
        kept: Mapping[int, NDArray[np.uint8]],
        mode: _Mode,
    ) -> bool:
        """True if a call under other conditions has other outputs, or fails."""
        for number, data in kept.items():
            self.memory.storages[number].data[:] = data
        if mode.layout is not None:
            is_near, alignment = mode.layout
            self.memory.move(is_near=is_near, alignment=alignment)
        try:
            if self._of_init:
                self._prepare(Outcome(), mode)
            self._call(Outcome(), mode)
        except ExecutionFailed:
            return True
        return self._differs(outputs)

    def _is_kept(self, kept: Mapping[int, NDArray[np.uint8]]) -> bool:
        """True if outputs on other inputs depend on what this call has left in memory that nothing
        has written, as an allocator hands it out again: a kernel may know its own marks there."""
        given = {number: self.memory.storages[number].data.copy() for number in self._mixed()}
        try:
            self._mix(given)
            mixed = self._contents(given)
            self._recall(kept, mixed, _Mode(poison=Poison.LEFT))
            outputs = [self.read(number) for number in self.program.outputs]
            self._recall(kept, mixed, _Mode())
            return self._differs(outputs)
        except ExecutionFailed:  # other inputs may be out of its range
            return False
        finally:
            for number, data in given.items():
                self.memory.storages[number].data[:] = data

    def _recall(
        self,
        kept: Mapping[int, NDArray[np.uint8]],
        mixed: Mapping[int, NDArray[np.uint8]],
        mode: _Mode,
    ) -> None:
        for number, data in {**kept, **mixed}.items():
            self.memory.storages[number].data[:] = data
        self._call(Outcome(), mode)

    def _mixed(self) -> dict[int, int]:
        """Bytes of an element, by storage, of the inputs of floats."""
        return {
            one.storage: ITEM_BYTES[one.dtype]
            for one in self.program.tensors
            if "float" in one.dtype and self.program.storages[one.storage].origin is Origin.INPUT
        }

    def _mix(self, given: Iterable[int]) -> None:
        """Exchanges a random half of the elements of inputs among each other."""
        draw = np.random.default_rng()
        sizes = self._mixed()
        for number in given:
            data = self.memory.storages[number].data
            elements = data[: len(data) // sizes[number] * sizes[number]].view(RAW[sizes[number]])
            chosen = np.flatnonzero(draw.random(len(elements)) < 0.5)
            elements[chosen] = elements[draw.permutation(chosen)]

    def _differs(self, outputs: list[NDArray[Any]]) -> bool:
        return any(
            _differ(before, self.read(number), self.program.tensors[number].dtype)
            for before, number in zip(outputs, self.program.outputs, strict=True)
        )


def has_open_choices(program: Program) -> bool:
    """True if calls may run different nodes."""
    return any(len(open_alternatives(node)) > 1 for node in program.nodes)


def alternative(num: int, turn: int, shift: int) -> int:
    """The alternative of `num` that runs in a turn: the first, then each of the others."""
    return 0 if turn == 0 or num == 1 else 1 + (turn - 1 + shift) % (num - 1)


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


def _arithmetic(ttir: str) -> str:
    """The unit of a kernel's arithmetic: that of its first matrix product, if it has one."""
    product = PRODUCT.search(ttir)
    if product is None:
        return "fp32"
    if product["element"] in ("f32", "f64"):
        return "tf32" if TF32 in product[0] else "fp32"
    return "half"
