# pyright: strict
"""The candidate and the finding of a judgement, and the judge's side of one child.

`Runner` sends work, waits under a deadline, and kills: each way in which a child can end is a
finding.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from forge.config.schema import JudgeTable
from forge.evalpool.capacity import BUSY_FACTOR
from forge.evalpool.judge.channel import frames, words
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.children.spawner import SandboxedChild, Spawner
from forge.evalpool.judge.numbers.protocols import PROTOCOLS, OtherProtocol
from forge.evalpool.judge.sandbox.processes import waited_s
from forge.evalpool.judge.trial.draws import Draw
from forge.evalpool.judge.trial.host_code import HostCode, host_code
from forge.evalpool.judge.trial.remarks import remark
from forge.records.problem import ReferenceModule
from forge.records.reason import Reason
from forge.records.verdict import JudgeOptions, PolicyName, Status, Verdict, split_rules

logger = logging.getLogger(__name__)

STATEFUL_WORDS = (
    "keep nothing between calls, write every element you read, and let no two programs race"
)
ALTERNATIVE_WORDS = "right with one configuration of its autotuner, not with another"
ARGUMENT_WORDS = {
    "init": "ModelNew is constructed as Model is: __init__ takes what get_init_inputs() returns",
    "load": "load_reference(self, state) is called with a dict of the parameters of Model",
    "call": "forward takes what get_inputs() returns, as that of Model does",
}
"""By the stage in which the judge's own call did not fit."""
REFUSED_LAUNCHES = ("Unsupported function referenced", "dynamic_func()")
"""Beginnings of Triton's errors at a launch that its compiler does not raise itself."""
CORRECTNESS_ALONE = JudgeOptions(timing=False)
MIN_OWN_SHARE = 0.5
"""Share of its limit that a child has run for before its silence is its own on a busy machine."""
SHORT_S = 0.01
"""Time of a call of which what it waited for a core is not asked: that takes 0.03 ms, a call 1 ms.
"""
MAX_CONSTANTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Facts that every verdict of a judge carries."""

    isolation: str
    caps: str
    harness: str
    device: str = "cpu"


@dataclass(slots=True)
class Phases:
    """Seconds by phase of one judgement, and the program that was captured in it."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    program: bytes | None = None
    """Bytes of the candidate's program for the first input set, whatever became of it."""
    draw: Draw | None = None
    moved_bytes: int | None = None
    """Bytes that the last call's kernels loaded and stored, where they are counted."""

    @contextmanager
    def timed(self, name: str) -> Generator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - started, 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A source to judge, and the terms of its judgement."""

    problem: ReferenceModule
    code: str
    options: JudgeOptions = CORRECTNESS_ALONE
    protocol: OtherProtocol | None = None
    """None for ours."""
    policy: PolicyName = "own"
    phases: Phases = field(default_factory=Phases)

    @property
    def entry_point(self) -> str:
        return f"{self.problem.entry_point}New"

    @property
    def host(self) -> HostCode:
        return host_code(self.code, entry_point=self.entry_point)

    def under(self, rules: str) -> Candidate:
        """The same source under other rules, as in `judge.also`, for correctness alone."""
        name, policy = split_rules(rules)
        return replace(
            self, protocol=PROTOCOLS.get(name), policy=policy,
            options=CORRECTNESS_ALONE, phases=Phases(),
        )  # fmt: skip


Finding: TypeAlias = Verdict
"""A verdict without its stamp."""


class OpenSide(NamedTuple):
    """A decision of a kernel by its data that took one side alone, on all sets."""

    line: int
    words: str
    constants: tuple[float, ...]
    """Numbers that it compares with."""
    memory: tuple[str, ...]
    """Names of what it depends on (`ttir.decisions`)."""

    @classmethod
    def parse(cls, data: Any) -> OpenSide:
        line, text, constants, memory = data
        numbers = tuple(one for one in constants[:MAX_CONSTANTS] if type(one) in (int, float))
        names = tuple(map(str, memory[:MAX_CONSTANTS]))
        return cls(int(line), words.clean(str(text)), numbers, names)


class Decided(Exception):
    """A candidate stops at the first stage it fails."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.reason)
        self.finding = finding


class Allowance:
    """Time for one answer of a child, without what it waited for a core: a busy machine's part, of
    which it may take `BUSY_FACTOR` - 1 times the phase's limit."""

    def __init__(self, pid: int, left_s: float, *, limit_s: float) -> None:
        self._pid, self._given_s, self._limit_s = pid, left_s, limit_s
        self._most_s = (BUSY_FACTOR - 1) * limit_s
        self._began, self._waited_at_start = time.monotonic(), waited_s(pid)
        self._granted_s = 0.0

    def add(self, seconds: float) -> None:
        self._given_s += seconds

    def left_s(self) -> float:
        """Seconds until the deadline, as `frames.receive` asks."""
        left_s = self._given_s + self._granted_s - (time.monotonic() - self._began)
        if left_s > 0:
            return left_s
        more_s = min(self._waited_s(), self._most_s) - self._granted_s
        self._granted_s += more_s
        return left_s + more_s

    def spent_s(self) -> float:
        """Seconds that were the child's own; of a short call all are."""
        spent_s = time.monotonic() - self._began
        return spent_s if spent_s < SHORT_S else spent_s - self._waited_s()

    @property
    def is_machines(self) -> bool:
        """True if the child waited for a core as long as it may, and had too little of one: a loop
        without end takes what there is."""
        return self._waited_s() >= self._most_s and self.spent_s() < MIN_OWN_SHARE * self._limit_s

    def _waited_s(self) -> float:
        return max(0.0, waited_s(self._pid) - self._waited_at_start)


