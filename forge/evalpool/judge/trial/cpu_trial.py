"""Judges a candidate on a CPU: its program's kernels are evaluated from their TTIR.

capture ─▶ structure ─▶ (binary, if asked for) ─▶ evaluator

1. The same function? In float64, on sets with secret plants: all of them, and one again.
2. Does it lose only what its types lose? In them, on the given set and a few planted ones.

A program that float64 cannot run answers all sets in its own types, with question 2's tolerance.
Under another project's protocol, so do all, on its sets and by its comparison.
"""

from __future__ import annotations

import random
import secrets
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from forge.evalpool.capacity import draw_timeout_s, reference_timeout_s
from forge.evalpool.cards import CARDS
from forge.evalpool.judge.channel.shm import shared_memory
from forge.evalpool.judge.children.kept import KeptChildren
from forge.evalpool.judge.compiler.binary import SHARED_BYTES, warp_size_of
from forge.evalpool.judge.compiler.cache import Cache
from forge.evalpool.judge.compiler.compile import Compiler
from forge.evalpool.judge.numbers.protocols import NUM_TRIALS
from forge.evalpool.judge.program.format import Origin
from forge.evalpool.judge.program.walk import open_alternatives, returned_inputs, winners
from forge.evalpool.judge.trial.captures import PLAIN_ROLE, Captures
from forge.evalpool.judge.trial.cpu_memory import CpuMemory
from forge.evalpool.judge.trial.evaluations import Evaluator, Narrowed
from forge.evalpool.judge.trial.facts import Facts
from forge.evalpool.judge.trial.judgement import Judgement
from forge.evalpool.judge.trial.references import References
from forge.evalpool.judge.trial.results import Results
from forge.evalpool.judge.trial.trial import Decided, Finding, Trials
from forge.evalpool.judge.wide.look import are_far
from forge.records.reason import Reason, Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from forge.config.schema import JudgeTable
    from forge.evalpool.judge.children.spawner import Spawner
    from forge.evalpool.judge.program.format import Program
    from forge.evalpool.judge.trial.captures import Captured
    from forge.evalpool.judge.trial.draws.draw import InputSet
    from forge.evalpool.judge.trial.results import Left
    from forge.evalpool.judge.trial.trial import Candidate, Stamp


H100 = 90
MAX_TURNS = 128
"""Alternatives of a choice that are tried."""
MAX_FURTHER, MAX_SMALL_FURTHER = 16, 96
FURTHER_BYTES = 32 << 20
"""Further calls of alternatives on sets that they have not had, once each has run on one. More of a
small program, whose calls load and store as many bytes together."""
NUM_REAL = 2
"""Sets with quiet plants that question 2 is asked on."""
MAX_FURTHER_SHARE = 4.0
"""Most time for the alternatives that the sets' own calls leave, as a share of the latter's."""


WIDE = "wide"
NO_RESULTS = "no results in float64"
PRECISION_TERMS: Mapping[str, Any] = {
    "reason": Reason.PRECISION,
    "words": "what it returns is right in float64, but not in its own types: ",
    "is_repeated": False,
}
"""Terms of the checks of question 2."""
CONSTANT_WORDS = "no output of Model changes with its inputs: a kernel may write what it knows"


def assumed_target(name: str) -> dict[str, Any]:
    """The GPU `cuda:90` or `hip:gfx942` as captures and compilations take it, with the facts of the
    best known card of its architecture. An H100's are the defaults of a capture."""
    backend, _, code = name.partition(":")
    arch = int(code) if backend == "cuda" else code
    properties: dict[str, Any] = {"name": name, "max_shared_mem": SHARED_BYTES.get(name)}
    found = next(((short, one) for short, one in CARDS.items() if one.arch == arch), None)
    if found is not None:
        short, card = found
        properties |= {
            "name": short if backend == "cuda" else f"AMD Instinct {short}",
            "multi_processor_count": card.num_sms,
            "total_memory": card.memory_gb << 30,
            "l2_cache_size": card.l2_mb << 20,
            "clock_rate": round(card.ghz * 1e6),
        }
    known = {key: value for key, value in properties.items() if value is not None}
    return {
        "backend": backend,
        "arch": arch,
        "warp_size": warp_size_of(name),
        "properties": {} if arch == H100 else known,
    }


