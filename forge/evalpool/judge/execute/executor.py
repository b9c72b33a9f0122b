"""The judge's side of one executor: a process that runs programs, with a context of its own.

Called by the judge, in its threads. A program that loses the context or does not end costs the
process; `executors.py` has those that work and their spares.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pydantic_core import to_jsonable_python

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import DeadlinePassed, FrameError, Kind, PeerGone
from forge.evalpool.judge.channel.shm import shared_memory
from forge.evalpool.judge.compiler.binary import Binary, Failure
from forge.evalpool.judge.execute.call import (
    Call,
    ChoiceReport,
    NodeTime,
    RunReport,
    TimedCall,
    parsed,
)
from forge.evalpool.judge.execute.steps import NamedStep, named_steps

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

    from forge.evalpool.judge.program.format import Program

T = TypeVar("T")
ANSWERS = (Kind.DONE, Kind.REFUSED, Kind.FAULT)
START_TIMEOUT_S = 120.0
"""Maximum time to make a context; under a second where the host is idle."""


class ProgramRefused(Exception):
    """The program cannot be run on this card; the executor is sound.

    `reason`: `out_of_resources`, `out_of_memory`, `operation`, `result`, `launch`, `driver`.
    """

    def __init__(self, reason: str, message: str, *, line: int) -> None:
        super().__init__(message)
        self.reason, self.line = reason, line


class ProgramFault(Exception):
    """The program lost the context (`gpu_fault`) or did not end in time (`timeout`)."""

    def __init__(self, reason: str, message: str, *, step: NamedStep | None) -> None:
        super().__init__(message)
        self.reason, self.step = reason, step


class ExecutorGone(Exception):
    """The executor's process failed by itself: not the program's fault."""


class Channel(Protocol):
    """One executor's process as `Executor` needs it."""

    sock: socket.socket

    def progress(self) -> int:
        """Number of the step that it runs, or ran last."""
        ...

    def end(self) -> None:
        """Kills the process and waits for its end."""
        ...


class Executor:
    """One live process. Not for several threads at once."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._steps: tuple[NamedStep, ...] = ()
        self.is_alive = True

    def wait_ready(self, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Waits for its context. Raises ExecutorGone."""
        try:
            deadline = time.monotonic() + timeout_s
            frames.receive(self._channel.sock, deadline=deadline, expected=(Kind.READY,))
        except (DeadlinePassed, PeerGone, FrameError) as error:
            self.end()
            raise ExecutorGone(f"no context: {error}") from error

    def load(
        self,
        program: Program,
        data: bytes,
        binaries: Sequence[Binary | Failure],
        *,
        deadline: float,
        block_fd: int | None = None,
        block_bytes: int = 0,
        tf32: Mapping[str, bool] | None = None,
    ) -> None:
        """Loads a program, in place of the one before.

        Args:
            data: the program's bytes, as `wire.dumps` writes them.
            binaries: one for each of its kernels.
            deadline: monotonic, as in all requests.
            block_fd: exportable device memory of `block_bytes`, for inputs and outputs.
            tf32: `Tf32.request`; None allows it nowhere.

        Raises:
            ProgramRefused, ProgramFault, ExecutorGone: as all requests.
        """
        self._steps = named_steps(program)
        headers: list[tuple[int | None, dict[str, Any] | str]] = []
        parts = [data]
        for binary in binaries:
            if isinstance(binary, Failure):
                headers.append((None, binary.message))
            else:
                headers.append((len(binary.code), binary.header()))
                parts.append(binary.code)
        body = {
            "program_bytes": len(data),
            "binaries": headers,
            "block_bytes": block_bytes,
            **(tf32 or {"tf32": False, "tf32_products": False}),
        }
        content = b"".join(parts)
        with shared_memory(len(content)) as (fd, memory):
            memory[:] = content
            fds = (fd,) if block_fd is None else (fd, block_fd)
            self._ask(Kind.LOAD, body, deadline=deadline, fds=fds)

    def run(self, calls: Sequence[Call], *, deadline: float) -> list[RunReport]:
        """Runs calls, one after the other; waits after each step, by which a fault names it."""
        return _as_many(self._answer(list[RunReport], Kind.RUN, calls, deadline=deadline), calls)

    def tune(self, call: Call, *, deadline: float) -> list[ChoiceReport]:
        """Times the alternatives of all choices and fixes the winners. Alone on the card."""
        return self._answer(list[ChoiceReport], Kind.TUNE, [call], deadline=deadline)

    def time(self, calls: Sequence[Call], *, warm_up: Call, deadline: float) -> list[TimedCall]:
        """Times each call once, after warm-ups whose contents are in no other call. The caller is
        alone on the card."""
        found = self._answer(list[TimedCall], Kind.TIME, [warm_up, *calls], deadline=deadline)
        return _as_many(found, calls)

    def nodes(self, call: Call, *, deadline: float) -> list[NodeTime]:
        """GPU time of each node. The caller is alone on the card."""
        return self._answer(list[NodeTime], Kind.NODES, [call], deadline=deadline)

    def unload(self, *, deadline: float) -> None:
        """Leaves nothing of the program on the card."""
        self._ask(Kind.UNLOAD, {}, deadline=deadline)

    def end(self) -> None:
        """Ends the process. Once."""
        if self.is_alive:
            self.is_alive = False
            self._channel.end()

    def _answer(self, answer: type[T], kind: Kind, calls: Sequence[Call], *, deadline: float) -> T:
        """The answer of a type to a request for calls."""
        found = self._ask(kind, {"calls": to_jsonable_python(calls)}, deadline=deadline)
        try:
            return parsed(answer, found.get("answer"))
        except ValueError as error:
            raise ExecutorGone(f"a malformed answer: {error!r}"[:300]) from error

    def _ask(
        self,
        kind: Kind,
        body: dict[str, Any],
        *,
        deadline: float,
        fds: tuple[int, ...] = (),
    ) -> dict[str, Any]:
        if not self.is_alive:
            raise ExecutorGone("it has ended")
        sock = self._channel.sock
        try:
            left_s = max(0.05, deadline - time.monotonic())
            frames.send(sock, kind, body, fds=fds, timeout_s=left_s)
            answer = frames.receive(sock, deadline=deadline, expected=ANSWERS)
        except DeadlinePassed:
            step = self._step(self._channel.progress())
            self.end()
            where = f" in {step.what}" if step else ""
            raise ProgramFault("timeout", f"did not end in time{where}", step=step) from None
        except (PeerGone, FrameError) as error:
            self.end()
            raise ExecutorGone(f"{kind.name}: {error}") from error
        if answer.kind is Kind.DONE:
            return answer.body
        text = str(answer.body.get("message"))[:2000]
        if answer.kind is Kind.REFUSED:
            reason, line = str(answer.body.get("reason"))[:50], answer.body.get("line")
            raise ProgramRefused(reason, text, line=line if type(line) is int else 0)
        step = self._step(self._channel.progress()) if answer.body.get("step") else None
        self.end()
        raise ProgramFault("gpu_fault", text, step=step)

    def _step(self, number: int) -> NamedStep | None:
        return self._steps[number - 1] if 0 < number <= len(self._steps) else None


def _as_many(reports: list[T], calls: Sequence[Call]) -> list[T]:
    """The reports, if there is one for each call."""
    if len(reports) != len(calls):
        raise ExecutorGone(f"{len(reports)} reports for {len(calls)} calls")
    return reports
