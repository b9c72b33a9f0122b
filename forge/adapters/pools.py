"""A pool of judges in Python: judges that are processes of this program. Called by `calls.py`.

The judges live in an event loop of their own, in a daemon thread: it works in a notebook, whose
thread has a running loop, and the processes end with the pool or with this process.
"""

from __future__ import annotations

import threading
from asyncio import CancelledError, wrap_future
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError as FutureCancelledError
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from anyio.from_thread import BlockingPortal, start_blocking_portal

from forge.adapters.answering import Answering, open_answering
from forge.adapters.settings import JudgeSettings, checked_constants
from forge.adapters.subjects import KnownProblems, known_problems, read_answer, read_problem
from forge.adapters.verdict import Verdict
from forge.config.schema import JudgeTable
from forge.data.problem_files import Overrides
from forge.errors import ConfigError, ForgeError, MachineError
from forge.process.devices import Gpu
from forge.records.problem import ReferenceModule

Subject: TypeAlias = str | Path | ReferenceModule


AHEAD = 2
"""Judgements of `judge_many` that are started for each one that can run."""
OWN_ARGUMENTS = {
    "policy": "policy=",
    "protocol": "protocol=",
    "timing": "timed=",
    "workers": "forge.judges(workers=)",
    "url": "forge.client.Judge(url)",
}
"""Keys of `[judge]` that have an argument of their own, and its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeChoice:
    table: JudgeTable
    gpus: tuple[Gpu, ...]
    known: KnownProblems | None
    overrides: Overrides

    def read(self, problem: Subject, answer: str | Path) -> tuple[ReferenceModule, str]:
        """The problem that a user names, with its constants, and the text of an answer. Raises
        ConfigError."""
        found = read_problem(problem, known=self.known, overrides=self.overrides)
        return found, read_answer(answer)

    def require_times(self, timed: bool | None) -> None:
        """Raises MachineError if times are needed and there is no GPU."""
        if timed and not self.gpus:
            raise MachineError("timed: the judges have no GPU to time on; timed=None needs none")


def choose(
    *,
    workers: int | None,
    device: str = "auto",
    policy: str | None = None,
    protocol: str = "forge",
    timeout: float | None = None,
    settings: Mapping[str, Any] | None = None,
    problems: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> JudgeChoice:
    """The arguments of a call, checked. Raises ConfigError or MachineError."""
    for key in settings or ():
        if key in OWN_ARGUMENTS:
            raise ConfigError(f"settings: {key} is set by {OWN_ARGUMENTS[key]}")
    chosen = JudgeSettings(
        workers=workers, device=device, policy=policy, protocol=protocol, timeout=timeout,
        more=settings or {}, prefix="",
    )  # fmt: skip
    gpus = chosen.gpus()
    return JudgeChoice(
        table=chosen.table(),
        gpus=gpus,
        known=known_problems(problems),
        overrides=Overrides.from_table(checked_constants({} if overrides is None else overrides)),
    )


@contextmanager
def judged_once(
    choice: JudgeChoice, problem: Subject, answer: str | Path, *, timed: bool | None
) -> Generator[Future[Verdict]]:
    """A judgement by a judge that is started for it. Everything is read first, before that takes
    seconds. Raises ConfigError or MachineError."""
    choice.require_times(timed)
    subject, text = choice.read(problem, answer)

    async def judge() -> Verdict:
        async with open_answering(choice.table, choice.gpus) as answering:
            return await answering.judge(subject, text, is_timed=timed is not False)

    with plain_errors(), start_blocking_portal(name="forge-judge") as portal:
        yield portal.start_task_soon(judge)


@contextmanager
def open_judges(choice: JudgeChoice) -> Generator[JudgePool]:
    """A pool in a thread of its own. Raises MachineError."""
    with start_blocking_portal(name="forge-judges") as portal:
        opened = portal.wrap_async_context_manager(open_answering(choice.table, choice.gpus))
        with plain_errors():
            answering = opened.__enter__()
        pool = JudgePool(portal, answering, choice)
        try:
            yield pool
        finally:
            pool.cancel()
            with plain_errors():
                opened.__exit__(None, None, None)  # an error of the block would come out in a group


class JudgePool:
    """Judges that stay ready. Safe in any thread. Made by `forge.judges`."""

    def __init__(self, portal: BlockingPortal, answering: Answering, choice: JudgeChoice) -> None:
        self._portal = portal
        self._answering = answering
        self._choice = choice
        self._futures: set[Future[Verdict]] = set()
        self._is_closed = False
        self._lock = threading.Lock()
        """Held while a judgement is started, so that none is after `cancel`."""

    def judge(self, problem: Subject, answer: str | Path, *, timed: bool | None = None) -> Verdict:
        """The verdict on one answer; arguments as of `forge.judge`."""
        return self._result(self._start(*self._choice.read(problem, answer), timed))

    async def ajudge(
        self, problem: Subject, answer: str | Path, *, timed: bool | None = None
    ) -> Verdict:
        """`judge` in an asyncio event loop, which it does not block."""
        future = self._start(*self._choice.read(problem, answer), timed)
        try:
            return await wrap_future(future)
        except CancelledError:
            if self._is_closed:
                raise _closed() from None
            raise

    def judge_many(
        self, pairs: Iterable[tuple[Subject, str | Path]], *, timed: bool | None = None
    ) -> Iterator[Verdict]:
        """Verdicts in the order of the pairs, each as soon as it and those before it are there.

        Judging begins with the call, with as many pairs at once as there are judges for, and goes
        on as verdicts are taken.

        Raises:
            ConfigError: a pair that cannot be read; nothing is judged then.
        """
        rest = deque([self._choice.read(*pair) for pair in pairs])
        most = AHEAD * sum(seat.capacity for seat in self._answering.pool.seating.seats)
        started = deque(self._start(*rest.popleft(), timed) for _ in range(min(most, len(rest))))
        return self._in_order(started, rest, timed)

    def cancel(self) -> None:
        """Ends all judgements; the pool takes no more."""
        with self._lock:
            self._is_closed = True
        for future in list(self._futures):
            future.cancel()

    def _start(self, problem: ReferenceModule, answer: str, timed: bool | None) -> Future[Verdict]:
        self._choice.require_times(timed)
        ask = partial(self._answering.judge, problem, answer, is_timed=timed is not False)
        with self._lock:
            if self._is_closed:
                raise _closed()
            future = self._portal.start_task_soon(ask)
            self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        return future

    def _result(self, future: Future[Verdict]) -> Verdict:
        try:
            return future.result()
        except FutureCancelledError:
            raise _closed() from None
        finally:
            future.cancel()  # at Ctrl-C; without effect on a result

    def _in_order(
        self,
        started: deque[Future[Verdict]],
        rest: deque[tuple[ReferenceModule, str]],
        timed: bool | None,
    ) -> Iterator[Verdict]:
        try:
            while started:
                verdict = self._result(started[0])
                started.popleft()
                if rest:
                    started.append(self._start(*rest.popleft(), timed))
                yield verdict
        finally:
            for future in started:
                future.cancel()


def _closed() -> ConfigError:
    return ConfigError("judges: this pool is closed; judge inside its with block")


@contextmanager
def plain_errors() -> Generator[None]:
    """Raises the cause of a group of errors in its place."""
    try:
        yield
    except BaseExceptionGroup as group:
        from forge.exits import iter_leaves

        for leaf in iter_leaves(group):
            if isinstance(leaf, ForgeError):
                raise leaf from None
        raise
