# pyright: strict
"""The judge of a machine without GPUs: kernels are evaluated from their TTIR, in a child that maps
memory of ours.

capture ─▶ structure ─▶ (binary, if asked for) ─▶ evaluator

A child (`execute.child_cpu`) is our own code, and what it runs is hostile text: it holds the
inputs, parameters and slots of one judgement at a time and nothing else. It serves one judgement
after the other, since to fork and end it takes longer than most programs. A fresh one takes its
place once

- it crashed, was silent, ran out of memory or failed for a reason of its own;
- a program had torch operations that compute: a large library on hostile arguments;
- its candidate had much memory, of which some stays with the allocator;
- it has served `kept.MAX_SERVED`.

A failure of the first kind in a child that had served others is no verdict: the call is repeated in
a fresh one.
"""

from __future__ import annotations

import math
import mmap
import random
import secrets
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from forge.config.schema import JudgeTable
from forge.evalpool.capacity import draw_timeout_s, reference_timeout_s
from forge.evalpool.cards import CARDS
from forge.evalpool.judge.channel import shm
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.channel.words import at_line
from forge.evalpool.judge.children.spawner import Kept, KeptChildren, Spawner
from forge.evalpool.judge.compiler.binary import SHARED_BYTES, warp_size_of
from forge.evalpool.judge.compiler.compile import Cache, Compiler
from forge.evalpool.judge.numbers.protocols import NUM_TRIALS
from forge.evalpool.judge.program import wire
from forge.evalpool.judge.program.format import Op, Origin, Program
from forge.evalpool.judge.program.ops import KINDS, MOVES, packet
from forge.evalpool.judge.program.walk import open_alternatives, places, returned_inputs, winners
from forge.evalpool.judge.trial import trial
from forge.evalpool.judge.trial.captures import PLAIN_ROLE, Captured, Captures, Facts
from forge.evalpool.judge.trial.draws import HostDraw, Layout
from forge.evalpool.judge.trial.judgement import WIDE, Device, Judgement, Left, Narrowed, Results
from forge.evalpool.judge.trial.programs import Programs
from forge.evalpool.judge.trial.references import (
    MAX_SHOWN_BYTES,
    HostReferences,
    Oracles,
    ReferenceFailed,
    Sketches,
)
from forge.evalpool.judge.trial.trials import Trials
from forge.evalpool.judge.ttir.decisions import ANY, PARAMETER
from forge.records.reason import Reason, Status

MAX_TURNS = 128
"""Alternatives of a choice that are tried."""
MAX_FURTHER, MAX_SMALL_FURTHER = 16, 96
FURTHER_BYTES = 32 << 20
"""Further calls of alternatives on sets that they have not had, once each has run on one. More of a
small program, whose calls load and store as many bytes together."""
MAX_FURTHER_SHARE = 4.0
"""Most time for the alternatives that the sets' own calls leave, as a share of the latter's."""
MAX_KEPT_BYTES = 64 << 20
"""Memory of a candidate after which its child is kept."""
NARROW = "narrow"
"""A program that has no form in float64, by the child's name."""
ENDS_WIDE = frozenset({NARROW, "unsupported", "misfit", "invalid", "internal", "memory"})
"""Failures of a wide call behind which a program is run in its own types: float64 cannot go there.
What fails in them too is a failure there."""
SPENT = frozenset({"memory", "internal"})
"""Failures, by the executor's name, after which a child serves no other candidate."""

FAULTS: Mapping[str, Reason] = {
    "race": Reason.RACE,
    "lanes": Reason.RACE,
    "barrier": Reason.RACE,
    "order": Reason.RACE,
    "uninitialised": Reason.UNINITIALISED,
    "address": Reason.MISMATCH,
    "unwritten": Reason.OUTPUT_NOT_WRITTEN,
}
"""Memory errors behind which a call went on, by the executor's name."""
FAILURES: Mapping[str, tuple[Status, Reason]] = {
    "out_of_bounds": (Status.RUNTIME_ERROR, Reason.OUT_OF_BOUNDS),
    "misaligned": (Status.RUNTIME_ERROR, Reason.OUT_OF_BOUNDS),
    "operation": (Status.RUNTIME_ERROR, Reason.EXCEPTION),
    "memory": (Status.RUNTIME_ERROR, Reason.OUT_OF_MEMORY),
    "value": (Status.WRONG, Reason.STATEFUL),
    "unsupported": (Status.REJECTED, Reason.UNSUPPORTED),
    "misfit": (Status.REJECTED, Reason.UNSUPPORTED),
    "invalid": (Status.REJECTED, Reason.UNSUPPORTED),
    "internal": (Status.INFRA_ERROR, Reason.JUDGE_BUG),
}
"""Ends of a call, by the executor's name."""


