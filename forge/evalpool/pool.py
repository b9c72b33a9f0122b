# pyright: strict
"""The judges of a run behind one call.

    judge(problem, code) ─▶ cached? ─▶ room ─▶ judge with room ─HTTP─▶ verdict
                                         ▲       │ infra fault: once more, on another judge
                                         └───────┘
    one keeper a seat (`keeper.py`): opens its judge, replaces it

Promises: a dead judge is always restarted; a kernel is never blamed for a judge; at most
`MAX_QUEUED` requests are queued and further callers wait; identical candidates are judged once for
correctness while the cache holds the verdict; a time is never shared between requests; a candidate
whose process got a SIGKILL that is not the judge's is judged again, and has caused it if that
happens twice (`runtime_error: killed`): none gains by ending itself.

A caller that is cancelled while it waits leaves the queue. Of a served pool (`finishes_started`),
what a judge has begun goes on and its verdict is cached, since it cannot be stopped and clients
that hang up ask again; a run's own pool stops at once.

The shapes of a problem are those of module constants, and the sets of `get_input_sets()`, which a
judge's sandboxed child lists once for each problem. A candidate is judged on each, up to the first
on which it is not correct. All times, rates and speed-ups of the fold are geometric means, so
baseline_us / candidate_us is the speed-up; the mean of the lower ends is at most the lower end of
the mean's own interval, the cautious choice for rewards.
"""

from __future__ import annotations

import hashlib
import logging
import os
import statistics
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from forge.errors import MachineError, Stalled
from forge.evalpool.capacity import (
    BUSY_FACTOR,
    GPU_CAPACITY,
    MAX_EXAMINED,
    draw_timeout_s,
    executor_timeout_s,
    seat_cores,
)
from forge.evalpool.keeper import Link, OpenLink, judge_spec, keep, open_child_link, open_url_link
from forge.evalpool.seating import JudgeKind, NoJudge, Seat, Seating, State
from forge.evalpool.wire import JudgeRequest, NoAnswer, ask_examination, ask_harvest, ask_verdict
from forge.process.sockets import open_socket_dir
from forge.records.examination import Examination, Flag
from forge.records.problem import (
    MAX_SHAPES,
    ReferenceModule,
    Shape,
    has_input_sets,
    select_input_set,
)
from forge.records.reason import Reason, Status
from forge.records.verdict import JudgeOptions, OtherVerdict, ShapeVerdict, Timing, Verdict

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    import httpx

    from forge.config.schema import JudgeTable
    from forge.process.child import ProcessObserver
    from forge.process.devices import Gpu


OpenElsewhere = Callable[[str], AbstractAsyncContextManager[Link]]
"""Opens a judge on another machine, by name."""
MAX_QUEUED = 256
"""Maximum number of requests that wait for a judge; further callers wait to be queued."""
CPU_CAPACITY = 1
"""Concurrent candidates of a judge on the CPU: each keeps its core busy."""
START_TIMEOUT_S = 180.0
T = TypeVar("T")
logger = logging.getLogger(__name__)

MAX_DETAIL = 500
SLACK_S = 60.0
"""Added to the deadlines of all phases, for forks, frames and the wait for the card."""
MAX_REMEMBERED = 2048
"""Cached verdicts: 2 MB, and 10 MB with programs. A repeated candidate is nearly always a recent
one: a cache of 64 found all repeats of 755 candidates of a run."""
TIMING_PHASE = "time"
"""A candidate that fails in this phase was found correct, and may pass the next measurement."""


