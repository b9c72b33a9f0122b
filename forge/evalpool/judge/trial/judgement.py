# pyright: strict
"""Judges one candidate: what is asked of its programs and in which order, on every device.

1. The same function? In float64, on sets with secret plants.
2. Does it lose only what its types lose? In them, on the given set and a few planted ones.

What float64 cannot run answers all sets in its own types, with question 2's tolerance. Under
another project's protocol, so does everything, on its sets and by its comparison. A `Device` puts
inputs where a program finds them, runs it and says what it left; it has no rules of its own but for
what no other device could ask: alternatives of a tuned kernel, memory that a call leaves, times.
`Results` compares what a call left: one order and one set of words for every device.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from forge.evalpool.judge.channel.shm import FLOATING
from forge.evalpool.judge.numbers.protocols import ONE_TENSOR
from forge.evalpool.judge.program import wire
from forge.evalpool.judge.program.dataflow import first_call
from forge.evalpool.judge.program.walk import open_alternatives
from forge.evalpool.judge.trial.captures import Captured
from forge.evalpool.judge.trial.trial import ALTERNATIVE_WORDS, STATEFUL_WORDS, Decided, Finding
from forge.evalpool.judge.wide.compare import SAME_FUNCTION, Question
from forge.evalpool.judge.wide.patterns import are_far, plant_words, spread
from forge.records.reason import Reason, Status
from forge.records.verdict import OutputFacts, Profile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from forge.evalpool.judge.numbers.protocols import OtherProtocol
    from forge.evalpool.judge.program.format import Program
    from forge.evalpool.judge.trial.draws import Content, Draw
    from forge.evalpool.judge.trial.programs import Programs
    from forge.evalpool.judge.wide.patterns import Values

WIDE = "wide"
NO_RESULTS = "no results in float64"
NUM_REAL = 2
"""Sets with quiet plants that question 2 is asked on."""
MAX_FIRST_CALLS = 16
"""Alternatives whose first call is tried."""
PRECISION_WORDS = "what it returns is right in float64, but not in its own types: "
RANDOM = random.SystemRandom()
MAX_READ = 1 << 22
"""Elements of an output that its figures are made of, all over it."""
IN_PLACE = "Model changes its {} in place, do as it does: "
STATISTICS = frozenset({"running_mean", "running_var", "num_batches_tracked"})
"""Names of a norm's statistics in training mode: no output needs them, most kernels leave them."""


def may_stay(name: str, draw: Draw) -> bool:
    """True for a parameter that a program may leave alone though the reference writes to it:
    statistics that torch's own norm keeps, and that no output needs."""
    is_norm = not draw.names or any("batch_norm" in one for one in draw.names)
    is_free = is_norm and not draw.needs_statistics
    return is_free and name.rpartition(".")[2] in STATISTICS


@dataclass(frozen=True, slots=True)
class Left:
    """Tensors after a call, as a `Content` reads them."""

    number: int
    """Its input set."""
    outputs: Sequence[Any]
    """Outputs, then the inputs that the reference changes."""
    is_kept: bool
    """True if it left alone what the reference leaves alone."""
    parameters: Sequence[Any] | None = ()
    """`Draw.changed_parameters`; None where they are not to be compared."""
    is_right: bool = False
    """True if it was compared before, and is right."""


C = TypeVar("C", bound="Content")


class Pair(NamedTuple):
    """A tensor that a call left, and the number of the expected one."""

    got: Any
    expected: int
    name: str


