"""Runs nodes: launches by the evaluator of `ttir`, operations by torch. Called by `executor`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.execute.outcome import (
    ExecutionFailed,
    Outcome,
    Place,
    Suspicion,
    fault_report,
    operation_report,
)
from forge.evalpool.judge.program.format import (
    ITEM_BYTES,
    Descriptor,
    Launch,
    LaunchArgument,
    Op,
    Origin,
    Program,
    TensorUse,
)
from forge.evalpool.judge.program.ops import KINDS, MOVES, Kind, packet
from forge.evalpool.judge.program.walk import tensors_in
from forge.evalpool.judge.ttir.decisions import ANY, PARAMETER, note_all
from forge.evalpool.judge.ttir.evaluate import Address, Argument, HostDescriptor, Report, launch
from forge.evalpool.judge.ttir.memory.storages import Faulted, FaultKind, Memory
from forge.evalpool.judge.ttir.plan import plan_of
from forge.evalpool.judge.ttir.scan import InvalidModule
from forge.evalpool.judge.ttir.values import Unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.evalpool.judge.execute.cpu.confirm import Conditions
    from forge.evalpool.judge.execute.cpu.memory import Tensors
    from forge.evalpool.judge.ttir.decisions import Decision, Noted
    from forge.evalpool.judge.ttir.plan import ModulePlan
    from forge.evalpool.judge.ttir.verify import Use

NUM_SMS, THREADS_OF_SM, BLOCKS_OF_SM, WARP = 132, 2048, 32, 32
"""The card that instances which wait for each other are held against: an H100."""


@dataclass(slots=True)
class Launches:
    """The launches of a program over its memory."""

    program: Program
    memory: Memory
    has_tf32: bool
    noted: Noted
    """Gets the sides of decisions that launches take."""
    _seen: dict[Decision, int] = field(default_factory=dict["Decision", int])

    def plan(self, node: Launch) -> ModulePlan:
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
        """Accesses of a launch's kernel by its arguments."""
        return self.plan(node).uses(self.program.kernels[node.kernel].name)

    def written_by(self, node: Launch) -> set[int]:
        """Storages that a launch may store to."""
        uses = self.uses(node)
        return {
            self.program.tensors[one.tensor].storage
            for one, use in zip(node.arguments, uses, strict=False)
            if use is not None and use.is_written and isinstance(one, (TensorUse, Descriptor))
        }

    def run(self, node: Launch, outcome: Outcome, conditions: Conditions) -> list[Suspicion]:
        """Runs a launch and counts it in the outcome. Returns what may be wrong with it."""
        place = Place(self.program, node, outcome.num_launches)
        plan = self.plan(node)
        report = self._evaluated(node, plan, place, conditions)
        outcome.num_launches += 1
        outcome.num_bytes += report.num_bytes
        return [Suspicion(one.kind, partial(fault_report, one, place)) for one in report.suspicions]

    def _evaluated(
        self, node: Launch, plan: ModulePlan, place: Place, conditions: Conditions
    ) -> Report:
        kernel = self.program.kernels[node.kernel]
        arguments = [self._argument(one) for one in node.arguments]
        try:
            report = launch(
                plan,
                kernel.name,
                node.grid,
                arguments,
                self.memory,
                order=conditions.order,
                num_resident=self._num_resident(node),
                num_warps=kernel.options.num_warps,
                seen=self._seen,
            )
            memory = [self._memory_of(one) for one in node.arguments]
            note_all(self.noted, plan.decisions, self._seen, kernel, memory)
            return report
        except Faulted as error:
            found = fault_report(error.fault, place)
            raise ExecutionFailed(found.kind, found.message, line=found.line) from error
        except Unsupported as error:
            words = f"kernel {kernel.name}: {error}"
            raise ExecutionFailed("unsupported", words, line=node.line) from error

    def _num_resident(self, node: Launch) -> int:
        """Instances of a launch that the assumed card holds at once, if their threads are the only
        limit."""
        num_threads = WARP * self.program.kernels[node.kernel].options.num_warps
        return max(1, NUM_SMS * min(THREADS_OF_SM // num_threads, BLOCKS_OF_SM))

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


MAX_WORDS = 300


def run_operation(node: Op, tensors: Tensors) -> list[Suspicion]:
    """Runs an operation by torch, on tensors that exist already; a result that torch makes is
    copied to the tensor that the program has for it. Returns what may be wrong with it.

    Raises:
        ExecutionFailed: not in the table, or torch refuses its arguments.
    """
    import torch

    from forge.evalpool.judge.execute import operations

    reads_poison = any(tensors.is_partly_unwritten(number) for number in _read_by(node))
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
