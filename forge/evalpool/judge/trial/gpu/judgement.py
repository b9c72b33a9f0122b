# pyright: strict
"""One candidate on a card: its programs run in the card's executor, checked and timed.

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
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from forge.errors import Stalled
from forge.evalpool.judge.channel.gpu_memory import create_block
from forge.evalpool.judge.compiler.binary import Failure
from forge.evalpool.judge.execute.steps import named_choices
from forge.evalpool.judge.numbers.protocols import Tf32
from forge.evalpool.judge.program import wire
from forge.evalpool.judge.program.format import Choice, InvalidProgram, Launch, Section
from forge.evalpool.judge.program.walk import places
from forge.evalpool.judge.trial.captures import Captured
from forge.evalpool.judge.trial.checks import ALTERNATIVE_WORDS
from forge.evalpool.judge.trial.cpu_trial import NO_RESULTS, PRECISION_TERMS, WIDE, insensitive
from forge.evalpool.judge.trial.evaluations import Narrowed
from forge.evalpool.judge.trial.gpu.leftovers import are_alike, may_remember
from forge.evalpool.judge.trial.gpu.program_memory import Mixture, ProgramMemory
from forge.evalpool.judge.trial.gpu.program_run import ProgramRun
from forge.evalpool.judge.trial.judgement import Judgement, needed_kernels
from forge.evalpool.judge.trial.structure import accesses_of, require_waits
from forge.evalpool.judge.trial.trial import OUT_OF_MEMORY, STATEFUL_WORDS, Decided
from forge.evalpool.judge.wide.program import Narrow, at_one_stage, widened
from forge.records.reason import Reason, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from forge.evalpool.judge.compiler.binary import Binary
    from forge.evalpool.judge.execute.executor import ChoiceReport, Executor, NodeTime
    from forge.evalpool.judge.program.format import Program
    from forge.evalpool.judge.timing.samples import Time
    from forge.evalpool.judge.trial.gpu.card_draw import CardDraw
    from forge.evalpool.judge.trial.gpu.card_results import CardResults
    from forge.evalpool.judge.trial.gpu.program_memory import SharedBlock
    from forge.evalpool.judge.trial.gpu.program_run import Choices
    from forge.evalpool.judge.trial.gpu.turns import Turn
    from forge.evalpool.judge.trial.results import Left
    from forge.evalpool.judge.trial.trial import Finding

NUM_FURTHER, FURTHER_S = 16, 0.5
"""Further calls of alternatives that lost, once each has run on a set of ours: so many, and as many
as there is time for."""
MAX_TUNINGS = 3
"""Captures with winners: one choice may depend on the winner of another."""
MAX_TURNS = 128
"""Alternatives of a choice that run in float64."""
NUM_AHEAD = 4
"""Kernels of a program that is compiled in its own types while it runs in float64."""
ENDS_WIDE = {
    *("unsupported", Reason.EXCEPTION, OUT_OF_MEMORY, Reason.OUT_OF_RESOURCES),
    *("deadline:correct", "deadline:load"),
}
"""Reasons for which a program in float64 ends without an answer: it is run in its own types, and
what fails in them too is a failure there."""


@dataclass(slots=True, kw_only=True)
class GpuJudgement(Judgement):
    """One candidate on a card."""

    results: CardResults  # pyright: ignore[reportIncompatibleVariableOverride]
    content: CardDraw
    is_timed: bool
    """True if the candidate is timed after its checked calls, also on the sets that are kept for
    that."""
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
    _ahead: list[Left] = field(default_factory=list["Left"], init=False)
    """Checked calls that were made together, but those that were judged."""
    _kept_turn: int = field(default_factory=partial(secrets.randbelow, 1 << 16), init=False)
    """Decides which call is on what the one before left, where calls are made one by one."""
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

    @property
    def numbers(self) -> list[int]:
        """Sets for checked calls in the problem's types; the others are first seen when timed."""
        is_all = not self.is_timed and self.candidate.protocol is None
        unseen = [] if is_all else self.draw.unseen
        return [number for number in range(len(self.draw.sets)) if number not in unseen]

    @property
    def tf32(self) -> Tf32:
        """Operations of torch that may use TF32."""
        return Tf32.of(self.table.tf32, is_other=self.candidate.protocol is not None)

    def prepare(self) -> None:
        """Captures the program and asks whether it is the same function; then compiles it in its
        own types and settles its choices. Raises Decided."""
        self._ask_wide()
        captured = self.first()
        for _ in range(MAX_TUNINGS):
            program = self.first().program
            self.require_kernels(program, self.binaries(program))
            if not any(isinstance(placed.node, Choice) for placed in places(program)):
                break
            winners = self._tuned()
            if not winners:
                break
            self.again(winners)
        if self.first() is not captured:  # the program that is timed
            self._ask_wide()

    def _ask_wide(self) -> None:
        """Asks in float64 whether it is the same function: on sets with plants if there are any.
        Raises Decided."""
        if self.candidate.protocol is not None or self.evidence not in ("", WIDE):
            return
        sets = self.draw.sets
        numbers = [number for number, one in enumerate(sets) if one.wide]
        numbers = [number for number in numbers if sets[number].is_planted] or numbers
        if not numbers:
            self.evidence = f"narrow: the reference: {self.draw.why_narrow or NO_RESULTS}"
            return
        self.evidence, self._turn_of_call = WIDE, 0
        captured = self.first()
        if len(captured.program.kernels) <= NUM_AHEAD:
            self.compiler.begin(captured.program.kernels, captured.program.target)
        self.results.lay(is_wide=True)
        try:
            self._able_of(self._of_layout(captured))  # compiled while others have the executor
            with self.held(), self._turn(self.shared):
                self._deadline = time.monotonic() + self.table.correct_timeout_s
                self._run_checks(numbers=random.SystemRandom().sample(numbers, len(numbers)))
                self._unload()  # a turn of its own would be waited for with the executor in hand
            self._checks = None
        except Narrowed as narrowed:
            self._narrow(str(narrowed))
        except Decided as decided:
            if decided.finding.reason not in ENDS_WIDE:
                raise
            self._narrow(decided.finding.detail.split("\n")[0])
        finally:
            self._deadline, self._ahead = None, []
            self.results.lay(is_wide=False)

    def _narrow(self, why: str) -> None:
        self.evidence, self.results.is_narrow, self._checks = f"narrow: {why}", True, None

    def _of_layout(self, captured: Captured) -> Captured:
        """The program as it runs now: in float64, or in its own types. Raises Narrowed."""
        if not self.results.is_wide:
            return captured
        if captured.data not in self._wide:
            program = self._widened(captured.program)
            found = replace(captured, program=program, data=wire.dumps(program))
            self._wide[captured.data] = found
        return self._wide[captured.data]

    def _widened(self, program: Program) -> Program:
        draw = self.draw
        try:
            found = widened(
                program,
                draw.kinds,
                inputs=[draw.specs[index].dtype for index in draw.sets[0].inputs],
                parameters={name: draw.specs[index].dtype for name, index in draw.named.items()},
            )
        except Narrow as narrow:
            raise Narrowed(str(narrow)) from None
        return at_one_stage(found)

    def _able_of(self, captured: Captured) -> list[tuple[int, list[int]]]:
        """Steps of the choices of a program in float64, each with the alternatives that compile.
        Raises Narrowed for a kernel that must run and does not."""
        if captured.data in self._able:
            return self._able[captured.data]
        program = captured.program
        binaries = self.binaries(program)
        for number in needed_kernels(program, binaries):
            if isinstance(failure := binaries[number], Failure):
                words = failure.message.split("\n")[0]
                name = program.kernels[number].name
                raise Narrowed(f"kernel {name} does not compile in float64: {words}")
        found = list[tuple[int, list[int]]]()
        for step, placed in enumerate(places(program), 1):
            if isinstance(placed.node, Choice) and placed.section is Section.FORWARD:
                able = [
                    number
                    for number, one in enumerate(placed.node.alternatives)
                    if not any(
                        isinstance(node, Launch) and isinstance(binaries[node.kernel], Failure)
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

    def _further(self) -> Iterator[int]:
        """Sets for the alternatives that have not run in float64."""
        captured = self.first()
        if not self.results.is_wide or captured.follows_winner or captured.reads_values:
            return
        able = self._able_of(self._of_layout(captured))
        widest = min(MAX_TURNS, max((len(found) for _, found in able), default=0))
        assert self._checks is not None
        while self._turn_of_call < widest:
            yield random.SystemRandom().choice(self._checks.judged)

    def check(self) -> Finding:
        """Asks the second question, or the only one of a program that is narrow. Raises Decided."""
        if self.candidate.protocol is not None:
            self._run_checks(numbers=self.numbers, is_repeated=False)
            self._require_draws()
            return self.report(Status.CORRECT, "ok")
        numbers = self._numbers_of_real()
        terms = dict(PRECISION_TERMS) if self.evidence == WIDE else dict[str, Any]()
        terms |= {"numbers": random.SystemRandom().sample(numbers, len(numbers))}
        self._run_checks(**terms | {"is_repeated": True})
        is_planted = any(one.plants for one in self.draw.sets)
        words = insensitive(self.draw.insensitive, is_planted=is_planted)
        return self.report(Status.CORRECT, "ok", words)

    def _numbers_of_real(self) -> list[int]:
        """Sets that the program answers in its own types: all of them where they are the only
        ones."""
        is_wide, sets = self.evidence == WIDE, self.draw.sets
        return [n for n in self.numbers if not is_wide or sets[n].is_quiet]

    def binaries(self, program: Program) -> list[Binary | Failure]:
        """The compiled kernels of a program, in order."""
        with self.phases.timed("compile"):
            return self.compiler.compile(
                program.kernels, program.target, is_rewritten=self.results.is_wide
            )

    def _alike(self, numbers: Sequence[int]) -> list[int]:
        """Sets among these that the program of set 0 serves."""
        return [number for number in numbers if self.draw.is_like_first(number)]

    def checked(self) -> Finding:
        """Runs every checked call. Raises Decided for a candidate that fails."""
        with self.held(), self._turn(self.shared):
            self._deadline = time.monotonic() + self.table.correct_timeout_s
            try:
                found = self.check()
                if self.candidate.protocol is None:
                    with self.phases.timed("correct"):
                        self._require_forgetful()
                self.require_others(self._call_alone)
                if not self.is_timed:
                    self._unload()
                return found
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
        numbers: Sequence[int] = self.draw.timed
        unseen = self.draw.unseen
        if self.first().reads_values:  # such a program holds for one set alone
            numbers = unseen = unseen[:1] or [0]
        with self.held():
            captured = self.program(numbers[0])
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

    def _captured(self, number: int) -> Captured:
        captured = Judgement._captured(self, number)
        require_waits(captured.program, code=self.code, finding=self.report)
        return captured

    def _values(self, prefix: Program, *, number: int) -> list[Any]:
        """Answers the capture child: elements of tensors that the host reads."""
        prefix = self._widened(prefix) if self.results.is_wide else prefix
        binaries = self.binaries(prefix)
        self.require_binaries(prefix, binaries)
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
            raise Decided(self.report(Status.REJECTED, Reason.UNSUPPORTED, detail))
        return tensor.item()

    def _announce(self, numbers: Sequence[int]) -> None:
        """Makes the calls to come at once, if one program serves all sets and has places enough."""
        captured = self.first()
        is_same = not captured.reads_values and self._alike(numbers) == list(numbers)
        run = self._run_for(self._of_layout(captured)) if is_same else None
        if run is None or len(numbers) > run.memory.num_places:
            return
        choices = [self._next_choices(self._of_layout(captured)) for _ in numbers]
        kept = {secrets.randbelow(len(numbers))} if numbers and self._has_kept_call else set[int]()
        self._ahead = self.results.compared(run.calls(numbers, kept=kept, choices=choices))

    def _call(self, number: int) -> Left:
        if self._ahead:
            found = self._ahead.pop(0)
            assert found.number == number
            return found
        captured = self._of_layout(self.program(number))
        run, choices = self._run_for(captured), self._next_choices(captured)
        (found,) = run.calls(
            [number], kept={0} if self._is_kept_turn() else set(), choices=[choices]
        )
        return found

    @property
    def _has_kept_call(self) -> bool:
        """True if one call is on what the one before left, as a model is called twice."""
        return self.candidate.protocol is None

    def _is_kept_turn(self) -> bool:
        """True for one call of those after the first."""
        if not self._has_kept_call or self._checks is None:
            return False
        num = len(self._checks.numbers)
        return len(self._checks.judged) == 1 + self._kept_turn % num

    def _require_forgetful(self) -> None:
        """Raises Decided for a program that answers with what an earlier call left in memory."""
        captured = self.first()
        numbers = self._alike(self.numbers)
        if captured.reads_values or len(numbers) < 2:
            return
        run = self._run_for(captured)
        if run.memory.has_statistics:
            self._require_lasting(run)
        accesses = accesses_of(captured.program, finding=self.report)
        if run.memory.num_places < 3 or not may_remember(captured.program, accesses):
            return
        for mixture in Mixture:
            first, second = random.SystemRandom().sample(numbers, 2)
            on_left, alone = run.remembered(first, second, mixture=mixture)
            if not are_alike(on_left.outputs, alone.outputs):
                detail = f"another answer where an earlier call left its memory\n{STATEFUL_WORDS}"
                raise Decided(self.report(Status.WRONG, Reason.STATEFUL, detail))

    def _require_lasting(self, run: ProgramRun) -> None:
        """Raises Decided for a program whose answers change with its running statistics, where
        those of the reference do not."""
        draw, compared = random.SystemRandom(), self._alike(self._numbers_of_real())
        first = draw.choice(compared)
        second = draw.choice([n for n in self._alike(self.numbers) if n != first])
        calls = [call for call in run.lasting(first, second) if call.number in compared]
        for call in self.results.compared(calls):
            if found := self.results.mismatch(call):
                detail = f"right once, not when called again: {found}\n{STATEFUL_WORDS}"
                raise Decided(self.report(Status.WRONG, Reason.STATEFUL, detail))

    def _check_timed(self, calls: Sequence[Left]) -> None:
        """Raises Decided unless every timed call left what the reference does. An output that
        equals a right one of its set to the last bit needs no comparison of its own."""
        firsts = {
            call.number: call for call in reversed(calls) if not self.results.knows(call.number)
        }
        for call in self.results.compared(list(firsts.values())):
            self._check_one(call)
        are_same = self.results.are_verified(calls)
        for call, is_same in zip(calls, are_same, strict=True):
            if not is_same and firsts.get(call.number) is not call:
                self._check_one(call)
            if not call.is_kept:
                detail = "forward changes its inputs; write to a new tensor"
                raise Decided(self.report(Status.WRONG, Reason.INPUTS_MODIFIED, detail))

    def _check_one(self, call: Left) -> None:
        if found := self.results.mismatch(call):
            if self.results.is_unwritten(call):
                detail = "a timed call left its output unwritten"
                raise Decided(self.report(Status.WRONG, Reason.OUTPUT_NOT_WRITTEN, detail))
            detail = f"right in checked calls, wrong in a timed one: {found}"
            raise Decided(self.report(Status.WRONG, Reason.MISMATCH, detail))

    def _tuned(self) -> dict[str, str]:
        """Labels of the winners of the program's choices, by key. Raises Decided where another
        alternative is wrong."""
        captured = self.first()
        with self.held():
            with self._turn(self.alone), self.phases.timed("tune"):
                run = self._run_for(captured)
                found = run.tune()
            winners = self._winners(captured.program, found)
            if self.candidate.protocol is None:
                wrong = None if captured.follows_winner else self._wrong_alternative(run, found)
                if captured.follows_winner or wrong:
                    self._require_programs(captured.program, found, winners, wrong=wrong)
            self.require_first_call(self._call_once)
        return winners

    def _call_once(self, captured: Captured, turn: int) -> Left:
        """Runs a program once on set 0, with this alternative of each choice. Raises Decided."""
        steps = enumerate(places(captured.program), 1)
        chosen = tuple(
            (step, min(turn, len(placed.node.alternatives) - 1))
            for step, placed in steps
            if isinstance(placed.node, Choice) and placed.section is Section.FORWARD
        )
        with self._turn(self.shared), self.phases.timed("tune"):
            (left,) = self._run_for(captured).calls([0], choices=[chosen])
            return left

    def _call_alone(self, captured: Captured) -> Left:
        """Runs a program once on set 0, while this candidate has its turn. Raises Decided."""
        (left,) = self._run_for(captured).calls([0])
        return left

    def _winners(self, program: Program, found: Sequence[ChoiceReport]) -> dict[str, str]:
        choices = named_choices(program)
        return {
            choices[one.step].key: choices[one.step].alternatives[one.chosen].label
            for one in found
            if one.step in choices and one.chosen < len(choices[one.step].alternatives)
        }

    def _require_programs(
        self,
        program: Program,
        found: Sequence[ChoiceReport],
        winners: Mapping[str, str],
        *,
        wrong: tuple[tuple[int, int], int] | None,
    ) -> None:
        """Runs the programs that the host would make if an alternative that lost had won, each on a
        set of ours, for half of the time of checked calls. Raises Decided for one that is wrong.

        Args:
            wrong: an alternative that is wrong in the winners' program, and the set that shows it.
        """
        draw, end = random.SystemRandom(), time.monotonic() + self.table.correct_timeout_s / 2
        choices, losers = named_choices(program), _losers(found)
        losers = [one for one in losers if one[0] in choices and (not wrong or one != wrong[0])]
        pairs = [(one, draw.choice(self._own_sets())) for one in draw.sample(losers, len(losers))]
        for (step, number), set_number in [*([wrong] if wrong else []), *pairs]:
            if time.monotonic() > end:
                return
            choice = choices[step]
            label = choice.alternatives[number].label
            other = self.with_winners(0, {**winners, choice.key: label})
            with self._turn(self.shared), self.phases.timed("tune"):
                if detail := self._first_wrong(self._run_for(other).calls([set_number]))[1]:
                    raise Decided(self.report(Status.WRONG, Reason.MISMATCH, detail))

    def _own_sets(self) -> list[int]:
        """Sets with plants that the program of set 0 serves; set 0 where there is none."""
        ours = [n for n in self._numbers_of_real() if self.draw.sets[n].is_planted]
        return ([] if self.first().reads_values else self._alike(ours)) or [0]

    def _first_wrong(self, left: Sequence[Left]) -> tuple[int, str]:
        """The first call of an alternative that left something else than the reference, and what;
        "" if there is none."""
        for place, call in enumerate(self.results.compared(left)):
            if wrong := self.results.mismatch(call):
                return place, f"{ALTERNATIVE_WORDS}: {wrong}"
        return 0, ""

    def _wrong_alternative(
        self, run: ProgramRun, found: Sequence[ChoiceReport]
    ) -> tuple[tuple[int, int], int] | None:
        """Runs the alternatives that lost: each on a set of ours, and NUM_FURTHER pairs of an
        alternative and a set or more, for half of the time of checked calls. Answers the first that
        is wrong, with its set, for the host's part may be another with that winner."""
        draw, ours, losers = random.SystemRandom(), self._own_sets(), _losers(found)
        began, limit_s = time.monotonic(), self.table.correct_timeout_s
        run.deadline = began + limit_s
        first = [(loser, draw.choice(ours)) for loser in losers]
        draw.shuffle(first)
        others = [pair for pair in itertools.product(losers, ours) if pair not in first]
        draw.shuffle(others)
        tried = [*first, *others]
        named = named_choices(self.first().program)
        for start in range(0, len(tried), run.memory.num_places):
            taken_s = time.monotonic() - began
            if taken_s > (limit_s / 2 if start < len(first) + NUM_FURTHER else FURTHER_S):
                break
            batch = tried[start : start + run.memory.num_places]
            numbers = [number for _, number in batch]
            with self._turn(self.shared), self.phases.timed("tune"):
                calls = run.calls(numbers, choices=[(loser,) for loser, _ in batch])
                place, detail = self._first_wrong(calls)
            if detail and batch[place][0][0] in named:
                return batch[place]
            if detail:
                raise Decided(self.report(Status.WRONG, Reason.MISMATCH, detail))
        return None

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
            memory = ProgramMemory(
                program,
                self.content,
                create=self.create,
                written=self.problem.written_parameters,
                kinds=self.draw.kinds if self.results.is_wide else (),
            )
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
            tf32=self.tf32,
            synchronize=self.synchronize,
        )


def _losers(found: Sequence[ChoiceReport]) -> list[tuple[int, int]]:
    """Step and number of each alternative that ran and did not win."""
    return [
        (one.step, number)
        for one in found
        for number, us in enumerate(one.times_us)
        if us is not None and number != one.chosen
    ]