@dataclass(slots=True, kw_only=True)
class Results(Generic[C]):
    """The expected results of one draw, under the question that is asked."""

    content: C
    protocol: OtherProtocol | None = None
    """Another project's, which compares one output; None for ours."""
    is_wide: bool = False
    """True while the question is asked in float64."""
    is_narrow: bool = False
    """True if only the program has no float64: integers must be equal in own types."""

    def mismatch(self, left: Left, number: int | None = None) -> str | None:
        """The first difference of what a call left from the results of its set, or of another."""
        if left.is_right and number is None:
            return None
        number = left.number if number is None else number
        draw = self.content.draw
        if self.protocol is not None and (len(draw.sets[number].outputs) != 1 or draw.is_sequence):
            return ONE_TENSOR
        for pair in self.pairs(left, number):
            kind, _, name = pair.name.partition(" ")
            stays = kind == "parameter" and may_stay(name, draw)
            if stays and self.content.is_same(pair.got, draw.parameter(name, number)):
                continue
            if found := self._difference(pair, number):
                return found if kind == "output" else IN_PLACE.format(kind) + found
        return None

    def pairs(self, left: Left, number: int | None = None) -> list[Pair]:
        """Outputs, changed inputs and, in own types, parameters, each with the expected one."""
        draw = self.content.draw
        number = left.number if number is None else number
        one = draw.sets[number]
        if self.protocol is not None:
            return [Pair(left.outputs[0], next(iter(one.outputs)), "output")]
        num = len(one.outputs)
        names = ["output"] if num == 1 else [f"output {k}" for k in range(num)]
        names += [f"input {position}" for position in one.changed]
        indices = one.wide if self.is_wide else one.results
        found = [Pair(*each) for each in zip(left.outputs, indices, names, strict=True)]
        if self.is_wide or left.parameters is None:
            return found
        for got, name in zip(left.parameters, draw.changed_parameters, strict=True):
            index = one.state.get(name, draw.parameter(name, number))
            found.append(Pair(got, index, f"parameter {name}"))
        return found

    def question(self, index: int) -> Question | None:
        """The question that a result is under here, if it is not the draw's."""
        if self.protocol is not None:
            tolerance = self.protocol.tolerances[self.content.draw.precision]
            return Question(tolerance, is_close=True)
        is_integer = self.content.draw.specs[index].dtype not in FLOATING
        return SAME_FUNCTION if self.is_narrow and is_integer else None

    def is_unwritten(self, left: Left) -> bool:
        """True if no output differs from its poison."""
        one = self.content.draw.sets[left.number]
        indices = (one.wide if self.is_wide else one.outputs)[: len(one.outputs)]
        pairs = zip(left.outputs, indices, strict=False)
        return bool(indices) and all(self.content.is_unwritten(*pair) for pair in pairs)

    def tells(self, number: int) -> bool:
        """True if the results of a set are not one number, which many a mistake gives."""
        one = self.content.draw.sets[number]
        every = [self.content.values(index, name="output") for index in one.outputs]
        return any(np.unique(values.take(values.some())).size > 1 for values in every)

    def facts(self, left: Left) -> tuple[OutputFacts, ...]:
        values = self.content.values
        return tuple(
            _output_facts(name, values(index, name=name, got=got), values(index, name=name))
            for got, index, name in self.pairs(left)
        )

    def _difference(self, pair: Pair, number: int) -> str:
        operands, question = partial(self._operands, number), self.question(pair.expected)
        found = self.content.mismatch(
            pair.got, pair.expected, question, name=pair.name, operands=operands
        )
        if found is None:
            return ""
        words, differs = found
        draw = self.content.draw
        plants = draw.sets[number].plants
        plant = "" if differs is None else plant_words(plants, operands(), differs)
        return "\n".join(filter(None, (words, plant, draw.differences(number))))

    def _operands(self, number: int) -> list[Values]:
        draw = self.content.draw
        named = {f"input {k}": index for k, index in enumerate(draw.sets[number].inputs)}
        named |= {f"parameter {name}": draw.parameter(name, number) for name in draw.named}
        return [self.content.values(index, name=name) for name, index in named.items()]


def _output_facts(name: str, got: Values, expected: Values) -> OutputFacts:
    """The figures of an output beside those of the expected one."""
    chosen = spread(got.size, MAX_READ)
    both = found, wanted = got.take(chosen), expected.take(chosen)
    finite = [one[np.isfinite(one)] for one in both]
    errors = np.abs(found - wanted)[np.isfinite(found) & np.isfinite(wanted)]
    (low, high, mean), (expected_low, expected_high, expected_mean) = (
        (float(one.min()), float(one.max()), float(one.mean())) if one.size else (None, None, None)
        for one in finite
    )
    return OutputFacts(
        name=name, dtype=expected.dtype, shape=expected.shape,
        num_nan=int(np.isnan(found).sum()), num_inf=int(np.isinf(found).sum()),
        low=low, high=high, mean=mean,
        expected_low=expected_low, expected_high=expected_high, expected_mean=expected_mean,
        largest_error=float(errors.max()) if errors.size else None,
    )  # fmt: skip