class VerdictCache:
    """Verdicts on correctness, by candidate and kind of judge: a small model repeats itself. Has no
    time, and no verdict that a busy or broken machine may have caused."""

    def __init__(self) -> None:
        self._verdicts: OrderedDict[tuple[bytes, JudgeKind], Verdict] = OrderedDict()

    def __len__(self) -> int:
        return len(self._verdicts)

    def find(self, key: bytes, *, kinds: Iterable[JudgeKind]) -> Verdict | None:
        """The cached verdict of the first of these kinds; None without one."""
        for kind in kinds:
            if (key, kind) in self._verdicts:
                self._verdicts.move_to_end((key, kind))
                return self._verdicts[key, kind]
        return None

    def remember(self, key: bytes, verdict: Verdict) -> None:
        """Caches a verdict, unless it is an infra error, a timeout, or was found while timing."""
        if not verdict.status.is_scored or verdict.status is Status.TIMEOUT:
            return
        if TIMING_PHASE in verdict.phase_s and not verdict.is_correct:
            return
        kind = JudgeKind(
            device=verdict.device, isolation=verdict.isolation, harness=verdict.harness
        )
        self._verdicts[key, kind] = replace(verdict, timing=None, profile=None, phase_s={})
        while len(self._verdicts) > MAX_REMEMBERED:
            self._verdicts.popitem(last=False)


def candidate_key(problem: ReferenceModule, code: str, *, has_program: bool = False) -> bytes:
    """Hash of all that decides a verdict, which has the candidate's program in it if
    `has_program`; names and splits of problems do not."""
    digest = hashlib.sha256(b"program" if has_program else b"")
    for part in (problem.source, problem.entry_point, problem.precision, code):
        digest.update(part.encode(errors="surrogatepass"))
        digest.update(b"\0")
    return digest.digest()


@dataclass(slots=True)
class _Running:
    """A judgement in progress, which identical requests wait for."""

    done: anyio.Event = field(default_factory=anyio.Event)
    found: Verdict | Stalled | None = None
    """The verdict, or why no judge was available."""

    def shared(self) -> Verdict | None:
        """The verdict, if waiting requests take it although it is not cached: it would come out
        the same, at the same cost. Raises Stalled."""
        found = self.found
        if isinstance(found, Stalled):
            raise Stalled(str(found))
        is_shared = found and (found.status is Status.TIMEOUT or found.reason == Reason.NO_JUDGE)
        return found if is_shared else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """Counters for displays and idle shares."""

    num_judged: int
    num_cached: int
    num_infra: int
    """Infra faults, retried ones included."""
    num_quarantined: int
    """Judges that failed twice and take no requests."""
    queue_length: int
    busy_s: dict[str, float]
    """Seconds with at least one candidate in progress, by judge."""


