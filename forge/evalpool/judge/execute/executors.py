"""The judge's side of the executors of one card: those that work, and spares with their contexts.

A program that loses the context or does not end costs its process; the next program runs on a
spare while another is made. Siblings of one problem fault together, so there are several spares.
No lease of the GPU is held meanwhile: times of kernels beside it keep their median and their
quartiles (measured on an H100, 2026-11-26, 7fdc4ff8).

Importing torch takes 3 s, a context 0.2 s: a nursery imports and never makes a context, and each
executor is a fork of it that makes its own. Both end with the thread that started the nursery
(death signal), so that thread must live on.
"""

from __future__ import annotations

import logging
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeVar

from pydantic_core import to_jsonable_python

from forge.errors import Stalled
from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import DeadlinePassed, FrameError, Kind, PeerGone
from forge.evalpool.judge.channel.shm import shared_memory
from forge.evalpool.judge.compiler.binary import Binary, Failure
from forge.evalpool.judge.execute.call import (
    PROGRESS,
    Call,
    ChoiceReport,
    NamedStep,
    NodeTime,
    RunReport,
    TimedCall,
    named_steps,
    parsed,
)
from forge.evalpool.judge.program.format import Program

logger = logging.getLogger(__name__)

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


class Executor:
    """One live process. Not for several threads at once."""

    def __init__(self, channel: Forked) -> None:
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
        """Loads a program, in place of the one before: its bytes as `wire.dumps` writes them, and a
        binary for each of its kernels. `block_fd`: exportable device memory of `block_bytes`, for
        inputs and outputs; `tf32`: `Tf32.request`, None allows it nowhere. As all requests it has a
        monotonic deadline and raises ProgramRefused, ProgramFault or ExecutorGone."""
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
        """Times each call once, alone on the card, after warm-ups with contents of their own."""
        found = self._answer(list[TimedCall], Kind.TIME, [warm_up, *calls], deadline=deadline)
        return _as_many(found, calls)

    def nodes(self, call: Call, *, deadline: float) -> list[NodeTime]:
        return self._answer(list[NodeTime], Kind.NODES, [call], deadline=deadline)

    def unload(self, *, deadline: float) -> None:
        """Leaves nothing of the program on the card."""
        self._ask(Kind.UNLOAD, {}, deadline=deadline)

    def end(self) -> None:
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
        self, kind: Kind, body: dict[str, Any], *, deadline: float, fds: tuple[int, ...] = ()
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


MAX_MAKERS = 2
"""Processes that are made at once: 3.4 a second by two, 2.0 by one, 4.1 by three (one H100)."""


class Executors:
    """The executors of one card and their spares. Threads take turns."""

    def __init__(self, start: Callable[[], Executor], *, num: int = 1, num_spares: int = 1) -> None:
        """
        Args:
            start: makes a process and waits for its context; called from several threads.
            num: executors that work at once.
            num_spares: processes that wait to take the place of one that is lost.
        """
        self._start, self._num, self._num_spares = start, num, num_spares
        self._free = threading.Semaphore(num)
        self._all = threading.Lock()
        """Held by the thread that takes every executor."""
        self._lock = threading.Lock()
        self._is_closed = False
        self._num_taken = 0
        self._idle: list[Executor] = []
        """Executors that have worked and have no program now."""
        self._makers = ThreadPoolExecutor(min(MAX_MAKERS, num_spares), "executors")
        self._spares: list[Future[Executor]] = []
        self._refill()

    @contextmanager
    def taken(self, *, timeout_s: float, is_alone: bool = False) -> Generator[Executor]:
        """A live executor for one program; no other one has a program meanwhile if it `is_alone`.
        Raises Stalled (no turn, or no process, in time), or ExecutorGone (none can be made)."""
        deadline = time.monotonic() + timeout_s
        with ExitStack() as held:
            locks = [self._all, *[self._free] * self._num] if is_alone else [self._free]
            for lock in locks:
                if not lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                    raise Stalled(f"no turn on an executor within {timeout_s:.0f} s")
                held.callback(lock.release)
            executor = self._take(deadline)
            held.callback(self._give_back, executor)
            yield executor

    @property
    def are_in_use(self) -> bool:
        return self._num_taken > 0

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        self._makers.shutdown(cancel_futures=True)
        made = [one for one in self._spares if not one.cancelled() and not one.exception()]
        for one in (*(spare.result() for spare in made), *self._idle):
            one.end()

    def _give_back(self, executor: Executor) -> None:
        with self._lock:
            self._num_taken -= 1
            if executor.is_alive:
                self._idle.append(executor)

    def _take(self, deadline: float) -> Executor:
        with self._lock:
            self._idle = [one for one in self._idle if one.is_alive]
            if self._idle:
                self._num_taken += 1
                return self._idle.pop()
            spare = self._next_spare()
        try:
            found = spare.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            with self._lock:
                self._spares.append(spare)
            raise Stalled("no executor was made in time") from None
        except (ExecutorGone, OSError) as error:
            raise ExecutorGone(str(error)) from error
        with self._lock:
            self._num_taken += 1
        return found

    def _next_spare(self) -> Future[Executor]:
        """A spare that is made, or will be; another one takes its place. Those that failed before
        anybody waited for them are made again: another attempt may succeed."""
        if self._is_closed:
            raise Stalled("the judge ends")
        self._spares = [one for one in self._spares if not (one.done() and one.exception())]
        self._refill()
        spare = next((one for one in self._spares if one.done()), self._spares[0])
        self._spares.remove(spare)
        self._refill()
        return spare

    def _refill(self) -> None:
        """Keeps the number of spares. Processes end with the threads that make them."""
        while len(self._spares) < self._num_spares:
            self._spares.append(self._makers.submit(self._made))

    def _made(self) -> Executor:
        try:
            return self._start()
        except (ExecutorGone, OSError) as error:
            if not self._is_closed:  # else it ended with the other maker's processes
                logger.warning("no executor: %s", error)
            raise


