"""A pool of judges in Python: judges that are processes of this program. Called by `calls.py`.

The judges live in an event loop of their own, in a daemon thread: it works in a notebook, whose
thread has a running loop, and the processes end with the pool or with this process.
"""

from __future__ import annotations

import os
import re
import threading
from asyncio import CancelledError, wrap_future
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError as FutureCancelledError
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from anyio.from_thread import BlockingPortal, start_blocking_portal

from forge.adapters.answering import Answering, open_answering
from forge.adapters.subjects import KnownProblems, known_problems, read_answer, read_problem
from forge.adapters.verdict import Verdict
from forge.config.keys import one_of, validated
from forge.config.schema import ConstantsTable, JudgeTable, ProblemsTable, RulesName
from forge.data.problem_files import Overrides
from forge.errors import ConfigError, ForgeError, MachineError, pip_install
from forge.evalpool.cards import require_target
from forge.evalpool.site_packages import OPTION, require_installed
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

_DEVICE = re.compile(r"cuda(:\d+)?")
MAX_JUDGES = 16
"""Default limit of judges. Each has torch and triton loaded: 0.4 GB."""
CHOICES = ("isolation", "compile", "baseline", "protocol", "policy")
"""Options that are keys of the table with a closed set of values."""
PHASES = ("compile_timeout_s", "correct_timeout_s", "timing_timeout_s")
MAX_TIMEOUT_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSettings:
    """Options that choose judges, as `forge judge --help` describes them."""

    device: str = "auto"
    isolation: str = "auto"
    compile: str = "ttir"
    baseline: str = "eager"
    protocol: str = "forge"
    policy: str | None = None
    """Absent: the protocol's own."""
    target: str | None = None
    """GPU to judge for on a CPU. Absent: the table's."""
    also: tuple[str, ...] = ()
    site_packages: tuple[str, ...] = ()
    workers: int | None = None
    """Number of judges; absent means one per core, at most MAX_JUDGES and one per candidate."""
    timeout: float | None = None
    """Maximum time of each phase, in s; absent means the defaults of the `[judge]` table."""
    url: str | None = None
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])
    prefix: str = "--"
    """Beginning of an option's name in messages; empty for arguments in Python."""

    def table(self) -> JudgeTable:
        """The `[judge]` table with these options. Raises ConfigError or MachineError."""
        if self.url is not None:
            for option in fields(self):
                has_default = option.name in ("url", "more", "prefix")
                if not has_default and getattr(self, option.name) != option.default:
                    name = option.name.replace("_", "-")
                    raise ConfigError(f"--url: --{name} must be set where the pool is served")
            return validated(JudgeTable, {"url": [self.url]}, prefix="judge.")
        values: dict[str, Any] = {
            "also": list(self.also),
            "site_packages": list(self.site_packages),
        }
        values["workers"] = self.workers
        if self.workers is None:
            values["workers"] = len(os.sched_getaffinity(0))
        for name in CHOICES:
            if (value := getattr(self, name)) is not None:
                values[name] = one_of(f"{self.prefix}{name}", value, JudgeTable.model_fields[name])
        for name in self.also:
            one_of("--also", name, RulesName)
        if self.target is not None:
            values["target"] = self.target
        if self.timeout is not None:
            if not 0 < self.timeout <= MAX_TIMEOUT_S:
                raise ConfigError(
                    f"{self.prefix}timeout {self.timeout:g}: seconds above 0, "
                    f"at most {MAX_TIMEOUT_S:.0f}"
                )
            values |= dict.fromkeys(PHASES, self.timeout)
        table = validated(JudgeTable, {**values, **self.more}, prefix="judge.")
        for name in ("torch", "triton"):
            if find_spec(name) is None:
                raise MachineError(
                    f"judge: {name} is not installed: {pip_install('judge')}, or make setup"
                )
        require_installed(table.site_packages, key=OPTION)
        require_target(table.target, key=f"{self.prefix}target")
        return table

    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs to judge on; empty for the CPU, which judges for any target. Raises ConfigError:
        the device is not a device name; MachineError: this machine does not have it."""
        if self.target is not None and self.device not in ("auto", "cpu"):
            raise ConfigError(
                f"{self.prefix}target {self.target}: belongs to {self.prefix}device cpu; a judge "
                "on a GPU judges for that GPU"
            )
        if self.device == "cpu" or self.url is not None or self.target is not None:
            return ()
        if self.device != "auto" and not _DEVICE.fullmatch(self.device):
            raise ConfigError(f"{self.prefix}device {self.device}: one of auto, cpu, cuda, cuda:N")
        from forge.process.devices import inventory

        gpus = inventory()
        if self.device == "auto":
            return gpus
        number = int(self.device.partition(":")[2] or 0)
        if number >= len(gpus):
            has = f"{len(gpus)} GPUs" if gpus else "no GPU"
            raise MachineError(
                f"{self.prefix}device {self.device}: this machine has {has}; "
                f"{self.prefix}device cpu needs none"
            )
        return (gpus[number],)


def checked_constants(values: Mapping[str, Any], *, prefix: str = "") -> ConstantsTable:
    """A table of module constants, as `problems.overrides` has it. Raises ConfigError."""
    given: dict[str, Any] = {"overrides": values}
    return validated(ProblemsTable, given, prefix=prefix).overrides


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