class Pool:
    """Judges behind one call. Opened by `open_pool`."""

    def __init__(
        self, table: JudgeTable, seating: Seating, *, finishes_started: bool = False
    ) -> None:
        """`finishes_started`: a judgement that has begun goes on when its caller is cancelled."""
        self._table = table
        self.seating = seating
        self._finishes_started = finishes_started
        self._cache = VerdictCache()
        self._running: dict[tuple[bytes, JudgeOptions], _Running] = {}
        capacity = sum(seat.capacity for seat in seating.seats)
        self._room = anyio.Semaphore(capacity + MAX_QUEUED)  # those that run are not queued
        self._shapes = ShapeLister(partial(self._examined, lists_sets=True))
        self._num_judged = self._num_cached = self._num_infra = 0

    async def judge(
        self,
        problem: ReferenceModule,
        code: str,
        *,
        timing: bool = True,
        profile: bool = False,
        program: bool = False,
        outputs: bool = False,
    ) -> Verdict:
        """The verdict on a candidate, which has to be correct at every shape of the problem; the
        options are those of `JudgeOptions`. Raises Stalled if no judge was up for a while."""
        options = JudgeOptions(
            timing=timing and self._table.timing, profile=profile, program=program, outputs=outputs
        )
        try:
            shapes = await self._shapes.list_shapes(problem)
        except ShapesUnknown as error:
            return Verdict(
                status=Status.UNJUDGEABLE,
                reason=Reason.REFERENCE_FAILED,
                detail=str(error)[:MAX_DETAIL],
            )
        except MachineError as error:
            return infra_error(Reason.NO_JUDGE, str(error))
        if not shapes:
            return await self._judge_shape(problem, code, options)
        verdicts: list[Verdict] = []
        for shape in shapes:
            sized = replace(problem, source=shape.source, shapes=())
            verdicts.append(await self._judge_shape(sized, code, options))
            if not verdicts[-1].is_correct:
                break
        return fold_verdicts([shape.name for shape in shapes], verdicts)

    async def _judge_shape(
        self, problem: ReferenceModule, code: str, options: JudgeOptions
    ) -> Verdict:
        """The verdict on a candidate at one shape. Raises Stalled."""
        key = candidate_key(problem, code, has_program=options.program)
        request = JudgeRequest(problem, code, options)
        if options.outputs:  # no verdict
            return await self._judge_in_turn(request)
        while (running := self._running.get((key, options))) is not None:
            await running.done.wait()
            if (shared := running.shared()) is not None:
                self._num_cached += 1
                return shared
        if (cached := self._cache.find(key, kinds=self.seating.kinds)) is not None:
            # Cards and clocks drift, so each request measures its times; a profile is not kept.
            is_timed = cached.is_correct and cached.device != "cpu" and options.timing
            if is_timed or options.profile:
                return await self._judge_in_turn(request)
            self._num_cached += 1
            return cached
        running = self._running[key, options] = _Running()
        try:
            running.found = verdict = await self._judge_in_turn(request)
            self._cache.remember(key, verdict)
        except Stalled as error:
            running.found = error
            raise
        finally:
            del self._running[key, options]
            running.done.set()
        return verdict

    @property
    def num_judges(self) -> int:
        """Number of judges, whatever their state: each examines one problem alone on its card."""
        return len(self.seating.seats)

    @property
    def is_timed(self) -> bool:
        return self._table.timing and any(seat.is_timed for seat in self.seating.seats)

    @property
    def num_examined(self) -> int:
        """Number of problems to examine at once; several share a card."""
        return sum(min(seat.capacity, MAX_EXAMINED) for seat in self.seating.seats)

    async def examine(self, problem: ReferenceModule, *, lists_sets: bool = False) -> Examination:
        """Examines whether a problem can be judged and trained on: each shape, up to the first at
        which it cannot be judged; with `lists_sets` has the names of its `get_input_sets()` alone.
        One that two judges in a row give no answer to is flagged. Raises MachineError if no judge
        is available."""
        if lists_sets:
            return await self._examined(problem, lists_sets=True)
        try:
            shapes = await self._shapes.list_shapes(problem)
        except ShapesUnknown as error:
            return Examination(problem_id=problem.problem_id, flags=error.flags)
        if not shapes:
            return await self._examined(problem)
        found: list[Examination] = []
        for shape in shapes:
            found.append(await self._examined(replace(problem, source=shape.source, shapes=())))
            if not found[-1].is_usable:
                break
        return fold_examinations(problem.problem_id, [shape.name for shape in shapes], found)

    def stats(self) -> PoolStats:
        seats = self.seating.seats
        return PoolStats(
            num_judged=self._num_judged,
            num_cached=self._num_cached,
            num_infra=self._num_infra,
            num_quarantined=sum(seat.state is State.QUARANTINED for seat in seats),
            queue_length=self.seating.num_waiting,
            busy_s={seat.name: seat.busy.busy_s for seat in seats},
        )

    async def _judge_in_turn(self, request: JudgeRequest) -> Verdict:
        """The verdict of a judge. After an infra fault, or a reference that failed and may not have
        on a machine that is less busy, another judge is asked where there is one."""
        async with self._room:
            verdict, seat = await self._judge_once(request)
            is_final = verdict.status.is_scored or verdict.reason == Reason.PROBLEM_TOO_LARGE
            if seat is not None and not is_final:
                first = verdict
                logger.warning("%s: %s: %s; judged again", seat.name, first.reason, first.detail)
                verdict, _ = await self._judge_once(request, avoid=seat)
                if first.reason == verdict.reason == Reason.RUNNER_KILLED:
                    verdict = replace(verdict, status=Status.RUNTIME_ERROR, reason=Reason.KILLED)
        self._num_judged += 1
        return verdict

    async def _judge_once(
        self, request: JudgeRequest, *, avoid: Seat | None = None
    ) -> tuple[Verdict, Seat | None]:
        """The verdict and its seat; no seat if all judges are quarantined."""
        try:
            seat = await self.seating.take(avoid=avoid, problem=request.problem.source)
        except NoJudge as error:
            self._num_infra += 1
            return infra_error(Reason.NO_JUDGE, str(error)), None
        num_faults = seat.num_faults
        try:
            with seat.busy.running():
                timeout_s = self._timeout_s(seat)
                asked = ask_verdict(_client(seat), request, timeout_s=timeout_s)
                verdict = await self._to_its_end(asked)
            self.seating.record_verdict(seat, verdict, num_faults=num_faults)
        except NoAnswer as error:
            reason = Reason.BAD_REQUEST if error.is_refusal else Reason.JUDGE_LOST
            verdict = infra_error(reason, self._note_silence(seat, error))
            self.seating.record_verdict(seat, verdict, num_faults=num_faults)
        finally:
            self.seating.give_back(seat)
        self._num_infra += verdict.status is Status.INFRA_ERROR
        return verdict, seat

    async def _examined(self, problem: ReferenceModule, *, lists_sets: bool = False) -> Examination:
        def ask(seat: Seat) -> Awaitable[Examination]:
            timeout_s = self._timeout_s(seat)
            return ask_examination(
                _client(seat), problem, lists_sets=lists_sets, timeout_s=timeout_s
            )

        found = await self._asked_twice(ask, what=f"{problem.problem_id}: ")
        if not isinstance(found, str):
            return found
        message = f"it could not be examined: {found}"
        return Examination(problem_id=problem.problem_id, flags={Flag.CRASH: message[:MAX_DETAIL]})

    async def harvest(self, work: Mapping[str, Any], *, limit_s: float) -> dict[str, Any]:
        """The work of a harvest on one problem, as in `judge/harvest/asking.py`; that two judges in
        a row give no result of is a failure. Raises MachineError if no judge is up."""
        found = await self._asked_twice(
            lambda seat: ask_harvest(_client(seat), work, limit_s=limit_s)
        )
        return {"failed": "no judge answered", "detail": found} if isinstance(found, str) else found

    async def _asked_twice(self, ask: Callable[[Seat], Awaitable[T]], *, what: str = "") -> T | str:
        """The answer of a judge; where two in a row gave none, why the second did not. Raises
        MachineError, which begins with `what`."""
        seat, lost = None, ""
        for _ in range(2):
            try:
                seat = await self.seating.take(avoid=seat)
            except NoJudge as error:
                raise MachineError(f"{what}{error}") from error
            try:
                return await self._to_its_end(ask(seat))
            except NoAnswer as error:
                lost = self._note_silence(seat, error)
            finally:
                self.seating.give_back(seat)
        return lost

    async def _to_its_end(self, answer: Awaitable[T]) -> T:
        """The answer of a judge; with `finishes_started`, a cancelled caller still waits for it."""
        with anyio.CancelScope(shield=self._finishes_started):
            return await answer
        raise AssertionError("this scope is never cancelled")

    def _timeout_s(self, seat: Seat) -> float:
        return request_timeout_s(self._table, is_timed=seat.is_timed)

    def _note_silence(self, seat: Seat, error: NoAnswer) -> str:
        message = f"{seat.name} did not answer: {error}"
        if error.is_lost:
            self.seating.judge_lost(seat, why=message)
        return message