def open_cpu_trials(
    table: JudgeTable,
    *,
    spawner: Spawner,
    stamp: Stamp,
    oracle_uid: int | None,
    evaluator_uid: int | None,
    plain_uid: int | None,
    compiler_uids: Sequence[int | None] = (None,),
    cache: Cache | None = None,
) -> CpuTrials:
    """The judge of a machine without GPUs.

    Args:
        compiler_uids: user ids of compiler children that run at once.
        cache: compiled kernels; by default in memory.
    """
    draws = partial(
        References,
        spawner,
        timeout_s=reference_timeout_s(table),
        draw_timeout_s=draw_timeout_s(table),
        uid=oracle_uid,
        max_bytes=table.memory_bytes,
    )
    captures = Captures(
        spawner,
        table=table,
        target=assumed_target(table.target),
        kept=KeptChildren(spawner, role=PLAIN_ROLE, uid=plain_uid),
    )
    return CpuTrials(
        table=table,
        spawner=spawner,
        references=draws(num_sets=table.num_inputs),
        given=draws(num_sets=NUM_TRIALS, is_varied=False),
        captures=captures,
        facts=Facts(captures),
        compiler=Compiler(spawner, cache=cache or Cache(None), uids=compiler_uids),
        evaluators=KeptChildren(spawner, role="evaluator", uid=evaluator_uid),
        stamp=stamp,
    )


@dataclass(kw_only=True, eq=False)
class CpuTrials(Trials):
    """Judges without a GPU."""

    references: References
    """Draws of our own protocol: given inputs, and inputs with plants."""
    given: References
    """Draws of the others: inputs and parameters as the problem gives them."""
    evaluators: KeptChildren

    def close(self) -> None:
        """Ends the children that wait, and the compiler's threads."""
        self.references.end_idle()
        self.given.end_idle()
        self.evaluators.close()
        self.captures.close()
        self.compiler.close()

    def _run(self, candidate: Candidate) -> Finding:
        problem, protocol, phases = candidate.problem, candidate.protocol, candidate.phases
        references = self.references if protocol is None else self.given
        with phases.timed("reference"):
            reference = references.get(problem)
            draw = reference.draw
            facts = self.facts.of(
                problem,
                draw.request,
                io_bytes=draw.io_bytes,
                names=draw.names,
                uid=candidate.uid,
            )
        if draw.is_constant:
            return Finding(status=Status.UNJUDGEABLE, reason=Reason.CONSTANT, detail=CONSTANT_WORDS)
        with shared_memory(reference.memory_bytes) as (fd, memory):
            mapped = CpuMemory(reference, memory)
            evaluator = Evaluator(
                code=candidate.code,
                evaluators=self.evaluators,
                phases=phases,
                table=self.table,
                # TF32 is allowed to kernels where the reference has products.
                request=reference.request
                | {"has_tf32": not (self.table.tf32 and draw.has_products)},
                memory_fd=fd,
                restore=mapped.restore,
            )
            judgement = CpuJudgement(
                candidate=candidate,
                table=self.table,
                draw=draw,
                results=Results(content=reference, protocol=protocol),
                memory=mapped,
                problem=facts,
                captures=self.captures,
                compiler=self.compiler,
                evaluator=evaluator,
            )
            try:
                return judgement.finding()
            finally:
                evaluator.close()


@dataclass(slots=True)
class _Tried:
    """A program that ran."""

    captured: Captured
    turns: Sequence[int]
    """Alternatives to be tried, the first one first."""
    ran: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Alternative and input set of each call."""
    by_winner: dict[int, tuple[Captured, int]] = field(
        default_factory=dict[int, "tuple[Captured, int]"]
    )
    """Programs captured with a turn's alternatives as winners."""

    def next_turn(self) -> int:
        """The alternative of the next call."""
        return self.turns[len(self.ran) % len(self.turns)]

    def left(self, *, most: int) -> list[tuple[int, int]]:
        """Alternatives with sets that they have not had: one for each that has had none; behind
        those, at random and `most` in all, any others."""
        if len(self.turns) == 1 or not self.ran:
            return []
        sets = sorted({number for _, number in self.ran})
        draw = random.SystemRandom()
        pairs = {(turn, number) for turn in self.turns for number in sets} - {*self.ran}
        owed = {*self.turns} - {turn for turn, _ in self.ran}
        first = [(turn, draw.choice(sets)) for turn in sorted(owed)]
        others = sorted(pairs - {*first})
        draw.shuffle(others)
        return [*first, *others[: max(0, most - len(first))]]


def _turns(program: Program) -> Sequence[int]:
    """Turns in which each alternative of each open choice runs: of too many a random selection."""
    widest = max((len(open_alternatives(node)) for node in program.nodes), default=1)
    if widest <= MAX_TURNS:
        return range(widest)
    others = random.SystemRandom().sample(range(1, widest), MAX_TURNS - 1)
    return (0, *others)


