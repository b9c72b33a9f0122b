"""The judges of a run, seen from the supervisor: who is free, who died, what was asked before.

    judge(problem, code) ─▶ cache ─▶ least loaded living judge ─HTTP─▶ verdict
                                       │ died or infra fault: once more, on another judge
    one keeper a judge: open child ─▶ waits for its end ─▶ back-off ─▶ opens it again

Promises: a dead judge is always started again; a kernel is never blamed for a judge; at most
`MAX_QUEUED` requests wait; an identical (problem, code) is judged once, while it is remembered.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from collections import OrderedDict
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc

from forge.errors import ChildDied, MachineError, Stalled
from forge.process.busy import BusyClock
from forge.process.child import Child, ChildSpec, open_child
from forge.process.environment import child_env
from forge.process.sockets import open_socket_dir
from forge.process.uds import open_client
from forge.records.examination import Examination
from forge.records.verdict import Status, Verdict

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

    from forge.config.schema import JudgeTable
    from forge.process.child import ProcessObserver
    from forge.records.problem import Problem

logger = logging.getLogger(__name__)

MAX_QUEUED = 4096
MAX_REMEMBERED = 20_000
"""Verdicts kept by hash of (problem, code): a small model repeats itself."""
CONCURRENCY = 1
"""Candidates at once in one judge: a runner is one busy thread, and judges are as many as cores."""
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.2, 10.0
READY_TIMEOUT_S = 120.0
END_NOTICE_S = 1.0
"""A broken connection is mostly a death: how long its notice may take before we end the judge."""
NO_JUDGE_TIMEOUT_S = 120.0
"""How long a request waits for any judge to live."""
SLACK_S = 60.0
"""Above the candidate's own deadlines: fork, reference, and up to CONCURRENCY others before it."""


class _NoAnswer(Exception):
    """A judge gave none: it died, was silent or failed."""


@dataclass(slots=True)
class _Seat:
    """One judge's place: who sits there now."""

    name: str
    socket_path: Path
    client: httpx.AsyncClient | None = None
    """Open while the judge lives. One for all requests: making one reads certificates (20 ms)."""
    num_waiting: int = 0
    lost: anyio.Event = field(default_factory=anyio.Event)
    """Set when it broke a connection or was silent: its keeper replaces it."""
    free: anyio.Semaphore = field(default_factory=lambda: anyio.Semaphore(CONCURRENCY))

    @property
    def is_up(self) -> bool:
        return self.client is not None


@dataclass(slots=True)
class _Running:
    """A judgement that others may wait for."""

    done: anyio.Event = field(default_factory=anyio.Event)
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """For displays and idle shares."""

    num_judged: int
    """Verdicts given, cached ones not counted."""
    num_cached: int
    """Answers from memory."""
    num_infra: int
    """Infra faults seen, retried ones too."""
    queue_length: int
    busy_s: dict[str, float]
    """Seconds with at least one candidate in judgement, by judge."""