def infra_error(reason: Reason, detail: str) -> Verdict:
    return Verdict(status=Status.INFRA_ERROR, reason=reason, detail=detail[:MAX_DETAIL])


def _client(seat: Seat) -> httpx.AsyncClient:
    if seat.client is None:
        raise NoAnswer("it ended while this request waited")
    return seat.client


def request_timeout_s(table: JudgeTable, *, is_timed: bool) -> float:
    """Deadline of one request: the reference, all phases of the candidate, and the checks and
    timings of other requests that come first (on a card, or behind a URL, where they are
    unknown)."""
    num_protocols = 1 + len(table.also)
    candidate_s = BUSY_FACTOR * (table.compile_timeout_s + table.correct_timeout_s)
    checks_s = num_protocols * (draw_timeout_s(table) + candidate_s)
    return checks_s + (executor_timeout_s(table) if is_timed else 0.0) + SLACK_S


@asynccontextmanager
async def open_pool(
    table: JudgeTable,
    *,
    socket_dir: Path,
    log_dir: Path,
    observer: ProcessObserver | None = None,
    gpus: Sequence[Gpu] = (),
    elsewhere: Sequence[OpenElsewhere] = (),
    finishes_started: bool = False,
    harvests: str = "",
) -> AsyncGenerator[Pool]:
    """Opens one judge for each of `gpus`, else `table.workers` on the CPU, or those at `table.url`,
    or one for each of `elsewhere`, of which those that raise NoRoom may come later. For `harvests`
    (`problems` or `answers`) judges of this machine do the work of a harvest, too. Yields when all
    are ready; on exit ends every process that it started. Raises MachineError (no usable sandbox
    here, no answer from a URL, no room elsewhere), and ChildDied or Stalled of a judge that did not
    become ready."""
    opens = dict[Seat, OpenLink]()
    timeout_s = request_timeout_s(table, is_timed=True)
    for number, url in enumerate(table.url):
        seat = Seat(f"pool-{number}", is_remote=True)
        opens[seat] = partial(open_url_link, url, timeout_s=timeout_s)
    for number, open_link in enumerate(elsewhere):
        seat = Seat(f"judge-{number}")
        opens[seat] = partial(open_link, seat.name)
    is_here = not table.url and not elsewhere
    cards: Sequence[Gpu | None] = (gpus or [None] * table.workers) if is_here else []
    cores = sorted(os.sched_getaffinity(0))
    for number, gpu in enumerate(cards):
        timeout_s = request_timeout_s(table, is_timed=gpu is not None)
        own = seat_cores(cores, seat=number, num_seats=len(cards), offset=os.getpid())
        seat = Seat(f"judge-{number}", capacity=CPU_CAPACITY if gpu is None else GPU_CAPACITY)
        spec = judge_spec(
            seat.name, table=table, socket_dir=socket_dir, log_dir=log_dir,
            capacity=seat.capacity, gpu=gpu, cores=own, harvests=harvests,
        )  # fmt: skip
        opens[seat] = partial(open_child_link, spec, observer=observer, timeout_s=timeout_s)
    seating = Seating(opens)
    async with anyio.create_task_group() as keepers:
        with anyio.fail_after(START_TIMEOUT_S):
            async with anyio.create_task_group() as starting:
                for seat, open_link in opens.items():
                    starting.start_soon(keepers.start, keep, seating, seat, open_link)
        try:
            if all(seat.client is None for seat in seating.seats):
                raise MachineError(seating.seats[0].why)
            yield Pool(table, seating, finishes_started=finishes_started)
        finally:
            keepers.cancel_scope.cancel()


