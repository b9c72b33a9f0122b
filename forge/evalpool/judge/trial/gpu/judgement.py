# pyright: strict
"""One candidate on a card: its programs run in the card's executor, checked and timed.

A program is captured and compiled before the executor is taken, but for one whose host reads
values: that is captured again for each input set, while the candidate has the executor.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from forge.errors import Stalled
from forge.evalpool.judge.channel.gpu_memory import create_block
from forge.evalpool.judge.compiler.binary import Failure
from forge.evalpool.judge.program import wire
from forge.evalpool.judge.program.format import Choice, InvalidProgram, Launch
from forge.evalpool.judge.program.walk import places
from forge.evalpool.judge.trial.gpu.program_memory import ProgramMemory
from forge.evalpool.judge.trial.gpu.program_run import ProgramRun, Turn
from forge.evalpool.judge.trial.judgement import Judgement
from forge.evalpool.judge.trial.structure import compile_finding
from forge.evalpool.judge.trial.trial import Decided
from forge.records.reason import Reason, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from contextlib import AbstractContextManager

    from forge.evalpool.judge.compiler.binary import Binary
    from forge.evalpool.judge.execute.executors import Executor, NodeTime
    from forge.evalpool.judge.program.format import Node, Program
    from forge.evalpool.judge.timing.samples import Time
    from forge.evalpool.judge.trial.captures import Captured
    from forge.evalpool.judge.trial.gpu.card_memory import CardMemory, LeftByCall
    from forge.evalpool.judge.trial.gpu.layout import GpuReference
    from forge.evalpool.judge.trial.gpu.program_memory import SharedBlock
    from forge.evalpool.judge.trial.trial import Finding

MAX_TUNINGS = 3
"""Captures with winners: one choice may depend on the winner of another."""


@dataclass(slots=True, kw_only=True)
class GpuJudgement(Judgement):
    """One candidate on a card."""

    card: CardMemory
    """The same object as `memory`."""
    reference: GpuReference
    taken: Callable[[], AbstractContextManager[Executor]]
    """Holds an executor."""
    shared: Turn
    """Holds the card beside others; taken with the executor, never before it."""
    alone: Turn
    """Holds the card alone; likewise."""
    create: Callable[[int], SharedBlock] = create_block
    """Makes memory that the executor can map."""
    synchronize: Callable[[], None] = torch.cuda.synchronize
    """Waits for the judge's own work on the card."""
    _executor: Executor | None = field(default=None, init=False)
    """The executor while this candidate has it."""
    _has_turn: bool = field(default=False, init=False)
    """True while this candidate holds the card, beside others or alone."""
    _run: ProgramRun | None = field(default=None, init=False)
    """The program that is loaded there."""
    _loaded: Captured | None = field(default=None, init=False)
    _deadline: float | None = field(default=None, init=False)
    """For all checked calls together, monotonic; None before they begin."""

    def prepare(self) -> None:
        """Captures and compiles the program, and settles its choices. Raises Decided."""
        program = self.first().program
        for _ in range(MAX_TUNINGS):
            self._require_kernels(program)
            if not any(isinstance(placed.node, Choice) for placed in places(program)):
                return
            winners = self._tuned()
            if not winners:
                return
            program = self.again(winners).program

    def checked(self) -> Finding:
        """Runs every checked call. Raises Decided for a candidate that fails."""
        with self.held(), self._turn(self.shared):
            self._deadline = time.monotonic() + self.table.correct_timeout_s
            try:
                return self.check()
            finally:
                self._deadline = None

    def timed(
        self, *, is_profiled: bool, before: Callable[[], None]
    ) -> tuple[Time, tuple[NodeTime, ...]]:
        """Times calls of which each one's outputs are compared.

        Args:
            is_profiled: also time each node.
            before: called whenever the card is this candidate's alone.

        Raises:
            Decided: a timed call failed or was wrong.
        """
        numbers: Sequence[int] = range(len(self.reference.sets))
        unseen = self.reference.unseen
        if self.first().reads_values:  # such a program holds for one set alone
            numbers = unseen = unseen[:1] or [0]
        with self.held():
            captured = self.program(numbers[0])
            with self._turn(self.shared):
                run = self._run_for(captured)
            shared = partial(self._timing_turn, self.shared)
            alone = partial(self._timing_turn, self.alone, before)
            found = run.timed(numbers, self._check_timed, unseen=unseen, shared=shared, alone=alone)
            if not is_profiled:
                return found, ()
            with alone():
                return found, run.nodes()

    def _values(self, prefix: Program, *, number: int) -> list[Any]:
        """Answers the capture child: elements of tensors that the host reads."""
        binaries = self.binaries(prefix)
        self.require_binaries(prefix, binaries)
        with self.held(), self._turn(self.shared):
            self._unload()
            run = self._opened(prefix, wire.dumps(prefix), binaries)
            try:
                run.load()
                run.call(number)
                return [self._scalar(one) for one in run.memory.outputs(0)[: len(prefix.outputs)]]
            finally:
                run.close()

    def has_elements(self, number: int) -> bool:
        """True if a call on an input set has something to compute."""
        return self.reference.has_elements

    def _scalar(self, tensor: torch.Tensor) -> Any:
        if tensor.numel() != 1:
            detail = f"a tensor of {tensor.numel()} elements is read as one value"
            raise Decided(self.report(Status.REJECTED, Reason.UNSUPPORTED, detail))
        return tensor.item()

    def _call(self, number: int) -> None:
        run = self._run_for(self.program(number))
        found = run.call(number)
        self.card.left(run.memory.outputs(0), is_kept=not found.changed)

    def _check_timed(self, calls: Sequence[LeftByCall]) -> None:
        """Raises Decided unless every timed call left what the reference does. An output that
        equals a right one of its set to the last bit needs no comparison of its own."""
        firsts = {call.number: call for call in reversed(calls) if not self.card.knows(call.number)}
        for call in firsts.values():
            self._check_one(call)
        are_same = self.card.are_verified(calls)
        for call, is_same in zip(calls, are_same, strict=True):
            if not is_same and firsts.get(call.number) is not call:
                self._check_one(call)
            self.card.left(call.outputs, is_kept=call.is_kept)
            if not self.card.are_inputs_kept(call.number):
                detail = "forward changes its inputs; write to a new tensor"
                raise Decided(self.report(Status.WRONG, Reason.INPUTS_MODIFIED, detail))

    def _check_one(self, call: LeftByCall) -> None:
        memory = self.card
        memory.left(call.outputs, is_kept=call.is_kept)
        if found := memory.mismatch(call.number):
            if memory.is_unwritten(call.number):
                detail = "a timed call left its output unwritten"
                raise Decided(self.report(Status.WRONG, Reason.OUTPUT_NOT_WRITTEN, detail))
            variant = memory.variant(call.number)
            if call.number in self.reference.unseen and variant != "given":
                detail = f"right on the problem's own inputs, wrong on others ({variant}): {found}"
                raise Decided(self.report(Status.WRONG, Reason.RANGE, detail))
            detail = f"right in checked calls, wrong in a timed one: {found}"
            raise Decided(self.report(Status.WRONG, Reason.MISMATCH, detail))

    def _tuned(self) -> dict[str, str]:
        """Labels of the winners of the program's choices, by key."""
        captured = self.first()
        with self.held(), self._turn(self.alone), self.phases.timed("tune"):
            return self._run_for(captured).tune()

    @contextmanager
    def held(self) -> Generator[None]:
        """Holds the executor, with the program that it has loaded; may be nested."""
        if self._executor is not None:
            yield
            return
        with self.taken() as executor:
            self._executor = executor
            try:
                yield
            finally:
                self._leave(executor)
                self._executor = None

    @contextmanager
    def _timing_turn(
        self, turn: Turn, before: Callable[[], None] = lambda: None
    ) -> Generator[None]:
        with self._turn(turn), self.phases.timed("time"):
            before()
            yield

    @contextmanager
    def _turn(self, turn: Turn) -> Generator[None]:
        """Holds the card; at once where this candidate holds it already."""
        if self._has_turn:
            yield
            return
        with turn():
            self._has_turn = True
            try:
                yield
            finally:
                self._has_turn = False

    def _run_for(self, captured: Captured) -> ProgramRun:
        """The run of a program, loaded in place of another."""
        if self._run is not None and self._loaded is captured and self._run.executor.is_alive:
            return self._run
        self._unload()
        binaries = self.binaries(captured.program)
        run = self._opened(captured.program, captured.data, binaries)
        self._run, self._loaded = run, captured
        with self.phases.timed("load"):
            run.load()
        return run

    def _leave(self, executor: Executor) -> None:
        """Leaves no program in the executor, which somebody else may then take."""
        if self._run is None:
            return
        try:
            with self._turn(self.shared):
                self._unload()
        except Stalled:
            executor.end()
            self._unload()

    def _unload(self) -> None:
        run, self._run, self._loaded = self._run, None, None
        if run is not None:
            run.close()

    def _opened(
        self, program: Program, data: bytes, binaries: Sequence[Binary | Failure]
    ) -> ProgramRun:
        assert self._executor is not None
        try:
            memory = ProgramMemory(program, self.reference, create=self.create)
        except InvalidProgram as error:
            detail = f"no program of this problem: {error}"
            raise Decided(self.report(Status.REJECTED, Reason.UNSUPPORTED, detail)) from error
        return ProgramRun(
            executor=self._executor,
            program=program,
            data=data,
            binaries=binaries,
            memory=memory,
            code=self.code,
            report=self.report,
            correct_timeout_s=self.table.correct_timeout_s,
            timing_timeout_s=self.table.timing_timeout_s,
            deadline=self._deadline or time.monotonic() + self.table.correct_timeout_s,
            is_tf32=self.table.tf32,
            synchronize=self.synchronize,
        )

    def _require_kernels(self, program: Program) -> None:
        """Raises Decided for a kernel that must run and has no binary."""
        binaries = self.binaries(program)
        for number in needed_kernels(program, binaries):
            found = binaries[number]
            if isinstance(found, Failure):
                kernel = program.kernels[number]
                raise Decided(compile_finding(found, kernel, code=self.code, report=self.report))


def needed_kernels(program: Program, binaries: Sequence[Binary | Failure]) -> list[int]:
    """Kernels without which a program cannot run: those outside of choices, and those of the first
    alternative of a choice whose alternatives all fail."""
    found: list[int] = []
    for nodes in (program.init, program.forward):
        _collect(nodes, binaries, found)
    return found


def _collect(nodes: Sequence[Node], binaries: Sequence[Binary | Failure], found: list[int]) -> None:
    for node in nodes:
        if isinstance(node, Launch):
            found.append(node.kernel)
        elif isinstance(node, Choice):
            kernels: list[list[int]] = []
            for alternative in node.alternatives:
                kernels.append([])
                _collect(alternative.nodes, binaries, kernels[-1])
            if all(any(isinstance(binaries[one], Failure) for one in each) for each in kernels):
                found += kernels[0]
