# pyright: strict
"""Runs a candidate's programs on a CPU: an evaluator's child, and memory that both of us map."""

from __future__ import annotations

import random
import secrets
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.program.format import Origin
from forge.evalpool.judge.program.walk import open_alternatives, returned_inputs, winners
from forge.evalpool.judge.trial.judgement import WIDE, Device, Narrowed
from forge.evalpool.judge.trial.trial import Decided
from forge.records.reason import Reason, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from forge.evalpool.judge.program.format import Program
    from forge.evalpool.judge.trial.captures import Captured
    from forge.evalpool.judge.trial.cpu_memory import CpuMemory
    from forge.evalpool.judge.trial.draws.host import HostDraw
    from forge.evalpool.judge.trial.evaluations import Evaluator
    from forge.evalpool.judge.trial.programs import Programs
    from forge.evalpool.judge.trial.results import Left, Results

MAX_TURNS = 128
"""Alternatives of a choice that are tried."""
MAX_FURTHER, MAX_SMALL_FURTHER = 16, 96
FURTHER_BYTES = 32 << 20
"""Further calls of alternatives on sets that they have not had, once each has run on one. More of a
small program, whose calls load and store as many bytes together."""
MAX_FURTHER_SHARE = 4.0
"""Most time for the alternatives that the sets' own calls leave, as a share of the latter's."""


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