@dataclass(slots=True, kw_only=True)
class Runner:
    """One runner from its first frame to its end; where its memory lies is the subclass's part."""

    code: str
    spawner: Spawner
    child: SandboxedChild
    table: JudgeTable
    is_ended: bool = False
    spent_s: float = 0.0

    def end(self) -> None:
        if not self.is_ended:
            self.is_ended = True
            self.spawner.end(self.child)

    def ask(
        self, kind: Kind, body: dict[str, Any], *, phase: str, left_s: float, limit_s: float,
        fds: tuple[int, ...] = (),
    ) -> frames.Frame:  # fmt: skip
        """Sends work and waits for it, for the rest of the phase's limit, which a message names.
        Raises Decided if anything goes wrong."""
        allowed = Allowance(self.child.pid_here, left_s, limit_s=limit_s)
        with self.answering(phase=phase, limit_s=limit_s, allowed=allowed):
            frames.send(self.child.sock, kind, body, fds=fds, timeout_s=left_s)
            answer = frames.receive(
                self.child.sock, deadline=allowed.left_s, expected=(Kind.DONE, Kind.FAILED)
            )
        self.spent_s += allowed.spent_s()
        if answer.kind is Kind.FAILED:
            raise Decided(self.failed(answer.body))
        return answer

    @contextmanager
    def answering(
        self, *, phase: str, limit_s: float, allowed: Allowance | None = None
    ) -> Generator[None]:
        """Within, the child's silence, rubbish or end is the candidate's: raises Decided. Silence
        for want of a core is the machine's."""
        try:
            yield
        except frames.DeadlinePassed:
            if allowed is not None and allowed.is_machines:
                detail = (
                    f"{phase}: no core for {(BUSY_FACTOR - 1) * limit_s:.3g} s and more; "
                    "the machine is busy"
                )
                reason = Reason.MACHINE_BUSY
                raise Decided(self.finding(Status.INFRA_ERROR, reason, detail)) from None
            detail = f"no answer within {limit_s:.3g} s: does a loop end?"
            raise Decided(self.finding(Status.TIMEOUT, f"deadline:{phase}", detail)) from None
        except frames.FrameError:
            detail = "something other than the runner wrote on its channel"
            raise Decided(self.finding(Status.REJECTED, "forged_frame", detail)) from None
        except frames.PeerGone:
            raise Decided(self._hung_up()) from None

    def failed(self, body: dict[str, Any]) -> Finding:
        """A FAILED frame in the judge's words. Its content is the candidate's: only quoted."""
        message, line = body.get("message"), body.get("line")
        stage, kind = str(body.get("stage")), str(body.get("type"))
        if kind == "Unsupported":
            detail = words.at_line(self.code, line, str(message))
            return self.finding(Status.REJECTED, "unsupported", detail)
        text = f"{kind}: {message}" if message else f"{kind}"
        if str(message).startswith(REFUSED_LAUNCHES):
            message = str(message).replace("dynamic_func()", "the launch")
            stage = "compile"
        line, advice = remark(self.code, line if isinstance(line, int) else None, text)
        if stage == "compile":
            detail = words.at_line(self.code, line, f"Triton cannot compile {message}")
            detail = f"{detail}\n{advice}".rstrip()
            return self.finding(Status.COMPILE_ERROR, "not_triton", detail)
        detail = f"{words.at_line(self.code, line, text)}\n{advice}".rstrip()
        if words.is_out_of_memory(text):
            return self.finding(Status.RUNTIME_ERROR, Reason.OUT_OF_MEMORY, detail)
        if stage == "import":
            return self.finding(Status.COMPILE_ERROR, "import_error", detail)
        if kind == "TypeError" and line is None and stage in ARGUMENT_WORDS:
            detail = f"{detail}\n{ARGUMENT_WORDS[stage]}"
        return self.finding(Status.RUNTIME_ERROR, "exception", detail)

    def _hung_up(self) -> Finding:
        """The finding for a runner that ended.

        A SIGKILL that is not ours is an operator's, the kernel's for lack of memory on the machine,
        or the result of limits that a candidate can set itself (RLIMIT_CPU). These look alike, so
        it is an infra error, judged once more; a candidate that ends so again is scored for it
        (`pool.py`).
        """
        self.is_ended = True
        ending = self.spawner.ended(self.child)
        if ending.is_out_of_memory:
            detail = f"more than {self.table.memory_bytes >> 20} MB of memory"
            return self.finding(Status.RUNTIME_ERROR, Reason.OUT_OF_MEMORY, detail)
        if ending.was_running:
            detail = "the candidate closed the channel of its process"
            return self.finding(Status.RUNTIME_ERROR, "crash", detail)
        detail = words.exit_in_words(ending.status, who="the candidate")
        if os.WIFSIGNALED(ending.status) and os.WTERMSIG(ending.status) == signal.SIGKILL:
            return self.finding(Status.INFRA_ERROR, "runner_killed", detail)
        return self.finding(Status.RUNTIME_ERROR, "crash", detail)

    def finding(self, status: Status, reason: str, detail: str = "") -> Finding:
        return Finding(status=status, reason=reason, detail=detail)
