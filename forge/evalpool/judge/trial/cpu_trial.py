"""Judges a candidate on a CPU: its program's kernels are evaluated from their TTIR.

capture ─▶ structure ─▶ (binary, if asked for) ─▶ evaluator: set 0, the others, one again
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
from forge.evalpool.judge.program.walk import open_alternatives, returned_inputs, winners
from forge.evalpool.judge.trial.captures import PLAIN_ROLE, Captures
from forge.evalpool.judge.trial.cpu_memory import CpuMemory
from forge.evalpool.judge.trial.evaluations import Evaluator
from forge.evalpool.judge.trial.facts import Facts
from forge.evalpool.judge.trial.judgement import Judgement
from forge.evalpool.judge.trial.references import References
from forge.evalpool.judge.trial.trial import Decided, Trials
from forge.evalpool.judge.ttir.contraction import ALL, NONE
from forge.records.reason import Reason, Status

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from forge.config.schema import JudgeTable
    from forge.evalpool.judge.children.spawner import Spawner
    from forge.evalpool.judge.program.format import Program
    from forge.evalpool.judge.trial.captures import Captured
    from forge.evalpool.judge.trial.draws.reference import Reference
    from forge.evalpool.judge.trial.trial import Candidate, Finding, Stamp
    from forge.evalpool.judge.ttir.contraction import Fusion


H100 = 90
MAX_TURNS = 128
"""Alternatives of a choice that are tried."""
MAX_FURTHER, MAX_SMALL_FURTHER = 16, 96
FURTHER_BYTES = 32 << 20
"""Further calls of alternatives on sets that they have not had, once each has run on one of ours:
the first one runs on the given set before anything else. More of a small program, whose calls
load and store as many bytes together."""
MAX_FURTHER_SHARE = 4.0
"""Most time for the alternatives that the sets' own calls leave, as a share of the latter's."""


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
    """Draws of our own protocol."""
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
        references, compare = self.references, None
        if protocol is not None:
            references, compare = self.given, protocol.comparison(problem.precision)
        with phases.timed("reference"):
            reference = references.get(problem)
            facts = self.facts.of(
                problem,
                reference.request,
                io_bytes=reference.io_bytes,
                names=reference.names,
                uid=candidate.uid,
            )
        with shared_memory(reference.memory_bytes) as (fd, memory):
            mapped = CpuMemory(reference, memory, compare)
            evaluator = Evaluator(
                code=candidate.code,
                evaluators=self.evaluators,
                phases=phases,
                table=self.table,
                request={**reference.request, "has_tf32": not reference.has_products},
                memory_fd=fd,
                restore=mapped.restore,
            )
            judgement = CpuJudgement(
                candidate=candidate,
                table=self.table,
                request=reference.request,
                reference=reference,
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

    def left(self, given: Collection[int], *, most: int) -> list[tuple[int, int]]:
        """Alternatives with sets that they have not had: each gets one that is not given, where
        there is one; behind those, at random and `most` in all, any others."""
        if len(self.turns) == 1:
            return []
        sets = {number for _, number in self.ran}
        varied = sets - set(given) or sets
        draw = random.SystemRandom()
        pairs = {(turn, number) for turn in self.turns for number in varied} - {*self.ran}
        owed = {turn for turn in self.turns if not any((turn, one) in self.ran for one in varied)}
        first = [(turn, draw.choice(sorted(varied))) for turn in sorted(owed)]
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


def fusions() -> Iterator[Fusion]:
    """The sums of products that are fused in one call after the other: all, none, then any. A
    program whose host reads values holds for the numbers of all of them."""
    yield from (ALL, NONE)
    while True:
        yield secrets.randbelow(ALL + 1)


@dataclass(slots=True, kw_only=True)
class CpuJudgement(Judgement):
    """One candidate whose programs an evaluator runs."""

    reference: Reference
    evaluator: Evaluator
    _tried: dict[bytes, _Tried] = field(default_factory=dict[bytes, "_Tried"], init=False)
    """By the data of each program that ran."""
    _again: tuple[_Tried, int] | None = field(default=None, init=False)
    """Program and alternative of a further call."""
    _last: tuple[_Tried, int, int] = field(init=False)
    """Program, alternative and set of the last call."""
    _follows: bool = field(default=False, init=False)
    """True if the host may follow the winner though the capture does not show it."""
    _capture_s: float = field(default=0.0, init=False)
    """Time for captures with other winners than the first."""
    _shift: int = field(default_factory=partial(secrets.randbelow, 1 << 16), init=False)
    _fusions: Iterator[Fusion] = field(default_factory=lambda: fusions(), init=False)
    _num_bytes: int = field(default=0, init=False)
    """Bytes that a call on set 0 loads and stores."""

    def finding(self) -> Finding:
        """The verdict's content. Raises Decided for a candidate that fails."""
        self.memory.load(0)
        self.first()
        try:
            found = self._checked()
            with self.phases.timed("correct"):
                self.require_first_call(self._call_once)
                self.require_others(partial(self._call_once, turn=0))
            return found
        finally:
            self._checks = None  # it refers to this judgement, which holds the draw's memory

    def _checked(self) -> Finding:
        """Runs every checked call. Raises Decided.

        A host that remembers its first winner, or reads values, does not show that it follows: a
        call of another alternative that is wrong is made again, captured with that winner.
        """
        try:
            return self.check()
        except Decided as decided:
            tried, turn, number = self._last
            is_known = not turn or self._follows or tried.captured.follows_winner
            if is_known or decided.finding.status not in (Status.WRONG, Status.RUNTIME_ERROR):
                raise
            self._follows, self._again = True, (tried, turn)
            self.memory.load(number)
            self._call(number)
            self.memory.take()
            if self.memory.mismatch(number):
                raise
        self._again = None
        self._tried.clear()
        return self.check()

    def _values(self, prefix: Program, *, number: int) -> list[Any]:
        """Answers the capture child, on the set that lies in the memory. Nothing that the prefix
        wrote stays there, for another question or for the program."""
        try:
            with self._doubting(prefix):
                return self.evaluator.values(prefix, number=number)
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

    def has_elements(self, number: int) -> bool:
        """True if a call on an input set has something to compute."""
        return self.reference.has_elements(number)

    def _call(self, number: int) -> None:
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
        assert isinstance(self.memory, CpuMemory)
        self.memory.returned = returned_inputs(captured.program)
        with self._doubting(captured.program):
            num_bytes = self.evaluator.call(
                captured,
                number=number,
                turn=(turn, self._shift),
                fusion=ALL if captured.reads_values else next(self._fusions),
                slots=self.reference.sets[number].slots,
                finding=self.report,
            )
        if number == 0:
            self._num_bytes = num_bytes

    def _call_once(self, captured: Captured, turn: int) -> None:
        """Runs a program once on set 0. Raises Decided."""
        self.evaluator.call(
            captured,
            number=0,
            turn=(turn, self._shift),
            fusion=ALL,
            slots=self.reference.sets[0].slots,
            finding=self.report,
        )

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
        """Sets on which the alternatives run that have not run yet."""
        sets = range(self.memory.num_sets)
        given = {number for number in sets if self.memory.variant(number) == "given"}
        most = self._num_further()
        left = [(one, pair) for one in self._tried.values() for pair in one.left(given, most=most)]
        if left:
            self.evaluator.allow(min(len(left) / self.memory.num_sets, MAX_FURTHER_SHARE))
        for tried, (turn, number) in left:
            self._again = tried, turn
            yield number

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