@dataclass(slots=True)
class CpuMemory:
    """A draw's inputs, parameters and slots in the bytes that the evaluator maps, in one of the
    draw's two layouts at a time: wide for the question whether an answer is the same function, real
    for the question how much it loses."""

    content: HostDraw
    memory: mmap.mmap
    is_wide: bool = False
    _copies: dict[int, memoryview[int]] = field(default_factory=dict[int, Any])
    """Private copies of what the last call left, by place."""
    _loaded: int | None = None
    """The set that lies in the memory, as long as no call has run on it."""

    @property
    def layout(self) -> Layout:
        found = self.content.wide if self.is_wide else self.content.real
        assert found is not None
        return found

    def lay(self, *, is_wide: bool) -> None:
        """Takes the other layout for the sets to be loaded."""
        if is_wide != self.is_wide:
            self.is_wide = is_wide
            self._loaded = None
            self._copies.clear()

    def load(self, number: int) -> None:
        """Writes an input set and the parameters in place and poisons the output slots: no state
        may live from one call to the next in parameters that the reference writes to, too."""
        if self._loaded == number:
            return
        draw, one = self.content.draw, self.content.draw.sets[number]
        of_sets = {place for each in draw.sets for place in (*each.places, *each.slots)}
        for place, index in enumerate(draw.contents):
            if place not in of_sets:  # a parameter, or a tensor that the constructor takes
                self._write(place, None if index is None else one.parameters.get(index, index))
        for place, index in zip(one.places, one.inputs, strict=True):
            self._write(place, index)
        for place in one.slots:
            self._write(place, None)
        self._loaded = number

    def restore(self, number: int) -> None:
        """Writes everything as it is before the first call on an input set."""
        for place, index in enumerate(self.content.draw.contents):
            self._write(place, index)
        self._loaded = None
        self.load(number)

    def left(self, number: int, *, returned: Collection[int]) -> Left:
        """Copies of the tensors after a call, which hold until the next one. The program may write
        to the inputs that it returns."""
        self._loaded = None
        draw = self.content.draw
        one, state = draw.sets[number], dict(draw.request["state"])
        with memoryview(self.memory) as whole:
            return Left(
                number=number,
                outputs=[
                    self._copy(whole, place)
                    for place in (*one.slots, *(one.places[position] for position in one.changed))
                ],
                parameters=[self._copy(whole, state[name]) for name in draw.changed_parameters],
                is_kept=all(
                    shm.is_same(self.layout.part(whole, place), self._content(place, index))
                    for position, (place, index) in enumerate(
                        zip(one.places, one.inputs, strict=True)
                    )
                    if position not in one.changed and position not in returned
                ),
            )

    def _copy(self, whole: memoryview[int], place: int) -> memoryview[int]:
        with self.layout.part(whole, place) as part:
            if place not in self._copies:
                self._copies[place] = memoryview(bytearray(len(part)))
            self._copies[place][:] = part
        return self._copies[place]

    def _content(self, place: int, index: int) -> shm.Data:
        real, spec = self.content.real.specs[place], self.layout.specs[place]
        if real == spec:
            return self.content.parts[index]
        found = bytearray(spec.num_bytes)
        shm.decode_part(real.dtype, self.content.parts[index], start=0, target=np.frombuffer(found))
        return memoryview(found)

    def _write(self, place: int, index: int | None) -> None:
        """Writes a tensor to a place; None for an output that nothing has written."""
        real, spec = self.content.real.specs[place], self.layout.specs[place]
        start = self.layout.starts[place]
        if index is None:
            shm.fill(
                self.memory, start=start, num_bytes=spec.num_bytes, byte=shm.unwritten_byte(spec)
            )
        elif real == spec:
            content = self.content.parts[index]
            self.memory[start : start + len(content)] = content
        else:
            num = math.prod(spec.shape)
            target = np.frombuffer(self.memory, count=num, offset=start)
            shm.decode_part(real.dtype, self.content.parts[index], start=0, target=target)


def is_plain(program: Program) -> bool:
    """True if torch computes nothing in a program: its operations fill, copy, cast and pad."""
    return all(
        KINDS.get(packet(placed.node.name)) in MOVES
        for placed in places(program)
        if isinstance(placed.node, Op)
    )