class Narrowed(Exception):
    """A program cannot be run in float64. The message says why."""


class Device(Protocol):
    """Runs the programs of one candidate. All calls raise Decided; in float64, Narrowed, too."""

    results: Results[Any]
    """Expected results, in float64 or in the problem's types, as it is `asking`."""

    @property
    def numbers(self) -> Sequence[int]:
        """Sets for checked calls in the problem's types; others are kept for timed ones."""
        ...

    def values(self, prefix: Program, *, number: int) -> list[Any]: ...

    def asking(self, *, is_wide: bool) -> AbstractContextManager[None]:
        """Within, calls are in float64, or in the problem's types."""
        ...

    def is_repeated(self) -> bool:
        """True if a program may keep something between calls: one set is asked twice."""
        return True

    def announce(self, numbers: Sequence[int]) -> None:
        """Gets the sets of the calls to come, once the first one was right."""

    def call(self, number: int) -> Left: ...

    def further(self, judged: Sequence[int]) -> Iterable[int]:
        """Sets for further calls, after every set: for alternatives that have not run."""
        ...

    def once(self, captured: Captured, *, turn: int | None = None) -> Left:
        """Runs a program once on set 0, in its own types, with alternative `turn` of choices."""
        ...

    def ends_wide(self, finding: Finding) -> bool:
        """True for a failure in float64 that says nothing of the program in its own types."""
        return False

    def is_followed(self, decided: Decided) -> bool:
        """True if the failure is none in a program that is captured otherwise from here on."""
        return False

    def settle(self, require_first_call: Callable[[], None]) -> None:
        """Settles the first program's choices; `require_first_call` checks it before."""
        ...

    def require_lasting(self) -> None:
        """Raises Decided for a program that answers with what an earlier call left in memory."""


D = TypeVar("D", bound=Device)