@asynccontextmanager
async def open_private_pool(
    table: JudgeTable, *, gpus: Sequence[Gpu] = (), harvests: str = ""
) -> AsyncGenerator[Pool]:
    """`open_pool` of a command: its sockets and logs are in a directory that ends with it."""
    with open_socket_dir() as folder:
        async with open_pool(
            table, socket_dir=folder, log_dir=folder, gpus=gpus, harvests=harvests
        ) as pool:
            yield pool


DOUBTED = frozenset({Flag.OUT_OF_MEMORY, Flag.SLOW})
"""Flags that a problem may get only because others were examined on the same card."""


async def examine_all(
    pool: Pool, problems: Sequence[ReferenceModule], *, done: Callable[[], None]
) -> list[Examination]:
    """Examines problems in a pool, several at a time, and calls `done` after each. Where problems
    share a card, those that may have lacked memory or time for it are examined again, each alone on
    a card. Returns one examination a problem, in their order."""
    found: dict[int, Examination] = {}

    async def examine(index: int, limiter: anyio.CapacityLimiter) -> None:
        async with limiter:
            is_first = index not in found
            found[index] = await pool.examine(problems[index])
        if is_first:
            done()

    async def examine_some(indices: Sequence[int], *, num_at_once: int) -> None:
        limiter = anyio.CapacityLimiter(num_at_once)
        async with anyio.create_task_group() as tasks:
            for index in indices:
                tasks.start_soon(examine, index, limiter)

    await examine_some(range(len(problems)), num_at_once=pool.num_examined)
    if pool.num_examined > pool.num_judges:
        doubted = [index for index, each in found.items() if not DOUBTED.isdisjoint(each.flags)]
        await examine_some(sorted(doubted), num_at_once=pool.num_judges)
    return [found[index] for index in range(len(problems))]