class Pool:
    """Judges behind one call. Made by `open_pool`."""

    def __init__(self, table: JudgeTable, seats: list[_Seat]) -> None:
        self._table = table
        self._seats = seats
        self._changed = anyio.Event()
        self._remembered: OrderedDict[str, Verdict] = OrderedDict()
        self._running: dict[str, _Running] = {}
        self._room = anyio.Semaphore(MAX_QUEUED)
        self._busy = {seat.name: BusyClock() for seat in seats}
        self._num_judged = self._num_cached = self._num_infra = 0

    async def judge(self, problem: Problem, code: str) -> Verdict:
        """The verdict. Raises Stalled when no judge lives for `NO_JUDGE_TIMEOUT_S`."""
        key = _key(problem, code)
        while (running := self._running.get(key)) is not None:
            with anyio.move_on_after(self.request_timeout_s * 4):
                await running.done.wait()
            if running.verdict is not None and running.verdict.status is Status.TIMEOUT:
                self._num_cached += 1
                return running.verdict  # shared with who waited, not remembered
        cached = self._remembered.get(key)
        if cached is not None:
            self._num_cached += 1
            self._remembered.move_to_end(key)
            return cached
        running = self._running[key] = _Running()
        try:
            async with self._room:
                running.verdict = verdict = await self._judge_twice(problem, code)
        finally:
            del self._running[key]
            running.done.set()
        self._remember(key, verdict)
        return verdict

    async def examine(self, problem: Problem) -> Examination:
        """Whether a problem can be judged and trained on, as a judge finds it.

        Raises MachineError where two judges in a row gave no answer.
        """
        seat, lost = None, ""
        for _ in range(2):
            seat = await self._pick(avoid=seat)
            seat.num_waiting += 1
            try:
                async with seat.free:
                    body = {"problem": _described(problem)}
                    return Examination.from_json(await self._post(seat, "/examine", body))
            except _NoAnswer as error:
                lost = str(error)
            finally:
                seat.num_waiting -= 1
        raise MachineError(f"{problem.problem_id}: it could not be examined: {lost}")

    def stats(self) -> PoolStats:
        """Now."""
        waiting = sum(seat.num_waiting for seat in self._seats)
        return PoolStats(
            num_judged=self._num_judged,
            num_cached=self._num_cached,
            num_infra=self._num_infra,
            queue_length=max(0, waiting - sum(seat.is_up for seat in self._seats)),
            busy_s={name: busy.busy_s for name, busy in self._busy.items()},
        )

    async def _judge_twice(self, problem: Problem, code: str) -> Verdict:
        """Once more, on another judge where there is one, for infra faults only."""
        verdict, seat = await self._judge_once(problem, code, avoid=None)
        if verdict.status is Status.INFRA_ERROR:
            self._num_infra += 1
            logger.warning("%s: %s: %s; judged again", seat.name, verdict.reason, verdict.detail)
            verdict, _ = await self._judge_once(problem, code, avoid=seat)
            self._num_infra += verdict.status is Status.INFRA_ERROR
        self._num_judged += 1
        return verdict

    async def _judge_once(
        self, problem: Problem, code: str, *, avoid: _Seat | None
    ) -> tuple[Verdict, _Seat]:
        seat = await self._pick(avoid=avoid)
        seat.num_waiting += 1
        try:
            async with seat.free:
                with self._busy[seat.name].running():
                    return await self._ask(seat, problem, code), seat
        finally:
            seat.num_waiting -= 1

    async def _ask(self, seat: _Seat, problem: Problem, code: str) -> Verdict:
        body = {"problem": _described(problem), "code": code}
        try:
            return Verdict.from_json(await self._post(seat, "/judge", body))
        except (_NoAnswer, ValueError, KeyError, TypeError) as error:
            return _lost(seat, error)

    async def _post(self, seat: _Seat, path: str, body: dict[str, Any]) -> Any:
        """The judge's answer as JSON. Raises _NoAnswer, or ValueError where it is none."""
        import httpx

        try:
            if seat.client is None:
                raise ValueError("it ended while this request waited")
            response = await seat.client.post(path, json=body)
            response.raise_for_status()
            return response.json()
        except httpx.TransportError as error:
            # Out of the choice at once: its keeper may learn of its death only later.
            self.seat_changed(seat, None)
            seat.lost.set()
            raise _NoAnswer(f"{type(error).__name__}: {error}") from error
        except (httpx.HTTPError, ValueError) as error:
            raise _NoAnswer(f"{type(error).__name__}: {error}") from error

    async def _pick(self, *, avoid: _Seat | None) -> _Seat:
        """The least loaded living judge, another than `avoid` if any other lives."""
        with anyio.move_on_after(NO_JUDGE_TIMEOUT_S):
            while True:
                living = [seat for seat in self._seats if seat.is_up]
                others = [seat for seat in living if seat is not avoid]
                if living:
                    return min(others or living, key=lambda seat: seat.num_waiting)
                await self._changed.wait()
        raise Stalled(f"no judge was alive for {NO_JUDGE_TIMEOUT_S:.0f} s; see their logs")

    def seat_changed(self, seat: _Seat, client: httpx.AsyncClient | None) -> None:
        """Told by the keeper of a seat."""
        seat.client = client
        self._changed.set()
        self._changed = anyio.Event()

    def _remember(self, key: str, verdict: Verdict) -> None:
        """But for what a busy machine may have caused."""
        if verdict.status in (Status.INFRA_ERROR, Status.TIMEOUT):
            return
        self._remembered[key] = verdict
        while len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)

    @property
    def request_timeout_s(self) -> float:
        return 2 * (self._table.compile_timeout_s + self._table.correct_timeout_s) + SLACK_S


@asynccontextmanager
async def open_pool(
    table: JudgeTable,
    *,
    socket_dir: Path,
    log_dir: Path,
    observer: ProcessObserver | None = None,
    threads: int = 1,
) -> AsyncIterator[Pool]:
    """Starts `table.workers` judges, yields when all are ready, ends them with everything in them.

    Raises:
        MachineError: this machine gives no sandbox.
        ChildDied, Stalled: a judge did not get ready.
    """
    seats = [
        _Seat(f"judge-{number}", socket_dir / f"judge-{number}.sock")
        for number in range(table.workers)
    ]
    pool = Pool(table, seats)
    async with anyio.create_task_group() as keepers:
        async with anyio.create_task_group() as starting:
            for seat in seats:
                spec = _spec(seat, table=table, log_dir=log_dir, threads=threads)
                starting.start_soon(_start_keeper, keepers, pool, seat, spec, observer)
        try:
            yield pool
        finally:
            keepers.cancel_scope.cancel()


