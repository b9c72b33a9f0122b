# pyright: strict
"""Runs a candidate's programs on a card: in its executor, several calls at once, and timed.

capture ─▶ compile in float64 ─▶ 1. the same function? ─▶ compile ─▶ tune ─▶ 2. precision ─▶ time

So a wrong answer costs no compilation of many configurations in its own types; of a few it begins
meanwhile. What float64 cannot run answers all sets in its own types, with question 2's tolerance. A
program is captured and compiled before the executor is taken, but for one whose host reads
values: that is captured again for each input set, while the candidate has the executor.
"""

from __future__ import annotations

import itertools
import random
import secrets
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from forge.errors import Stalled
from forge.evalpool.judge.compiler.binary import Binary, Failure
from forge.evalpool.judge.driver.gpu_memory import Block, create_block
from forge.evalpool.judge.execute.call import ChoiceReport, NodeTime, named_choices
from forge.evalpool.judge.execute.executors import Executor
from forge.evalpool.judge.numbers.protocols import Tf32
from forge.evalpool.judge.program import format as form
from forge.evalpool.judge.program import wire
from forge.evalpool.judge.program.dataflow import Accesses, effects
from forge.evalpool.judge.program.walk import places, variants
from forge.evalpool.judge.timing.baseline import Time
from forge.evalpool.judge.trial.captures import Captured
from forge.evalpool.judge.trial.gpu.program_run import Choices, Mixture, ProgramMemory, ProgramRun
from forge.evalpool.judge.trial.gpu.references import CardDraw
from forge.evalpool.judge.trial.gpu.turns import Turn
from forge.evalpool.judge.trial.judgement import Device, Left, Narrowed, Results
from forge.evalpool.judge.trial.programs import NUM_AHEAD, Programs, needed_kernels
from forge.evalpool.judge.trial.trial import ALTERNATIVE_WORDS, STATEFUL_WORDS, Finding
from forge.evalpool.judge.wide.compare import SAME_FUNCTION, OnCard, Question, Wanted, agree
from forge.evalpool.judge.wide.program import Narrow
from forge.records.reason import Reason, Status

NUM_FURTHER, FURTHER_S = 16, 0.5
"""Most further calls of alternatives in float64, once each has run, and the time for them."""
MAX_TUNINGS = 3
"""Captures with winners: one choice may depend on the winner of another."""
MAX_TURNS = 128
"""Alternatives of a choice that run in float64."""
ENDS_WIDE = {
    *("unsupported", Reason.EXCEPTION, Reason.OUT_OF_MEMORY, Reason.OUT_OF_RESOURCES),
    *("deadline:correct", "deadline:load"),
}
"""Reasons for which a program in float64 ends without an answer: it is run in its own types, and
what fails in them too is a failure there."""
ORDER = Question(1e-2)
"""Two calls on the same inputs, with sums in any order."""


