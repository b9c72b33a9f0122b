# pyright: strict
"""One program in an executor: its calls, its timed calls, and what they left.

Promise: what is compared is what lies in the judge's memory after a call, for every call, timed
ones included; the executor answers with times and with what its driver saw. The caller decides who
else may use the card: `call` runs beside others, `tune` and `nodes` alone; `timed` takes its turns.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from forge.evalpool.judge.channel.words import at_line
from forge.evalpool.judge.execute.executors import (
    ExecutorGone,
    ProgramFault,
    ProgramRefused,
)
from forge.evalpool.judge.timing.baseline import Time
from forge.evalpool.judge.trial.results import Left
from forge.evalpool.judge.trial.trial import OUT_OF_MEMORY, Decided
from forge.records.reason import Reason, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from forge.evalpool.judge.compiler.binary import Binary, Failure
    from forge.evalpool.judge.execute.call import Call, ChoiceReport, NodeTime, TimedCall
    from forge.evalpool.judge.execute.executors import Executor
    from forge.evalpool.judge.numbers.protocols import Tf32
    from forge.evalpool.judge.program.format import Program
    from forge.evalpool.judge.trial.gpu.program_memory import Mixture, ProgramMemory
    from forge.evalpool.judge.trial.gpu.turns import Turn
    from forge.evalpool.judge.trial.trial import Report

T = TypeVar("T")
Choices: TypeAlias = tuple[tuple[int, int], ...]
"""Pairs of a choice's step and one of its alternatives."""

PLACEMENTS = ("end", "start")
"""Checked calls in turn: an access behind a buffer faults in one, one before it in the other."""
SLACKS = (0xFF, 0x7E, 0x00)
"""Bytes beside the buffers in turn: NaN, large numbers, zeros. A kernel that reads there is wrong
with one of them."""
FEW_CALLS, MANY_CALLS = (10, 12), (20, 24)
"""Timed calls, drawn from these: a program must not know which is the last. Many where the times
of few are not steady."""
TIMED_S = 0.4
"""Time after which few calls are enough, comparisons included."""
RANDOM_SHARE = 0.75
"""Share of the timed calls in which memory that nothing has written has random bytes."""
FAULT_DETAIL = "a kernel loads or stores outside its tensors: check offsets and masks"
OUT_OF_BOUNDS_DETAIL = "a kernel stores beside a tensor: check offsets and masks"