class EvaluatorRunner(trial.Runner):
    """A child with a candidate, whose failures are those of the program in it."""

    is_spent: bool = False
    """True if the child must serve no other candidate."""
    is_wide: bool = False

    @contextmanager
    def answering(
        self, *, phase: str, limit_s: float, allowed: trial.Allowance | None = None
    ) -> Generator[None]:
        """Within, any end but an answer is the candidate's and spends the child: raises Decided."""
        before, self.is_spent = self.is_spent, True
        with super().answering(phase=phase, limit_s=limit_s, allowed=allowed):
            yield
        self.is_spent = before

    def failed(self, body: dict[str, Any]) -> trial.Finding:
        kind, message = str(body.get("type")), str(body.get("message"))
        self.is_spent = kind in SPENT or kind not in (*FAILURES, NARROW)
        if self.is_wide and kind in ENDS_WIDE:
            raise Narrowed(message)
        status, reason = FAILURES.get(kind, FAILURES["internal"])
        return self.finding(status, reason, at_line(self.code, body.get("line") or None, message))


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
    """One judgement's part of a child; it takes one with the first program. Nothing lasts: memory
    is put back before each call."""

    programs: Programs
    results: Results[HostDraw]
    evaluators: KeptChildren
    memory: CpuMemory
    memory_fd: int
    has_tf32: bool
    open: tuple[trial.OpenSide, ...] = ()
    """Decisions that took one side alone so far."""
    _left_s: float | None = field(default=None, init=False)
    """For all calls together, of the child's own time; None before the first."""
    _kept: Kept | None = field(default=None, init=False)
    _run: EvaluatorRunner | None = field(default=None, init=False)
    _loaded: bytes = field(default=b"", init=False)
    """The program in the child."""
    _parameters: Mapping[int, int] = field(default_factory=dict[int, int], init=False)
    """Other parameters of the last call's set."""
    _is_plain: bool = field(default=True, init=False)
    """True if torch computed nothing in the child."""
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

    def is_followed(self, decided: trial.Decided) -> bool:
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
                body = {"set": number, "is_question": True}
                return list(self._ask(prefix, wire.dumps(prefix), body)["values"])
        finally:
            self.memory.restore(number)

    def call(self, number: int) -> Left:
        if self._again is not None:
            tried, turn = self._again
        else:
            captured = self.programs.program(number, is_wide=self.results.is_wide)
            turns = _turns(captured.program)
            tried = self._tried.setdefault(captured.data, _Tried(captured, turns))
            turn = tried.turns[len(tried.ran) % len(tried.turns)]
            tried.ran.append((turn, number))
        self._last = tried, turn, number, self.results.is_wide
        captured, turn = self._of_turn(tried, turn, number)
        return self._evaluated(captured, turn, number)

    def once(self, captured: Captured, *, turn: int | None = None) -> Left:
        self._last = None
        return self._evaluated(captured, turn or 0, 0)

    def further(self, judged: Sequence[int]) -> Iterator[int]:
        """Sets for alternatives that have not run; in the second question, each runs once."""
        is_only = self.results.is_wide or self.programs.evidence != WIDE
        most = max(MAX_FURTHER, min(MAX_SMALL_FURTHER, FURTHER_BYTES // max(1, self._num_bytes)))
        most = most if is_only else 0
        left = [(one, pair) for one in self._tried.values() for pair in one.left(most=most)]
        share = min(len(left) / len(self.numbers), MAX_FURTHER_SHARE)
        with self._allowing(share):
            for tried, (turn, number) in left:
                self._again = tried, turn
                yield number
        self._again = None

    def _evaluated(self, captured: Captured, turn: int, number: int) -> Left:
        """Runs a program once on an input set, in the memory's layout, with an alternative of each
        open choice (`CpuExecutor.forward`). Raises Decided or Narrowed."""
        self.memory.load(number)
        one = self.programs.draw.sets[number]
        body = {"set": number, "turn": [turn, self._shift], "slots": list(one.slots)}
        # Where the last set had other parameters, what `init` made is stale.
        body["reruns_init"] = one.parameters != self._parameters
        self._parameters = one.parameters
        with self._doubting(captured.program):
            answer = self._ask(captured.program, captured.data, body)
        self.open = tuple(trial.OpenSide.parse(one) for one in answer["open"])
        self._num_bytes = int(answer.get("num_bytes", 0))
        if not self.results.is_wide:
            self.programs.phases.moved_bytes = self._num_bytes
        returned = returned_inputs(captured.program)
        return self.memory.left(number, returned=returned)

    @contextmanager
    def _doubting(self, program: Program) -> Generator[None]:
        """Within, a bug of the evaluator is the candidate's fault if Triton itself refuses the text
        of a kernel: a capture child may send what no compiler wrote."""
        try:
            yield
        except trial.Decided as decided:
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
            except trial.Decided as decided:
                if decided.finding.reason != Reason.OUT_OF_RESOURCES:
                    raise
                tried.by_winner[turn] = base, 0
            self._capture_s += time.monotonic() - began
        return tried.by_winner[turn]

    @contextmanager
    def _allowing(self, share: float) -> Generator[None]:
        """Gives all calls within together this share of the time for checked calls, and those
        after them what was left before."""
        before, self._left_s = self._left_s, share * self.programs.table.correct_timeout_s
        try:
            yield
        finally:
            self._left_s = before

    def close(self) -> None:
        if self._run is None or self._kept is None:
            return
        with self.programs.phases.timed("end"):
            is_small = self.memory.content.memory_bytes <= MAX_KEPT_BYTES
            if self._is_plain and is_small and not self._run.is_spent:
                self.evaluators.give_back(self._kept)
            else:
                self._run.end()

    def _ask(self, program: Program, data: bytes, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a call. Raises Decided for memory that it accessed wrongly, too."""
        answer = self._answered(program, data, {**body, "is_wide": self.memory.is_wide})
        for fault in answer.get("faults", ()):
            detail = self.programs.at_line(fault["line"], fault["message"])
            raise self.programs.decided(Status.WRONG, FAULTS[fault["kind"]], detail)
        return answer

    def _answered(self, program: Program, data: bytes, body: dict[str, Any]) -> dict[str, Any]:
        if self._left_s is None:
            self._left_s = self.programs.table.correct_timeout_s
        if data != self._loaded:
            self._is_plain = self._is_plain and is_plain(program)
        if self._run is None:
            self._start(self.evaluators.take)
        elif self._run.is_ended:  # float64 was too much for it
            self._start(self.evaluators.fresh)
        try:
            return self._sent(data, body)
        except (trial.Decided, Narrowed) as ended:
            assert self._run is not None
            assert self._kept is not None
            is_late = isinstance(ended, trial.Decided) and ended.finding.status is Status.TIMEOUT
            if not self._run.is_spent or is_late or not self._kept.num_served:
                raise
            self._run.end()
        self._start(self.evaluators.fresh)
        self.memory.restore(body["set"])
        return self._sent(data, body)

    def _sent(self, data: bytes, body: dict[str, Any]) -> dict[str, Any]:
        assert self._run is not None
        assert self._left_s is not None
        self._run.is_wide = body["is_wide"]
        left_s, before_s = max(0.05, self._left_s), self._run.spent_s
        with ExitStack() as held:
            kind, fds = Kind.CALL, list[int]()
            if not self._loaded:
                request = {**self.memory.content.request, "has_tf32": self.has_tf32}
                kind, fds, body = Kind.CANDIDATE, [self.memory_fd], {**request, **body}
            if data != self._loaded:
                program_fd, memory = held.enter_context(shm.shared_memory(len(data)))
                memory[:] = data
                fds.append(program_fd)
                self._loaded = data
            limit_s = self.programs.table.correct_timeout_s
            answer = self._run.ask(
                kind, body, phase="correct", left_s=left_s, limit_s=limit_s, fds=tuple(fds)
            )
        self._left_s -= self._run.spent_s - before_s
        return answer.body

    def _start(self, take: Callable[[], Kept]) -> None:
        with self.programs.phases.timed("sandbox"):
            self._kept = take()
        self._loaded = b""
        self._run = EvaluatorRunner(
            code=self.programs.code,
            spawner=self.evaluators.spawner,
            child=self._kept.child,
            table=self.programs.table,
        )


H100 = 90
MAX_SAID = 5
"""Decisions that a right verdict names."""


def assumed_target(name: str) -> dict[str, Any]:
    """The GPU `cuda:90` or `hip:gfx942` as captures and compilations take it, with the facts of the
    best known card of its architecture. An H100's are the defaults of a capture."""
    backend, _, code = name.partition(":")
    arch = int(code) if backend == "cuda" else code
    shared = {"shared_memory_per_block_optin": SHARED_BYTES.get(name)}
    properties: dict[str, Any] = {"name": name, **shared}
    found = next(((short, one) for short, one in CARDS.items() if one.arch == arch), None)
    if found is not None:
        short, card = found
        properties |= {
            "name": short if backend == "cuda" else f"AMD Instinct {short}",
            "multi_processor_count": card.num_sms,
            "total_memory": card.memory_gb << 30,
            "L2_cache_size": card.l2_mb << 20,
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
    table: JudgeTable, *, spawner: Spawner, stamp: trial.Stamp, cache: Cache | None = None
) -> CpuTrials:
    """The judge of a machine without GPUs. `cache`: compiled kernels; by default in memory."""
    draws = partial(
        HostReferences,
        spawner,
        timeout_s=reference_timeout_s(table),
        draw_timeout_s=draw_timeout_s(table),
        max_bytes=table.memory_bytes,
    )
    captures = Captures(
        spawner,
        table=table,
        target=assumed_target(table.target),
        kept=KeptChildren(spawner, role=PLAIN_ROLE),
    )
    return CpuTrials(
        table=table,
        spawner=spawner,
        references=draws(num_sets=table.num_inputs),
        given=draws(num_sets=NUM_TRIALS, is_varied=False),
        shown=draws(
            num_sets=1,
            is_varied=False,
            max_problems=0,
            max_bytes=min(table.memory_bytes, MAX_SHOWN_BYTES),
        ),
        sketches=Sketches(Oracles(spawner, num_kept=1), max_bytes=table.memory_bytes),
        captures=captures,
        facts=Facts(captures),
        compiler=Compiler(spawner, cache=cache or Cache(None)),
        evaluators=KeptChildren(spawner, role="evaluator"),
        stamp=stamp,
    )


@dataclass(kw_only=True, eq=False)
class CpuTrials(Trials):
    """Judges without a GPU."""

    evaluators: KeptChildren

    def close(self) -> None:
        self.evaluators.close()
        super().close()

    def _judged(
        self, candidate: trial.Candidate, kept: HostDraw, programs: Callable[[], Programs]
    ) -> trial.Finding:
        found = programs()
        finding = self._evaluated(candidate, kept, found)
        is_own = candidate.protocol is None and not candidate.options.outputs
        if not (found.open and is_own and finding.status is Status.CORRECT):
            return finding
        return self._aimed(candidate, found, finding)

    def _aimed(
        self, candidate: trial.Candidate, programs: Programs, finding: trial.Finding
    ) -> trial.Finding:
        """The finding of a right candidate some of whose decisions took one side alone, after
        further sets that are aimed at the other. Raises Decided."""
        names = {name for one in programs.open for name in one.memory}
        zeroed = [name.removeprefix(PARAMETER) for name in names if name.startswith(PARAMETER)]
        aims = {
            "constants": sorted({number for one in programs.open for number in one.constants}),
            "inputs": None if ANY in names else sorted(map(int, filter(str.isdecimal, names))),
            "zeroed": sorted(zeroed),
        }
        left = {one[:2] for one in programs.open}
        try:
            with candidate.phases.timed("reference"):
                kept = self.references.hold(candidate.problem, aims=aims)
            try:
                kept.draw.is_aimed = True
                aimed = programs.on(kept.draw, problem=programs.problem)
                self._evaluated(candidate, kept, aimed)
                left &= {one[:2] for one in aimed.open}
            finally:
                self.references.let_go(kept)
        except ReferenceFailed:
            pass  # as it is constructed a Model may be ill-conditioned
        except trial.Decided as decided:
            if decided.finding.status in (Status.WRONG, Status.RUNTIME_ERROR):
                raise  # else it is late, or the machine is
        said = [f"line {line}: {text}" for line, text in sorted(left)]
        if len(said) > MAX_SAID:
            said[MAX_SAID:] = [f"and {len(said) - MAX_SAID} more decisions took one side alone"]
        return replace(finding, detail="\n".join([*filter(None, [finding.detail]), *said]))

    def _evaluated(
        self, candidate: trial.Candidate, kept: HostDraw, found: Programs
    ) -> trial.Finding:
        """The finding on one draw, and what is open behind it. Raises Decided."""
        draw = kept.draw
        has_tf32 = not (self.table.tf32 and draw.has_products)  # products lose what it lacks
        with shm.shared_memory(kept.memory_bytes) as (fd, memory):
            device = CpuDevice(
                programs=found,
                results=Results(content=kept, protocol=candidate.protocol),
                evaluators=self.evaluators,
                memory=CpuMemory(kept, memory),
                memory_fd=fd,
                has_tf32=has_tf32,
            )
            try:
                return Judgement(programs=found, device=device).finding()
            finally:
                found.open = device.open
                device.close()