@dataclass(slots=True, kw_only=True)
class CardDevice(Device):
    """One candidate's part of a card (`Device`)."""

    programs: Programs
    results: Results[CardDraw]
    is_timed: bool
    """True if the candidate is timed afterwards, also on the sets that are kept for that."""
    taken: Callable[[], AbstractContextManager[Executor]]
    """Holds an executor."""
    is_doubtful: Callable[[Finding], bool]
    """True for a failure that others on the card may have caused."""
    shared: Turn
    """Holds the card beside others; taken with the executor, never before it."""
    alone: Turn
    """Holds the card alone; likewise."""
    create: Callable[[int], Block] = create_block
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
    _ahead: list[Left] = field(default_factory=list["Left"], init=False)
    """Checked calls that were made together, but those that were judged."""
    _kept_in: int = field(default=-1, init=False)
    """Calls until the one that is on what the one before left; negative for none."""
    _wide: dict[bytes, Captured] = field(default_factory=dict[bytes, Captured], init=False)
    """Programs in float64, by the data of those in their own types."""
    _able: dict[bytes, list[tuple[int, list[int]]]] = field(
        default_factory=dict[bytes, "list[tuple[int, list[int]]]"], init=False
    )
    """Steps of a program's choices, each with the alternatives that compile, by its data."""
    _turn_of_call: int = field(default=0, init=False)
    """Calls in float64 so far: each takes the next alternative of every choice."""
    _deadline: float | None = field(default=None, init=False)
    """For all checked calls together, monotonic; None before they begin."""

    def __post_init__(self) -> None:
        self.programs.device = self

    @property
    def numbers(self) -> list[int]:
        draw = self.programs.draw
        is_all = not self.is_timed and self.programs.candidate.protocol is None
        unseen = [] if is_all else draw.unseen
        return [number for number in range(len(draw.sets)) if number not in unseen]

    @property
    def tf32(self) -> Tf32:
        is_other = self.programs.candidate.protocol is not None
        return Tf32.of(self.programs.table.tf32, is_other=is_other)

    @contextmanager
    def asking(self, *, is_wide: bool) -> Generator[None]:
        """Holds the card for calls in float64, or in the problem's types."""
        captured = self.programs.first()
        if is_wide and len(captured.program.kernels) <= NUM_AHEAD:
            self.programs.compiler.begin(captured.program.kernels, captured.program.target)
        self._turn_of_call, self._kept_in = 0, -1
        self.results.is_wide = is_wide
        try:
            if is_wide:
                self._able_of(self._of_layout(captured))  # compiled while others have the executor
            with self.held(), self._turn(self.shared):
                self._deadline = time.monotonic() + self.programs.table.correct_timeout_s
                yield
                if is_wide or not self.is_timed:
                    # In a turn of its own, which it would wait for with the executor in hand.
                    self._unload()
        finally:
            self._deadline, self._ahead = None, []
            self.results.is_wide = False

    def ends_wide(self, finding: Finding) -> bool:
        """True for reasons that float64 alone may have, unless others may be to blame."""
        return finding.reason in ENDS_WIDE and not self.is_doubtful(finding)

    def settle(self, require_first_call: Callable[[], None]) -> None:
        """Compiles the first program in its own types, and captures it with the winners of its
        choices. Raises Decided."""
        programs = self.programs
        for _ in range(MAX_TUNINGS):
            program = programs.first().program
            programs.require_kernels(program, programs.binaries(program))
            if not any(isinstance(placed.node, form.Choice) for placed in places(program)):
                return
            with self.held():
                winners = self._tuned()
                require_first_call()
            if not winners:
                return
            programs.again(winners)

    def _of_layout(self, captured: Captured) -> Captured:
        if not self.results.is_wide:
            return captured
        if captured.data not in self._wide:
            program = self._widened(captured.program)
            found = replace(captured, program=program, data=wire.dumps(program))
            self._wide[captured.data] = found
        return self._wide[captured.data]

    def _widened(self, program: form.Program) -> form.Program:
        try:
            return self.programs.widened(program)
        except Narrow as narrow:
            raise Narrowed(str(narrow)) from None

    def _able_of(self, captured: Captured) -> list[tuple[int, list[int]]]:
        """Steps of the choices of a program in float64, each with the alternatives that compile.
        Raises Narrowed for a kernel that must run and does not."""
        if captured.data in self._able:
            return self._able[captured.data]
        program = captured.program
        binaries = self._binaries(program)
        for number in needed_kernels(program, binaries):
            if isinstance(failure := binaries[number], Failure):
                words = failure.message.split("\n")[0]
                name = program.kernels[number].name
                raise Narrowed(f"kernel {name} does not compile in float64: {words}")
        found = list[tuple[int, list[int]]]()
        for step, placed in enumerate(places(program), 1):
            if isinstance(placed.node, form.Choice) and placed.section is form.Section.FORWARD:
                able = [
                    number
                    for number, one in enumerate(placed.node.alternatives)
                    if not any(
                        isinstance(node, form.Launch) and isinstance(binaries[node.kernel], Failure)
                        for node in one.nodes
                    )
                ]
                found.append((step, able))
        self._able[captured.data] = found
        return found

    def _next_choices(self, captured: Captured) -> Choices:
        """Alternatives of the next call of a program in float64: each in its turn, unless the
        host's part belongs to the first."""
        if not self.results.is_wide:
            return ()
        able, turn = self._able_of(captured), self._turn_of_call
        self._turn_of_call += 1
        if captured.follows_winner:
            turn = 0
        return tuple((step, found[turn % len(found)]) for step, found in able)

    def further(self, judged: Sequence[int]) -> Iterator[int]:
        """Sets for the alternatives that have not run in float64, and for any others."""
        captured = self.programs.first()
        if not self.results.is_wide or captured.follows_winner or captured.reads_values:
            return
        able, began = self._able_of(self._of_layout(captured)), time.monotonic()
        widest = min(MAX_TURNS, max((len(found) for _, found in able), default=0))
        most = widest + NUM_FURTHER if widest > 1 else 0
        while self._turn_of_call < widest or (
            self._turn_of_call < most and time.monotonic() - began < FURTHER_S
        ):
            yield random.SystemRandom().choice(judged)

    def _quiet(self) -> list[int]:
        """Sets without loud plants whose results in the problem's types are compared."""
        return [n for n in self.numbers if self.programs.draw.sets[n].is_quiet]

    def _binaries(self, program: form.Program) -> list[Binary | Failure]:
        return self.programs.binaries(program, is_wide=self.results.is_wide)

    def _alike(self, numbers: Sequence[int]) -> list[int]:
        """Sets among these that the program of set 0 serves."""
        return [number for number in numbers if self.programs.draw.is_like_first(number)]

    def timed(
        self, *, is_profiled: bool, before: Callable[[], None]
    ) -> tuple[Time, Sequence[NodeTime]]:
        """Times calls of which each one's outputs are compared, and each node if it `is_profiled`;
        `before` is called whenever the card is this candidate's alone. Raises Decided."""
        numbers: Sequence[int] = self.programs.draw.timed
        unseen = self.programs.draw.unseen
        if self.programs.first().reads_values:  # such a program holds for one set alone
            numbers = unseen = unseen[:1] or [0]
        with self.held():
            captured = self.programs.program(numbers[0], is_wide=False)
            with self._turn(self.shared):
                run = self._run_for(captured)
            shared = partial(self._timing_turn, self.shared)
            alone = partial(self._timing_turn, self.alone, before)
            terms: dict[str, Any] = {"unseen": unseen, "shared": shared, "alone": alone}
            if not is_profiled:
                terms["finish"] = self._unload
            found = run.timed(numbers, self._check_timed, **terms)
            if not is_profiled:
                return found, ()
            with alone():
                return found, run.nodes(numbers[0])

    def values(self, prefix: form.Program, *, number: int) -> list[Any]:
        prefix = self._widened(prefix) if self.results.is_wide else prefix
        binaries = self._binaries(prefix)
        self.programs.require_binaries(prefix, binaries)
        with self.held(), self._turn(self.shared):
            self._unload()
            run = self._opened(prefix, wire.dumps(prefix), binaries)
            try:
                run.load()
                run.calls([number])
                return [self._scalar(one) for one in run.memory.outputs(0)[: len(prefix.outputs)]]
            finally:
                run.close()

    def _scalar(self, tensor: torch.Tensor) -> Any:
        if tensor.numel() != 1:
            detail = f"a tensor of {tensor.numel()} elements is read as one value"
            raise self.programs.decided(Status.REJECTED, Reason.UNSUPPORTED, detail)
        return tensor.item()

    def announce(self, numbers: Sequence[int]) -> None:
        """Makes the calls to come at once, if one program serves all sets and has places enough.
        One of them is on what the one before it left, as a model is called twice."""
        sets = self.programs.draw.sets
        pairs = enumerate(itertools.pairwise([0, *numbers]))
        able = [n for n, (a, b) in pairs if sets[a].parameters == sets[b].parameters]
        if able and self.programs.candidate.protocol is None:
            self._kept_in = secrets.choice(able)
        captured = self.programs.first()
        is_same = not captured.reads_values and self._alike(numbers) == list(numbers)
        run = self._run_for(self._of_layout(captured)) if is_same else None
        if run is None or len(numbers) > run.memory.num_places:
            return
        choices = [self._next_choices(self._of_layout(captured)) for _ in numbers]
        calls = run.calls(numbers, kept={self._kept_in}, choices=choices)
        self._ahead, self._kept_in = self._compared(calls), -1

    def call(self, number: int) -> Left:
        if self._ahead:
            found = self._ahead.pop(0)
            assert found.number == number
            return found
        is_wide, is_kept = self.results.is_wide, self._kept_in == 0
        self._kept_in -= 1
        captured = self._of_layout(self.programs.program(number, is_wide=is_wide))
        run, choices = self._run_for(captured), self._next_choices(captured)
        (found,) = run.calls([number], kept={0} if is_kept else set(), choices=[choices])
        return found

    def once(self, captured: Captured, *, turn: int | None = None) -> Left:
        steps = enumerate(places(captured.program), 1)
        chosen = [
            (step, min(turn, len(placed.node.alternatives) - 1))
            for step, placed in steps
            if isinstance(placed.node, form.Choice)
            and placed.section is form.Section.FORWARD
            and turn is not None
        ]
        with self._turn(self.shared):
            (left,) = self._run_for(captured).calls([0], choices=[tuple(chosen)])
            return left

    def require_lasting(self) -> None:
        """Raises Decided for a program that answers with what an earlier call left in memory."""
        captured = self.programs.first()
        numbers = self._alike(self.numbers)
        if captured.reads_values or len(numbers) < 2:
            return
        run = self._run_for(captured)
        if run.memory.has_statistics:
            self._require_statistics(run)
        accesses = self.programs.accesses(captured.program)
        if run.memory.num_places < 3 or not may_remember(captured.program, accesses):
            return
        for mixture in Mixture:
            first, second = random.SystemRandom().sample(numbers, 2)
            on_left, alone = run.remembered(first, second, mixture=mixture)
            if not are_alike(on_left.outputs, alone.outputs):
                detail = f"another answer where an earlier call left its memory\n{STATEFUL_WORDS}"
                raise self.programs.decided(Status.WRONG, Reason.STATEFUL, detail)

    def _require_statistics(self, run: ProgramRun) -> None:
        """Raises Decided for a program whose answers change with its running statistics, where
        those of the reference do not."""
        draw, compared = random.SystemRandom(), self._alike(self._quiet())
        first = draw.choice(compared)
        second = draw.choice([n for n in self._alike(self.numbers) if n != first])
        calls = [call for call in run.lasting(first, second) if call.number in compared]
        for call in self._compared(calls):
            if found := self.results.mismatch(call):
                detail = f"right once, not when called again: {found}\n{STATEFUL_WORDS}"
                raise self.programs.decided(Status.WRONG, Reason.STATEFUL, detail)

    def _check_timed(self, calls: Sequence[Left]) -> None:
        """Raises Decided unless every timed call left what the reference does."""
        decided = self.programs.decided
        for call in self._compared(calls):
            if found := self.results.mismatch(call):
                if self.results.is_unwritten(call):
                    detail = "a timed call left its output unwritten"
                    raise decided(Status.WRONG, Reason.OUTPUT_NOT_WRITTEN, detail)
                detail = f"right in checked calls, wrong in a timed one: {found}"
                raise decided(Status.WRONG, Reason.MISMATCH, detail)
            if not call.is_kept:
                detail = "forward changes its inputs; write to a new tensor"
                raise decided(Status.WRONG, Reason.INPUTS_MODIFIED, detail)

    def _compared(self, calls: Sequence[Left]) -> list[Left]:
        """The calls, of which those that are right say so. Waits for the card once."""
        results, pairs, places = self.results, list[Any](), list[int]()
        for place, call in enumerate(calls):
            for got, index, _ in results.pairs(call) if results.protocol is None else ():
                pairs.append((got, index, results.question(index)))
                places.append(place)
        flags = zip(places, results.content.agree(pairs), strict=True)
        unsure = {place for place, is_near in flags if not is_near}
        is_sure = results.protocol is None
        return [replace(one, is_right=is_sure and n not in unsure) for n, one in enumerate(calls)]

    def _tuned(self) -> dict[str, str]:
        """Labels of the choices' winners, by key. Raises Decided where an alternative is wrong."""
        programs = self.programs
        captured = programs.first()
        with self._turn(self.alone), programs.phases.timed("tune"):
            run = self._run_for(captured)
            found = run.tune()
        run.deadline = time.monotonic() + programs.table.correct_timeout_s
        named = named_choices(captured.program)
        winners = {
            named[one.step].key: named[one.step].alternatives[one.chosen].label
            for one in found
            if one.step in named and one.chosen < len(named[one.step].alternatives)
        }
        if programs.candidate.protocol is None:
            self._require_losers(found, winners)
        return winners

    def _require_losers(self, found: Sequence[ChoiceReport], winners: Mapping[str, str]) -> None:
        """Runs each alternative that ran and lost, on a set with plants that the program serves, or
        on set 0, for half of the time of checked calls: as the host has it if that had won, where
        it follows its winner or may do so. Raises Decided for one that is wrong."""
        programs, draw = self.programs, random.SystemRandom()
        captured, end = programs.first(), time.monotonic() + programs.table.correct_timeout_s / 2
        named = named_choices(captured.program)
        ours = [n for n in self._quiet() if programs.draw.sets[n].is_planted]
        ours = ([] if captured.reads_values else self._alike(ours)) or [0]
        losers = [
            (one.step, number)
            for one in found
            for number, us in enumerate(one.times_us)
            if us is not None and number != one.chosen
        ]
        for step, number in draw.sample(losers, len(losers)):
            if time.monotonic() > end:
                return
            on_set, wrong = draw.choice(ours), None
            if not captured.follows_winner:
                wrong = self._wrong_on(on_set, captured, choices=((step, number),))
            if step in named and (captured.follows_winner or wrong):
                label = named[step].alternatives[number].label
                other = programs.with_winners(0, {**winners, named[step].key: label})
                wrong = self._wrong_on(on_set, other)
            if wrong:
                detail = f"{ALTERNATIVE_WORDS}: {wrong}"
                raise programs.decided(Status.WRONG, Reason.MISMATCH, detail)

    def _wrong_on(self, number: int, captured: Captured, *, choices: Choices = ()) -> str | None:
        """The difference after a call of a program with these alternatives on a set."""
        with self._turn(self.shared), self.programs.phases.timed("tune"):
            (left,) = self._run_for(captured).calls([number], choices=[choices])
            return self.results.mismatch(left)

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
        with self._turn(turn), self.programs.phases.timed("time"):
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
        binaries = self._binaries(captured.program)
        run = self._opened(captured.program, captured.data, binaries)
        self._run, self._loaded = run, captured
        with self.programs.phases.timed("load"):
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
        self, program: form.Program, data: bytes, binaries: Sequence[Binary | Failure]
    ) -> ProgramRun:
        assert self._executor is not None
        try:
            memory = ProgramMemory(
                program,
                self.results.content,
                create=self.create,
                written=self.programs.problem.written_parameters,
                kinds=self.programs.draw.kinds if self.results.is_wide else (),
            )
        except wire.InvalidProgram as error:
            detail = f"no program of this problem: {error}"
            decided = self.programs.decided(Status.REJECTED, Reason.UNSUPPORTED, detail)
            raise decided from error
        return ProgramRun(
            executor=self._executor,
            program=program,
            data=data,
            binaries=binaries,
            memory=memory,
            code=self.programs.code,
            decided=self.programs.decided,
            correct_timeout_s=self.programs.table.correct_timeout_s,
            timing_timeout_s=self.programs.table.timing_timeout_s,
            deadline=self._deadline or time.monotonic() + self.programs.table.correct_timeout_s,
            tf32=self.tf32,
            synchronize=self.synchronize,
        )


def may_remember(program: form.Program, accesses: Accesses) -> bool:
    """True if a launch reads memory that no operation of this call has written as a whole, and that
    this or a later launch writes: a later call may find there what this one left."""
    allocated = {
        number
        for number, storage in enumerate(program.storages)
        if storage.origin is form.Origin.ALLOCATION
    }
    for nodes in variants(program):
        written, read = set[int](), set[int]()
        for placed in nodes:
            if placed.section is not form.Section.FORWARD:
                continue
            found = effects(program, placed.node, accesses)
            if isinstance(placed.node, form.Launch):
                read |= (found.reads & allocated) - written
                if found.writes & read:
                    return True
            written |= found.replaces
    return False


def are_alike(ones: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """True if two calls on the same inputs gave the same, but for the order of sums."""

    def wanted(other: torch.Tensor) -> Wanted:
        question = ORDER if other.is_floating_point() else SAME_FUNCTION
        return Wanted(values=OnCard(other), question=question)

    pairs = zip(ones, others, strict=True)
    return all(agree([(OnCard(one), wanted(each)) for one, each in pairs]))