async def judge_alone(problem: Problem, text: str, *, table: JudgeTable) -> Verdict:
    """One verdict, by a judge started for it: `forge judge`. `text` is Python or a completion."""
    import tempfile

    from forge.evalpool.extract import extract

    found = extract(text, entry_point=problem.entry_point)
    single = table.model_copy(update={"workers": 1})
    with open_socket_dir() as socket_dir, tempfile.TemporaryDirectory() as log_dir:
        async with open_pool(single, socket_dir=socket_dir, log_dir=Path(log_dir)) as pool:
            return await pool.judge(problem, found.code if found.is_ok else text)


async def _start_keeper(
    keepers: anyio.abc.TaskGroup,
    pool: Pool,
    seat: _Seat,
    spec: ChildSpec,
    observer: ProcessObserver | None,
) -> None:
    with anyio.fail_after(READY_TIMEOUT_S + SLACK_S):
        await keepers.start(_keep, pool, seat, spec, observer)


async def _keep(
    pool: Pool,
    seat: _Seat,
    spec: ChildSpec,
    observer: ProcessObserver | None,
    *,
    task_status: anyio.abc.TaskStatus[None],
) -> None:
    """Keeps a seat taken. The first start must succeed; later ones are repeated for ever."""
    backoff_s, is_first = FIRST_BACKOFF_S, True
    while True:
        try:
            async with (
                open_child(spec, observer=observer) as child,
                open_client(seat.socket_path, timeout_s=pool.request_timeout_s) as client,
            ):
                seat.lost = anyio.Event()
                pool.seat_changed(seat, client)
                if is_first:
                    task_status.started()
                    is_first = False
                backoff_s = FIRST_BACKOFF_S
                try:
                    reason = await _until_ended(seat, child)
                    logger.warning("%s %s; started again", seat.name, reason)
                finally:
                    pool.seat_changed(seat, None)
        except (ChildDied, Stalled) as error:
            if is_first:
                raise _first_failure(error) from error
            logger.error("%s cannot be started again: %s", seat.name, error)
        await anyio.sleep(backoff_s)
        backoff_s = min(backoff_s * 2, LONGEST_BACKOFF_S)


async def _until_ended(seat: _Seat, child: Child) -> str:
    """Until a judge ends, or is found not to answer. Says which."""
    reasons: list[str] = []

    async def end() -> None:
        reasons.append(f"ended: {await child.wait()}")
        tg.cancel_scope.cancel()

    async with anyio.create_task_group() as tg:
        tg.start_soon(end)
        await seat.lost.wait()
        await anyio.sleep(END_NOTICE_S)
        tg.cancel_scope.cancel()
    return reasons[0] if reasons else "did not answer"


def _described(problem: Problem) -> dict[str, Any]:
    return {
        "problem_id": problem.problem_id,
        "source": problem.source,
        "entry_point": problem.entry_point,
        "precision": problem.precision,
    }


def _lost(seat: _Seat, error: Exception) -> Verdict:
    words = f"{seat.name} did not answer: {error}"
    return Verdict(status=Status.INFRA_ERROR, reason="judge_lost", detail=words[:500])


def _first_failure(error: Exception) -> Exception:
    """A judge that found no sandbox says `MachineError: ...` in its log: that is what to show."""
    _, mark, words = str(error).partition("MachineError: ")
    return MachineError(words.split("\n", 1)[0]) if mark else error


def _spec(seat: _Seat, *, table: JudgeTable, log_dir: Path, threads: int) -> ChildSpec:
    config = {
        "socket_path": str(seat.socket_path),
        "table": table.model_dump(mode="json"),
        "concurrency": CONCURRENCY,
    }
    return ChildSpec(
        name=seat.name,
        argv=(sys.executable, "-m", "forge.evalpool.judge.app"),
        log_path=log_dir / f"{seat.name}.log",
        env=child_env(threads=threads, extra=table.env),
        socket_path=seat.socket_path,
        config=config,
        ready_timeout_s=READY_TIMEOUT_S,
    )


def _key(problem: Problem, code: str) -> str:
    digest = hashlib.sha256()
    for part in (problem.source, problem.entry_point, problem.precision, code):
        digest.update(part.encode(errors="surrogatepass"))
        digest.update(b"\0")
    return digest.hexdigest()