MAX_LISTED = 1024
PASSING = frozenset({Flag.CRASH, Flag.SLOW, Flag.OUT_OF_MEMORY})
"""Flags that a busy or broken machine may have caused: another listing may succeed."""


class ShapesUnknown(Exception):
    """The shapes of a problem cannot be listed, or are too many; one line, and its flags."""

    def __init__(self, message: str, *, flags: Mapping[Flag, str]) -> None:
        super().__init__(message)
        self.flags = dict(flags)


class ShapeLister:
    """Lists the shapes of problems and remembers them."""

    def __init__(self, ask: Callable[[ReferenceModule], Awaitable[Examination]]) -> None:
        """`ask` has a judge list the input sets of a problem."""
        self._ask = ask
        self._listed: OrderedDict[str, Examination] = OrderedDict()

    async def list_shapes(self, problem: ReferenceModule) -> tuple[Shape, ...]:
        """The shapes of a problem; empty if `problem.source` is all. Raises ShapesUnknown."""
        shapes: list[Shape] = []
        is_listed = False
        for shape in problem.shapes or (Shape(name="", source=problem.source),):
            if not has_input_sets(shape.source):
                shapes.append(shape)
                continue
            is_listed = True
            names = await self._names(replace(problem, source=shape.source, shapes=()))
            for number, name in enumerate(names):
                title = ": ".join(filter(None, (shape.name, name)))
                source = select_input_set(shape.source, number)
                shapes.append(Shape(name=title, source=source))
        if len(shapes) > MAX_SHAPES:
            message = f"{len(shapes)} shapes; at most {MAX_SHAPES}"
            raise ShapesUnknown(message, flags={Flag.UNSUPPORTED: message})
        return tuple(shapes) if is_listed else problem.shapes

    async def _names(self, problem: ReferenceModule) -> tuple[str, ...]:
        found = self._listed.get(problem.source)
        if found is None:
            found = await self._ask(problem)
            if not PASSING & found.flags.keys():
                self._listed[problem.source] = found
            while len(self._listed) > MAX_LISTED:
                self._listed.popitem(last=False)
        if found.flags or not found.shapes:
            facts = next(iter(found.flags.values()), "no set was listed")
            flags = found.flags or {Flag.DOES_NOT_RUN: facts}
            raise ShapesUnknown(f"get_input_sets() of {problem.problem_id}: {facts}", flags=flags)
        return found.shapes


MAX_DETAIL_CHARACTERS = 2000
"""Maximum length of a detail, as in the judge."""