MODULE = "forge.evalpool.judge.execute.gpu.nursery"
IMPORT_TIMEOUT_S = 120.0
"""Maximum time to import torch: seconds, or minutes from a cold network disk."""
FORK_TIMEOUT_S = 30.0
END_TIMEOUT_S = 20.0
"""Maximum wait for a killed process: the driver first tears down what it ran."""


class Forked:
    """An executor's process, by the judge's end of its socket and by a pidfd."""

    def __init__(self, sock: socket.socket, memory: mmap.mmap, pidfd: int) -> None:
        self.sock, self._memory, self._pidfd = sock, memory, pidfd

    def progress(self) -> int:
        return PROGRESS.unpack_from(self._memory)[0]

    def end(self) -> None:
        self.sock.close()
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        if not poll.poll(END_TIMEOUT_S * 1e3):
            logger.error("an executor does not end within %.0f s", END_TIMEOUT_S)
        os.close(self._pidfd)
        self._memory.close()


class Nursery:
    """Starts executors on the first visible card. Safe to call from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Held while the nursery is asked for a process, or ended."""
        self._sock: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Executor:
        """An executor with its context made. Raises ExecutorGone."""
        with self._lock:
            try:
                if self._sock is None:
                    self._open()
                executor = Executor(self._forked())
            except (PeerGone, FrameError, DeadlinePassed, OSError) as error:
                self._end()
                raise ExecutorGone(f"no process: {error}") from error
        executor.wait_ready()
        return executor

    def close(self) -> None:
        with self._lock:
            self._end()

    def _end(self) -> None:
        sock, self._sock = self._sock, None
        process, self._process = self._process, None
        if sock is not None:
            sock.close()
        if process is not None:
            process.kill()
            process.wait()

    def _open(self) -> None:
        self._sock, theirs = socket.socketpair()
        command = [sys.executable, "-m", MODULE, str(theirs.fileno()), str(os.getpid())]
        with theirs:
            self._process = subprocess.Popen(
                command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL
            )
        self._receive(Kind.READY, IMPORT_TIMEOUT_S)

    def _forked(self) -> Forked:
        assert self._sock is not None
        ours, theirs = socket.socketpair()
        progress_fd = os.memfd_create("forge-progress")
        try:
            os.ftruncate(progress_fd, mmap.PAGESIZE)
            memory = mmap.mmap(progress_fd, mmap.PAGESIZE)
            frames.send(self._sock, Kind.FORK, {}, fds=(theirs.fileno(), progress_fd))
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(progress_fd)
        try:
            (pidfd,) = self._receive(Kind.FORKED, FORK_TIMEOUT_S)
        except BaseException:
            ours.close()
            raise
        return Forked(ours, memory, pidfd)

    def _receive(self, kind: Kind, timeout_s: float) -> tuple[int, ...]:
        assert self._sock is not None
        deadline, is_forked = time.monotonic() + timeout_s, kind is Kind.FORKED
        found = frames.receive(self._sock, deadline=deadline, expected=(kind,), takes_fds=is_forked)
        if len(found.fds) != is_forked:
            for fd in found.fds:
                os.close(fd)
            raise FrameError(f"{len(found.fds)} descriptors with {kind.name}")
        return found.fds