def _asked_real(sets: Sequence[InputSet]) -> list[int]:
    """Sets of question 2: given ones, NUM_REAL quiet ones, and a loud one for what overflows. (In
    another loud one a variance in one pass loses what no kernel need keep.)"""
    asked = [number for number, one in enumerate(sets) if one.is_asked_real]
    planted = [number for number in asked if sets[number].is_planted]
    rough = [number for number in planted if sets[number].is_rough]
    quiet = [one for one in planted if not are_far(sets[one].plants)]
    chosen = random.SystemRandom().sample(quiet, min(NUM_REAL, len(quiet)))
    return [*(number for number in asked if number not in planted), *rough, *chosen]


def insensitive(inputs: Sequence[str], *, is_planted: bool) -> str:
    """Words for inputs that may be anything, and where nothing could be planted."""
    if not is_planted:
        return "Model bears no planted value: judged on inputs as given alone"
    names = ", ".join(inputs)
    return names and f"no output was seen to depend on {names}: what the kernel does there is open"


@dataclass(slots=True, kw_only=True)
class CpuJudgement(Judgement):
    """One candidate whose programs an evaluator runs."""

    memory: CpuMemory
    evaluator: Evaluator
    _tried: dict[bytes, _Tried] = field(default_factory=dict[bytes, "_Tried"], init=False)
    """By the data of each program that ran."""
    _again: tuple[_Tried, int] | None = field(default=None, init=False)
    """Program and alternative of a further call."""
    _last: tuple[_Tried, int, int] | None = field(default=None, init=False)
    """Program, alternative and set of the last call; None before the first."""
    _follows: bool = field(default=False, init=False)
    """True if the host may follow the winner though the capture does not show it."""
    _capture_s: float = field(default=0.0, init=False)
    """Time for captures with other winners than the first."""
    _shift: int = field(default_factory=partial(secrets.randbelow, 1 << 16), init=False)
    _num_bytes: int = field(default=0, init=False)
    """Bytes that a call loads and stores."""

    def finding(self) -> Finding:
        """The verdict's content. Raises Decided for a candidate that fails."""
        self.first()
        try:
            found = self._checked()
            with self.phases.timed("correct"):
                self.require_first_call(self._call_once)
                self.require_others(partial(self._call_once, turn=0))
            return found
        finally:
            self._checks = None  # it refers to this judgement, which holds the draw's memory

    def check(self) -> Finding:
        """Asks both questions. Raises Decided for a candidate that fails."""
        if self.candidate.protocol is not None:
            return Judgement.check(self)
        sets, asked, terms = self.draw.sets, range(len(self.draw.sets)), dict[str, Any]()
        self.evidence = f"narrow: the reference: {self.draw.why_narrow or NO_RESULTS}"
        if any(one.wide for one in sets):
            try:
                self._ask_wide()
            except Narrowed as narrowed:
                self.evidence = f"narrow: {narrowed}"
            else:
                asked = _asked_real(sets)
                terms = PRECISION_TERMS
        self._lay(is_wide=False)
        has_wide = any(one.wide for one in sets)
        self.results.is_narrow = has_wide and self.evidence != WIDE
        self._run_checks(numbers=asked, **{"is_repeated": self._is_kept(), **terms})
        is_planted = any(one.is_planted for one in sets)
        words = insensitive(self.draw.insensitive, is_planted=is_planted)
        return self.report(Status.CORRECT, "ok", words)

    def _ask_wide(self) -> None:
        """Asks in float64 whether it is the same function. Raises Decided or Narrowed."""
        numbers = [number for number, one in enumerate(self.draw.sets) if one.wide]
        self.evidence = WIDE
        self._lay(is_wide=True)
        self._run_checks(numbers=numbers, is_repeated=self._is_kept())

    def _is_kept(self) -> bool:
        """True if a program may keep something between calls: a constant that it writes to, or what
        its host has read. All other memory is put back before each call."""
        kept = self.first()
        constants = (one.origin is Origin.CONSTANT for one in kept.program.storages)
        return kept.reads_values or any(constants)

    def _lay(self, *, is_wide: bool) -> None:
        """Takes a layout for the calls to come. Alternatives have run on none of their sets."""
        self.memory.lay(is_wide=is_wide)
        self.results.is_wide = is_wide
        self._again = None
        for data, one in [*self._tried.items()]:
            if one.captured.reads_values:
                del self._tried[data]
            one.ran.clear()

    def _checked(self) -> Finding:
        """Runs every checked call. Raises Decided.

        A host that remembers its first winner, or reads values, does not show that it follows: a
        call of another alternative that is wrong is made again, captured with that winner.
        """
        try:
            return self.check()
        except Decided as decided:
            if self._last is None:
                raise
            tried, turn, number = self._last
            is_known = not turn or self._follows or tried.captured.follows_winner
            if is_known or decided.finding.status not in (Status.WRONG, Status.RUNTIME_ERROR):
                raise
            self._follows, self._again = True, (tried, turn)
            if self.results.mismatch(self._call(number)):
                raise
        self._again = None
        self._tried.clear()
        return self.check()

    def _values(self, prefix: Program, *, number: int) -> list[Any]:
        """Answers the capture child. Nothing that the prefix wrote stays in the memory, for another
        question or for the program."""
        self.memory.load(number)
        try:
            with self._doubting(prefix):
                is_wide = self.results.is_wide
                return self.evaluator.values(prefix, number=number, is_wide=is_wide)
        finally:
            self.evaluator.restore(number)

    @contextmanager
    def _doubting(self, program: Program) -> Iterator[None]:
        """Within, a bug of the evaluator is the candidate's fault if Triton itself refuses the text
        of a kernel: a capture child may send what no compiler wrote."""
        try:
            yield
        except Decided as decided:
            if decided.finding.reason == Reason.JUDGE_BUG:
                self.require_binaries(program, self.binaries(program))
            raise

    def _call(self, number: int) -> Left:
        self.memory.load(number)
        if self._again is not None:
            tried, turn = self._again
        else:
            captured = self.program(number)
            turns = _turns(captured.program)
            tried = self._tried.setdefault(captured.data, _Tried(captured, turns))
            turn = tried.next_turn()
            tried.ran.append((turn, number))
        self._last = tried, turn, number
        captured, turn = self._of_turn(tried, turn, number)
        with self._doubting(captured.program):
            return self._evaluated(captured, turn, number)

    def _call_once(self, captured: Captured, turn: int) -> Left:
        """Runs a program once on set 0. Raises Decided."""
        self.memory.load(0)
        return self._evaluated(captured, turn, 0)

    def _evaluated(self, captured: Captured, turn: int, number: int) -> Left:
        """Runs a program once on a set that lies in the memory. Raises Decided or Narrowed."""
        self._num_bytes = self.evaluator.call(
            captured,
            number=number,
            turn=(turn, self._shift),
            slots=self.draw.sets[number].slots,
            finding=self.report,
            is_wide=self.results.is_wide,
        )
        return self.memory.left(number, returned=returned_inputs(captured.program))

    def _of_turn(self, tried: _Tried, turn: int, number: int) -> tuple[Captured, int]:
        """The program of a turn, and the alternatives that run of what is open in it: captured with
        those of the turn as winners where the host follows them, since the first capture has the
        host's part of the first alternatives. One that no card launches never wins."""
        base = tried.captured
        if turn == 0 or not (base.follows_winner or self._follows):
            return base, turn
        if turn not in tried.by_winner and self._capture_s > self.table.compile_timeout_s:
            return base, 0
        if turn not in tried.by_winner:
            began = time.monotonic()
            chosen = winners(base.program, turn=turn, shift=self._shift)
            try:
                tried.by_winner[turn] = self.with_winners(number, chosen), turn
            except Decided as decided:
                if decided.finding.reason != Reason.OUT_OF_RESOURCES:
                    raise
                tried.by_winner[turn] = base, 0
            self._capture_s += time.monotonic() - began
        return tried.by_winner[turn]

    def _further(self) -> Iterator[int]:
        """Sets on which the alternatives run that have not run yet. In the second question, each
        runs once."""
        most = self._num_further() if self.results.is_wide or self.evidence != WIDE else 0
        left = [(one, pair) for one in self._tried.values() for pair in one.left(most=most)]
        share = min(len(left) / len(self.draw.sets), MAX_FURTHER_SHARE)
        with self.evaluator.allowing(share):
            for tried, (turn, number) in left:
                self._again = tried, turn
                yield number
        self._again = None

    def _num_further(self) -> int:
        """Most further calls of a program: an alternative that is wrong on one set of several must
        not pass for its number."""
        most = FURTHER_BYTES // max(1, self._num_bytes)
        return max(MAX_FURTHER, min(MAX_SMALL_FURTHER, most))

    def _captured(self, number: int) -> Captured:
        captured = Judgement._captured(self, number)
        program = captured.program
        if self.table.compile == "binary":
            self.require_kernels(program, self.binaries(program))
        else:
            with self.phases.timed("structure"):
                found = self.compiler.too_large(program.kernels, program.target)
            self.require_kernels(program, found)
        return captured