@dataclass(slots=True, kw_only=True)
class ProgramRun:
    """One program in one executor."""

    executor: Executor
    program: Program
    data: bytes
    """The program's bytes."""
    binaries: Sequence[Binary | Failure]
    memory: ProgramMemory
    code: str
    """The candidate's source, for messages."""
    report: Report
    correct_timeout_s: float
    timing_timeout_s: float
    deadline: float
    """For all checked calls together, monotonic."""
    tf32: Tf32
    synchronize: Callable[[], None]
    """Waits for the judge's own work on the card."""
    draw: secrets.SystemRandom = field(default_factory=secrets.SystemRandom)
    num_calls: int = 0
    """Checked calls so far, but those on what the one before left."""
    _last: Call | None = None
    """The last checked call."""

    def load(self) -> None:
        """Raises Decided, as all below."""
        self._ask(
            "load",
            self.correct_timeout_s,
            lambda deadline: self.executor.load(
                self.program,
                self.data,
                self.binaries,
                deadline=deadline,
                block_fd=self.memory.block.fd,
                block_bytes=self.memory.block.num_bytes,
                tf32=self.tf32.request,
            ),
        )

    def tune(self) -> list[ChoiceReport]:
        """Times every open choice. Alone on the card."""
        call = self._loaded_call(0, number=0)
        return self._ask(
            "tune", self.timing_timeout_s, lambda end: self.executor.tune(call, deadline=end)
        )

    def calls(
        self,
        numbers: Sequence[int],
        *,
        kept: Collection[int] = (),
        choices: Sequence[Choices] = (),
    ) -> list[Left]:
        """Checked calls, one after the other, each on an input set in a place of its own.

        Args:
            numbers: input sets, at most as many as there are places.
            kept: positions of calls on what the one before left.
            choices: for each call, alternatives in place of the winners.
        """
        calls = [
            self._checked(place, number, is_kept=place in kept)
            for place, number in enumerate(numbers)
        ]
        if choices:
            pairs = zip(calls, choices, strict=True)
            calls = [replace(call, choices=chosen) for call, chosen in pairs]
        return self._ran(numbers, calls)

    def remembered(self, first: int, second: int, *, mixture: Mixture) -> tuple[Left, Left]:
        """Two calls on the same inputs, which mix two sets: one on what a call on set `first` left,
        and one on memory that is poisoned. Takes three places."""
        calls = [self._checked(place, first, is_kept=place == 1) for place in range(3)]
        seed = self._seed()
        for place in (1, 2):
            self.memory.mix(place, second, mixture=mixture, seed=seed)
        _, on_left, alone = self._ran([first] * 3, calls)
        return on_left, alone

    def lasting(self, first: int, second: int) -> list[Left]:
        """Calls on two sets by turns, as many as there are places, each on what the one before
        left, also in the statistics of a norm that the reference writes to. What they leave in
        parameters is not theirs alone."""
        numbers = [second if place % 2 else first for place in range(self.memory.num_places)]
        calls = [self._checked(*one, is_kept=one[0] > 0) for one in enumerate(numbers)]
        for place in range(1, len(calls)):
            fills = self.memory.call(place, seed=0, is_lasting=True).fills
            calls[place] = replace(calls[place], fills=fills)
        return [replace(one, parameters=None) for one in self._ran(numbers, calls)]

    def _ran(self, numbers: Sequence[int], calls: Sequence[Call]) -> list[Left]:
        self.synchronize()
        reports = self._ask(
            "correct",
            self.correct_timeout_s,
            lambda end: self.executor.run(calls, deadline=end),
            deadline=self.deadline,
        )
        if any(report.written for report in reports):
            raise self._decided(Status.RUNTIME_ERROR, Reason.OUT_OF_BOUNDS, OUT_OF_BOUNDS_DETAIL)
        return [
            self._left(place, number, is_kept=not report.changed)
            for place, (number, report) in enumerate(zip(numbers, reports, strict=True))
        ]

    def _left(self, place: int, number: int, *, is_kept: bool) -> Left:
        parameters = self.memory.parameters(place)
        return Left(number, self.memory.outputs(place), is_kept, parameters=parameters)

    def _checked(self, place: int, number: int, *, is_kept: bool) -> Call:
        """A checked call on a set whose contents are on their way to a place."""
        is_first = self._last is None
        is_kept = is_kept and not is_first
        if is_kept and self._last is not None:
            slack, placement = self._last.slack, self._last.placement
        else:
            slack = SLACKS[self.num_calls % len(SLACKS)]
            placement = PLACEMENTS[self.num_calls % len(PLACEMENTS)]
            self.num_calls += 1
        call = self._filled(place, number, poison=0 if is_first else self._seed())
        call = replace(call, slack=slack, placement=placement, is_kept=is_kept)
        self._last = call
        return call

    def timed(
        self,
        numbers: Sequence[int],
        check: Callable[[Sequence[Left]], None],
        *,
        unseen: Sequence[int] = (),
        shared: Turn,
        alone: Turn,
        finish: Callable[[], None] = lambda: None,
    ) -> Time:
        """Times calls on input sets drawn from `numbers`, at secret places.

        Args:
            unseen: sets of which each is in a call, since no checked call had them.
            check: called after calls with what they left; may raise Decided.
            shared: holds the card beside others, while inputs are copied and outputs compared.
            alone: holds the card alone, while calls are timed, and inputs are copied that are
                small: each turn is waited for with an executor in hand.
            finish: called in the last turn beside others.
        """
        spent_s = checked_s = 0.0
        times_us: list[float] = []
        for least, most in (FEW_CALLS, MANY_CALLS):
            num = self.draw.randint(least, most) - len(times_us)
            drawn = [] if times_us else list(unseen)
            drawn = [*drawn, *(self.draw.choice(numbers) for _ in range(num))][:num]
            self.draw.shuffle(drawn)
            batches = range(0, num, len(self._timed_places))
            for start in batches:
                batch = drawn[start : start + len(self._timed_places)]
                filled = None
                if not self.memory.is_small:
                    with shared():
                        filled = self._filled_batch(batch, warm_up=numbers[0])
                        self.synchronize()
                with alone():
                    if filled is None:
                        filled = self._filled_batch(batch, warm_up=numbers[0])
                        self.synchronize()
                    began = time.monotonic()
                    left_s = self.timing_timeout_s - spent_s
                    found = self._timed_batch(*filled, deadline=began + left_s)
                    spent_s += time.monotonic() - began
                with shared():
                    began = time.monotonic()
                    check(self._left_by(batch, found))
                    checked_s += time.monotonic() - began
                    times_us += [call.gpu_us for call in found]
                    measured = Time.of(tuple(times_us))
                    is_last = (least, most) == MANY_CALLS or measured.is_steady()
                    is_last = is_last or spent_s + checked_s > TIMED_S
                    if start == batches[-1] and is_last:
                        finish()
                        return measured
        raise AssertionError("the last batch of many calls is the last one")

    def nodes(self, number: int) -> list[NodeTime]:
        """GPU time of each node on an input set. Alone on the card."""
        call = self._loaded_call(0, number=number)
        return self._ask(
            "time", self.timing_timeout_s, lambda end: self.executor.nodes(call, deadline=end)
        )

    def close(self) -> None:
        """Leaves nothing of the program on the card."""
        try:
            if self.executor.is_alive:
                self.executor.unload(deadline=time.monotonic() + self.correct_timeout_s)
        except (ProgramFault, ProgramRefused, ExecutorGone):
            self.executor.end()
        finally:
            self.memory.close()

    @property
    def _timed_places(self) -> range:
        """Places of timed calls: place 0 is that of the warm-ups, unless it is the only one."""
        num = self.memory.num_places
        return range(1 if num > 1 else 0, num)

    def _filled_batch(self, numbers: Sequence[int], *, warm_up: int) -> tuple[list[Call], Call]:
        """A call on each input set, and the call before them, on the set `warm_up`."""
        places = self._timed_places[: len(numbers)]
        calls = [self._filled(*one) for one in zip(places, numbers, strict=True)]
        return calls, self._filled(0, warm_up) if places.start else calls[0]

    def _timed_batch(
        self, calls: Sequence[Call], before: Call, *, deadline: float
    ) -> list[TimedCall]:
        return self._ask(
            "time",
            self.timing_timeout_s,
            lambda end: self.executor.time(calls, warm_up=before, deadline=end),
            deadline=deadline,
        )

    def _left_by(self, numbers: Sequence[int], found: Sequence[TimedCall]) -> list[Left]:
        return [
            self._left(place, number, is_kept=not call.changed)
            for place, number, call in zip(
                self._timed_places[: len(numbers)], numbers, found, strict=True
            )
        ]

    def _loaded_call(self, place: int, *, number: int) -> Call:
        call = self._filled(place, number)
        self.synchronize()
        return call

    def _filled(self, place: int, number: int, *, poison: int | None = None) -> Call:
        """The call on an input set in a place, whose contents are on their way there. Without a
        given poison it has one of the two kinds that checked calls have."""
        self.memory.load(place, number)
        if poison is None:
            poison = self._seed() if self.draw.random() < RANDOM_SHARE else 0
        return replace(self.memory.call(place, seed=self._seed()), poison=poison)

    def _seed(self) -> int:
        return 1 + self.draw.randrange(1 << 60)

    def _ask(
        self,
        phase: str,
        limit_s: float,
        ask: Callable[[float], T],
        *,
        deadline: float | None = None,
    ) -> T:
        try:
            return ask(time.monotonic() + limit_s if deadline is None else deadline)
        except ProgramRefused as error:
            reason = OUT_OF_MEMORY if error.reason == "out_of_memory" else error.reason
            status, reason = REFUSALS.get(reason, (Status.RUNTIME_ERROR, Reason.EXCEPTION))
            raise self._decided(
                status, reason, at_line(self.code, error.line, str(error))
            ) from None
        except ProgramFault as error:
            line = error.step.line if error.step else 0
            where = f" in {error.step.what}" if error.step else ""
            if error.reason == "gpu_fault":
                detail = at_line(self.code, line, f"{error}{where}\n{FAULT_DETAIL}")
                raise self._decided(Status.RUNTIME_ERROR, Reason.GPU_FAULT, detail) from None
            detail = f"no answer within {limit_s:.3g} s{where}: does a loop end?"
            detail = at_line(self.code, line, detail)
            raise self._decided(Status.TIMEOUT, f"deadline:{phase}", detail) from None
        except ExecutorGone as error:
            raise self._decided(Status.INFRA_ERROR, Reason.GPU_UNAVAILABLE, str(error)) from None

    def _decided(self, status: Status, reason: str, detail: str) -> Decided:
        return Decided(self.report(status, reason, detail))


REFUSALS = {
    OUT_OF_MEMORY: (Status.RUNTIME_ERROR, Reason.OUT_OF_MEMORY),
    "out_of_resources": (Status.RUNTIME_ERROR, Reason.OUT_OF_RESOURCES),
    "operation": (Status.RUNTIME_ERROR, Reason.EXCEPTION),
    "result": (Status.REJECTED, Reason.UNSUPPORTED),
    "launch": (Status.REJECTED, Reason.UNSUPPORTED),
    "value": (Status.REJECTED, Reason.UNSUPPORTED),
    "driver": (Status.RUNTIME_ERROR, Reason.EXCEPTION),
}
"""Verdicts by the executor's reason to refuse a program."""