def fold_verdicts(names: Sequence[str], verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on a candidate from its verdicts on the first shapes, of which all but the last
    are correct, and the last is if all shapes were judged."""
    last = verdicts[-1]
    phase_s = defaultdict[str, float](float)
    for phase, seconds in (pair for each in verdicts for pair in each.phase_s.items()):
        phase_s[phase] += seconds
    shapes = tuple(
        ShapeVerdict(name=name, status=each.status, timing=each.timing)
        for name, each in zip(names, verdicts, strict=False)
    )
    folded = replace(
        last if not last.is_correct else verdicts[0],
        shapes=shapes,
        phase_s=dict(phase_s),
        also=_fold_also(names, verdicts),
    )
    if not last.is_correct:
        place = f"{describe_place(names, len(verdicts) - 1)}: "
        return replace(folded, timing=None, detail=(place + last.detail)[:MAX_DETAIL_CHARACTERS])
    timings = [each.timing for each in verdicts if each.timing is not None]
    shares = [each.torch_share for each in verdicts if each.torch_share is not None]
    return replace(
        folded,
        timing=mean_timing(timings) if len(timings) == len(verdicts) else None,
        num_launches=max(each.num_launches for each in verdicts),
        torch_share=max(shares, default=None),
    )


def mean_timing(timings: Sequence[Timing]) -> Timing:
    """Geometric means of several timings; each spread is the mean time times the mean of the
    relative spreads. A rate that one of them lacks is None."""

    def mean(name: str) -> Any:
        """0 if a value is."""
        values = [getattr(each, name) for each in timings]
        if None in values:
            return None
        return statistics.geometric_mean(values) if min(values) > 0 else 0.0

    means = {one.name: mean(one.name) for one in fields(Timing)}
    for kind in ("candidate", "baseline"):
        time, spread = f"{kind}_us", f"{kind}_spread_us"
        relative = [getattr(each, spread) / getattr(each, time) for each in timings]
        means[spread] = means[time] * statistics.fmean(relative)
    return Timing(**means)


def fold_examinations(
    problem_id: str, names: Sequence[str], examinations: Sequence[Examination]
) -> Examination:
    """The examination of a problem from those of its shapes: every flag of a shape, with the first
    shape that has it; outputs of the first, the slowest forward pass."""
    flags: dict[Flag, str] = {}
    for number, each in enumerate(examinations):
        for flag, facts in each.flags.items():
            flags.setdefault(flag, f"{describe_place(names, number)}: {facts}")
    times = [each.forward_s for each in examinations if each.forward_s is not None]
    return Examination(
        problem_id=problem_id,
        outputs=examinations[0].outputs,
        forward_s=max(times, default=None),
        flags=flags,
        num_unchecked=sum(each.num_unchecked for each in examinations),
        shapes=tuple(names),
    )


def describe_place(names: Sequence[str], index: int) -> str:
    """`shape 2 of 3 (N=4096, M=100)`."""
    return f"shape {index + 1} of {len(names)} ({names[index]})"


def _fold_also(names: Sequence[str], verdicts: Sequence[Verdict]) -> dict[str, OtherVerdict]:
    """Verdicts of further protocols: the first that is not correct. One that is correct on fewer
    than all shapes names their number."""
    also: dict[str, OtherVerdict] = {}
    for protocol in dict.fromkeys(name for each in verdicts for name in each.also):
        for number, verdict in enumerate(verdicts):
            if (other := verdict.also.get(protocol)) is None:
                continue
            also[protocol] = other
            if other.status is not Status.CORRECT:
                detail = f"{describe_place(names, number)}: {other.detail}"
                also[protocol] = replace(other, detail=detail[:MAX_DETAIL_CHARACTERS])
                break
            if len(verdicts) < len(names):
                detail = f"on {number + 1} of {len(names)} shapes; the others were not judged"
                also[protocol] = replace(other, detail=detail)
    return also