@dataclass(slots=True, kw_only=True)
class CpuDevice(Device):
    """One judgement's part of an evaluator. Nothing lasts: memory is put back before each call."""

    programs: Programs
    results: Results[HostDraw]
    memory: CpuMemory
    evaluator: Evaluator
    _tried: dict[bytes, _Tried] = field(default_factory=dict[bytes, "_Tried"], init=False)
    """By the data of each program that ran."""
    _again: tuple[_Tried, int] | None = field(default=None, init=False)
    """Program and alternative of a further call."""
    _last: tuple[_Tried, int, int, bool] | None = field(default=None, init=False)
    """Program, alternative and set of the last call of a question, and True if it was in float64;
    None before the first."""
    _follows: bool = field(default=False, init=False)
    """True if the host may follow the winner though the capture does not show it."""
    _capture_s: float = field(default=0.0, init=False)
    """Time for captures with other winners than the first."""
    _shift: int = field(default_factory=partial(secrets.randbelow, 1 << 16), init=False)
    _num_bytes: int = field(default=0, init=False)
    """Bytes that a call loads and stores."""

    def __post_init__(self) -> None:
        self.programs.device = self

    @property
    def numbers(self) -> Sequence[int]:
        """All sets."""
        return range(len(self.programs.draw.sets))

    @contextmanager
    def asking(self, *, is_wide: bool) -> Generator[None]:
        """Takes a layout for the calls within. Alternatives have run on none of their sets."""
        self._again = None
        for data, one in [*self._tried.items()]:
            if one.captured.reads_values:
                del self._tried[data]
            one.ran.clear()
        self._lay(is_wide=is_wide)
        try:
            yield
        finally:
            self._lay(is_wide=False)

    def _lay(self, *, is_wide: bool) -> None:
        self.memory.lay(is_wide=is_wide)
        self.results.is_wide = is_wide

    def is_repeated(self) -> bool:
        """True if a program may keep something between calls: a constant that it writes to, or what
        its host has read. All other memory is put back before each call."""
        kept = self.programs.first()
        constants = (one.origin is Origin.CONSTANT for one in kept.program.storages)
        return kept.reads_values or any(constants)

    def settle(self, require_first_call: Callable[[], None]) -> None:
        """Checks the program alone: its alternatives take turns, and none wins."""
        require_first_call()

    def is_followed(self, decided: Decided) -> bool:
        """A host that remembers its first winner, or reads values, does not show that it follows: a
        call of another alternative that is wrong is made again, captured with that winner. True if
        that one is right."""
        if self._last is None:
            return False
        tried, turn, number, is_wide = self._last
        is_known = not turn or self._follows or tried.captured.follows_winner
        if is_known or decided.finding.status not in (Status.WRONG, Status.RUNTIME_ERROR):
            return False
        self._follows, self._again = True, (tried, turn)
        self._lay(is_wide=is_wide)
        try:
            if self.results.mismatch(self.call(number)):
                return False
        except Narrowed:
            return False
        self._tried.clear()
        return True

    def values(self, prefix: Program, *, number: int) -> list[Any]:
        """Answers the capture child. Nothing that the prefix wrote stays in the memory, for another
        question or for the program."""
        self.memory.load(number)
        try:
            with self._doubting(prefix):
                is_wide = self.results.is_wide
                return self.evaluator.values(prefix, number=number, is_wide=is_wide)
        finally:
            self.evaluator.restore(number)

    def call(self, number: int) -> Left:
        """Runs the program of an input set once. Raises Decided or Narrowed."""
        if self._again is not None:
            tried, turn = self._again
        else:
            captured = self.programs.program(number, is_wide=self.results.is_wide)
            turns = _turns(captured.program)
            tried = self._tried.setdefault(captured.data, _Tried(captured, turns))
            turn = tried.next_turn()
            tried.ran.append((turn, number))
        self._last = tried, turn, number, self.results.is_wide
        captured, turn = self._of_turn(tried, turn, number)
        return self._evaluated(captured, turn, number)

    def once(self, captured: Captured, *, turn: int | None = None) -> Left:
        """Runs a program once on set 0. Raises Decided."""
        self._last = None
        return self._evaluated(captured, turn or 0, 0)

    def further(self, judged: Sequence[int]) -> Iterator[int]:
        """Sets on which the alternatives run that have not run yet. In the second question, each
        runs once."""
        is_only = self.results.is_wide or self.programs.evidence != WIDE
        most = self._num_further() if is_only else 0
        left = [(one, pair) for one in self._tried.values() for pair in one.left(most=most)]
        share = min(len(left) / len(self.numbers), MAX_FURTHER_SHARE)
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

    def _evaluated(self, captured: Captured, turn: int, number: int) -> Left:
        """Runs a program once on a set. Raises Decided or Narrowed."""
        self.memory.load(number)
        parameters = self.programs.draw.sets[number].parameters
        with self._doubting(captured.program):
            self._num_bytes = self.evaluator.call(
                captured,
                parameters=parameters,
                number=number,
                turn=(turn, self._shift),
                slots=self.programs.draw.sets[number].slots,
                finding=self.programs.report,
                is_wide=self.results.is_wide,
            )
        if not self.results.is_wide:
            self.programs.phases.moved_bytes = self._num_bytes
        return self.memory.left(number, returned=returned_inputs(captured.program))

    @contextmanager
    def _doubting(self, program: Program) -> Generator[None]:
        """Within, a bug of the evaluator is the candidate's fault if Triton itself refuses the text
        of a kernel: a capture child may send what no compiler wrote."""
        try:
            yield
        except Decided as decided:
            if decided.finding.reason == Reason.JUDGE_BUG:
                self.programs.require_binaries(program, self.programs.binaries(program))
            raise

    def _of_turn(self, tried: _Tried, turn: int, number: int) -> tuple[Captured, int]:
        """The program of a turn, and the alternatives that run of what is open in it: captured with
        those of the turn as winners where the host follows them, since the first capture has the
        host's part of the first alternatives. One that no card launches never wins."""
        base = tried.captured
        if turn == 0 or not (base.follows_winner or self._follows):
            return base, turn
        is_late = self._capture_s > self.programs.table.compile_timeout_s
        if turn not in tried.by_winner and is_late:
            return base, 0
        if turn not in tried.by_winner:
            began = time.monotonic()
            chosen = winners(base.program, turn=turn, shift=self._shift)
            try:
                tried.by_winner[turn] = self.programs.with_winners(number, chosen), turn
            except Decided as decided:
                if decided.finding.reason != Reason.OUT_OF_RESOURCES:
                    raise
                tried.by_winner[turn] = base, 0
            self._capture_s += time.monotonic() - began
        return tried.by_winner[turn]