@dataclass(slots=True, kw_only=True)
class Judgement(Generic[D]):
    """One candidate on one device."""

    programs: Programs
    device: D
    _judged: list[int] = field(default_factory=list[int], init=False)
    """Sets with right outputs so far, in order, of the question that is asked."""

    def finding(self) -> Finding:
        """The verdict's content. Raises Decided for a candidate that fails."""
        try:
            self.prepare()
            return self.checked()
        except Decided as decided:
            if not self.device.is_followed(decided):
                raise
            self.prepare()
            return self.checked()
        finally:
            self.close()

    def close(self) -> None:
        """Nothing is left that refers to the device, which holds the draw's memory."""
        self.programs.device = None

    def prepare(self) -> None:
        """Asks for the same function in each mode, and settles choices. Raises Decided."""
        candidate, first = self.programs.candidate, self.programs.first()
        if candidate.options.outputs:
            self.device.settle(lambda: None)
            return
        for mode in candidate.host.modes:
            if not self._is_own or (mode == "eval" and self._draw.reads_training):
                continue
            with self.programs.in_mode(mode):
                if self.programs.first().data != first.data:
                    self._prepare()
                    self.checked()
        self._prepare()

    def _prepare(self) -> None:
        captured = self.programs.first()
        self._ask_wide()
        self.device.settle(self._require_first_call)
        if self.programs.first() is not captured:  # the program that is timed
            self._ask_wide()

    def checked(self) -> Finding:
        """Asks the second or only question, or looks at one call if asked. Raises Decided."""
        with self.device.asking(is_wide=False):
            if self.programs.candidate.options.outputs:
                return self._look()
            found = self._ask_real()
            with self.programs.phases.timed("correct"):
                if self._is_own:
                    self.device.require_lasting()
                self._require_others()
        return found

    def _look(self) -> Finding:
        """One call on inputs as the problem gives them, and the figures of its outputs. Raises
        Decided for a program that fails."""
        with self.programs.phases.timed("correct"):
            left = self.device.call(0)
            results = self.device.results
            found = results.mismatch(left)
            status, reason = (Status.WRONG, Reason.MISMATCH) if found else (Status.CORRECT, "ok")
            finding = self.programs.report(status, reason, found or "")
            return replace(finding, profile=Profile(outputs=results.facts(left)))

    @property
    def _draw(self) -> Draw:
        return self.programs.draw

    @property
    def _is_own(self) -> bool:
        return self.programs.candidate.protocol is None

    def _ask_wide(self) -> None:
        """Asks in float64 whether it is the same function. Raises Decided."""
        if not self._is_own or self.programs.evidence not in ("", WIDE):
            return
        numbers = [number for number, one in enumerate(self._draw.sets) if one.wide]
        if not numbers:
            why = self._draw.why_narrow or NO_RESULTS
            self.programs.evidence = f"narrow: the reference: {why}"
            return
        self.programs.evidence, self.device.results.is_narrow = WIDE, False
        try:
            with self.device.asking(is_wide=True):
                self._run_checks(numbers)
        except Narrowed as narrowed:
            self._narrow(str(narrowed))
        except Decided as decided:
            if not self.device.ends_wide(decided.finding):
                raise
            self._narrow(decided.finding.detail.split("\n")[0])

    def _narrow(self, why: str) -> None:
        self.programs.evidence = f"narrow: {why}"
        self.device.results.is_narrow = True

    def _ask_real(self) -> Finding:
        programs, numbers = self.programs, list(self.device.numbers)
        if not self._is_own:
            self._run_checks(numbers, is_repeated=False)
            self._require_draws()
            return programs.report(Status.CORRECT, "ok")
        if programs.evidence == WIDE:
            asked = self._asked_real(numbers)
            self._run_checks(asked, reason=Reason.PRECISION, words=PRECISION_WORDS)
        else:
            self._run_checks(numbers)
        return programs.report(Status.CORRECT, "ok", self._open_words())

    def _asked_real(self, numbers: Sequence[int]) -> list[int]:
        """Sets of question 2: given ones, NUM_REAL quiet ones, and a loud one for what overflows.
        (In another loud one a variance in one pass loses what no kernel need keep.)"""
        sets = self._draw.sets
        asked = [n for n in numbers if sets[n].asks_real or not sets[n].wide]
        planted = [number for number in asked if sets[number].is_planted]
        rough = [number for number in planted if sets[number].is_rough]
        quiet = [one for one in planted if not are_far(sets[one].plants)]
        chosen = RANDOM.sample(quiet, min(NUM_REAL, len(quiet)))
        return [*(number for number in asked if number not in planted), *rough, *chosen]

    def _open_words(self) -> str:
        """Words for inputs that may be anything, where nothing could be planted, and for facts of
        the card that host code decides by: the judge has one card."""
        words = list[str]()
        if not any(one.is_planted for one in self._draw.sets):
            words.append("Model bears no planted value: judged on inputs as given alone")
        elif names := ", ".join(self._draw.insensitive):
            words.append(
                f"no output was seen to depend on {names}: what the kernel does there is open"
            )
        if facts := self.programs.candidate.host.card:
            words.append(f"judged for this card alone: host code decides by {', '.join(facts)}")
        return "\n".join(words)

    def _run_checks(
        self,
        numbers: Sequence[int],
        *,
        is_repeated: bool | None = None,
        reason: Reason = Reason.MISMATCH,
        words: str = "",
    ) -> None:
        """Asks on these sets: the first one, then the others and any one of them again, in an order
        that no program can know. Raises Decided at the first failure: with `reason`, if there is no
        other for an answer that differs, and `words` before what differs then. A set is asked twice
        (`is_repeated`) for what a program keeps between calls; by default where it may do so."""
        device, programs = self.device, self.programs
        order = list(numbers[1:])
        if device.is_repeated() if is_repeated is None else is_repeated:
            order.append(RANDOM.choice(numbers))
        RANDOM.shuffle(order)
        self._judged, programs.is_written = [], False
        with programs.phases.timed("correct"):
            for number in (numbers[0], *order):
                if len(self._judged) == 1:
                    device.announce(order)
                self._require_right(device.call(number), reason, words)
                self._judged.append(number)
            for number in device.further(self._judged):
                if found := device.results.mismatch(device.call(number)):
                    detail = f"{ALTERNATIVE_WORDS}: {found}"
                    raise programs.decided(Status.WRONG, reason, detail)

    def _require_right(self, left: Left, reason: str, words: str) -> None:
        """Raises Decided, with its likely cause, for a call that left what is not right."""
        programs, results = self.programs, self.device.results
        found = results.mismatch(left)
        if found is not None and results.is_unwritten(left):
            detail = "the output is all NaN: nothing was written to it, or every value is 0/0"
            raise programs.decided(Status.WRONG, "output_not_written", detail)
        programs.is_written = True
        if found is None and left.is_kept:
            return
        detail = f"{words}{found}"
        forms = self._draw.forms(left.number)
        alike = (one for one in self._judged if self._draw.forms(one) == forms)
        if found is None:
            reason = Reason.INPUTS_MODIFIED
            detail = "forward changes its inputs; write to a new tensor"
        elif left.number in self._judged:
            reason = Reason.STATEFUL
            detail = f"right once, then on the same inputs {found}\n{STATEFUL_WORDS}"
        elif any(results.tells(one) and results.mismatch(left, one) is None for one in alike):
            reason = Reason.STATEFUL
            detail = f"the answer to earlier inputs: {found}\n{STATEFUL_WORDS}"
        raise programs.decided(Status.WRONG, reason, detail)

    def _require_draws(self) -> None:
        """Raises Decided where another protocol gives a right program other parameters than Model.
        The child that says so is the candidate's own: it can only do itself harm."""
        protocol, name = self.programs.candidate.protocol, self.programs.first().drawn_otherwise
        if protocol is not None and name in (self._draw.request.get("drawn") or {}):
            detail = (
                f"{protocol.name} constructs Model and ModelNew from one seed and "
                f"loads nothing: here {name} is not drawn as Model draws it. Make the random "
                "tensors in Model's order, by the same layers or distributions and shapes"
            )
            raise self.programs.decided(Status.WRONG, Reason.MISMATCH, detail)

    def _require_first_call(self) -> None:
        """Raises Decided for a tuned kernel that reads what its benchmarks left in its output."""
        programs, captured = self.programs, self.programs.first()
        first = first_call(captured.program, programs.accesses(captured.program))
        if first is None or not self._draw.has_elements(0):
            return
        one = Captured(
            program=first.program, data=wire.dumps(first.program), questions=captured.questions
        )
        widest = max(len(open_alternatives(node)) for node in first.program.forward)
        for turn in range(min(widest, MAX_FIRST_CALLS)):
            if wrong := self._wrong(one, turn=turn, is_tuned=True):
                detail = programs.at_line(first.line, f"{first.words}\n{wrong}")
                raise programs.decided(Status.WRONG, Reason.MISMATCH, detail)

    def _require_others(self) -> None:
        """Raises Decided where the first call, if it differs from later ones, is wrong."""
        programs, captured = self.programs, self.programs.first()
        if not self._draw.has_elements(0):
            return
        if captured.program.stateful:
            one = programs.capture(0, is_first=True)
            programs.require_form(one.program, 0)
            if wrong := self._wrong(one):
                detail = f"right later, wrong in its first call\n{STATEFUL_WORDS}\n{wrong}"
                raise programs.decided(Status.WRONG, Reason.STATEFUL, detail)

    def _wrong(
        self, captured: Captured, *, turn: int | None = None, is_tuned: bool = False
    ) -> str | None:
        """The difference after one call of a program on set 0, or why it fails. Raises Decided
        where it is not the candidate's fault."""
        try:
            return self.device.results.mismatch(self.device.once(captured, turn=turn))
        except Decided as decided:
            found = decided.finding
            is_unfit = found.reason == Reason.OUT_OF_RESOURCES
            if found.reason == Reason.OUT_OF_MEMORY:
                raise  # others may hold it
            if is_tuned and (is_unfit or found.status is Status.COMPILE_ERROR):
                return None  # an autotuner skips such a configuration
            if found.status not in (Status.WRONG, Status.RUNTIME_ERROR):
                raise
            return found.detail
