"""The executors of one card: those that work, and spares with their contexts.

Called by the judge, in its threads. A program that loses the context or does not end costs its
process; the next program runs on a spare while another is made. Making a context is slow, and
siblings of one problem fault together, so there are several spares and two threads that make them.
No lease of the GPU is held meanwhile: times of kernels beside it keep their median and their
quartiles (measured on an H100, 2026-11-26, 7fdc4ff8).

Processes are forked by a nursery, a process that has imported torch once. Importing torch takes
3 s, a context 0.2 s: so the nursery imports and never makes a context, and each executor is a fork
of it that makes its own. Both end with the thread that started the nursery (death signal), so that
thread must live on.
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
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from forge.errors import Stalled
from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import DeadlinePassed, FrameError, Kind, PeerGone
from forge.evalpool.judge.execute.executor import START_TIMEOUT_S, Executor, ExecutorGone
from forge.evalpool.judge.execute.steps import PROGRESS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

logger = logging.getLogger(__name__)

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
        self._changed = threading.Condition()
        self._ready: list[Executor] = []
        self._error: Exception | None = None
        self._is_closed = False
        self._num_taken = 0
        self._num_making = 0
        self._idle: list[Executor] = []
        """Executors that have worked and have no program now."""
        self._makers = [
            threading.Thread(target=self._make, name="executors", daemon=True)
            for _ in range(min(MAX_MAKERS, num_spares))
        ]
        for one in self._makers:
            one.start()

    @contextmanager
    def taken(self, *, timeout_s: float, is_alone: bool = False) -> Generator[Executor]:
        """A live executor for one program.

        Args:
            is_alone: no other executor has a program meanwhile.

        Raises:
            Stalled: no turn, or no process, in time.
            ExecutorGone: no process can be made.
        """
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
        """True while a thread has an executor."""
        return self._num_taken > 0

    def close(self) -> None:
        """Ends the processes and the threads that make them."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for maker in self._makers:
            maker.join(START_TIMEOUT_S)
        for one in (*self._ready, *self._idle):
            one.end()

    def _give_back(self, executor: Executor) -> None:
        with self._changed:
            self._num_taken -= 1
            if executor.is_alive:
                self._idle.append(executor)

    def _take(self, deadline: float) -> Executor:
        with self._changed:
            while self._idle:
                found = self._idle.pop()
                if found.is_alive:
                    self._num_taken += 1
                    return found
            if self._error is not None:  # older than this wait: another attempt may succeed
                self._error = None
                self._changed.notify_all()
            while not self._ready:
                if self._error is not None:
                    error, self._error = self._error, None
                    self._changed.notify_all()
                    raise ExecutorGone(str(error)) from error
                left_s = deadline - time.monotonic()
                if self._is_closed or left_s <= 0:
                    raise Stalled("no executor was made in time")
                self._changed.wait(left_s)
            found = self._ready.pop()
            self._num_taken += 1
            self._changed.notify_all()
            return found

    def _make(self) -> None:
        """Keeps the spares, until closed. Processes end with this thread (death signal)."""
        while True:
            with self._changed:
                while not (self._is_closed or self._is_spare_wanted):
                    self._changed.wait()
                if self._is_closed:
                    break
                self._num_making += 1
            made, error = None, None
            try:
                made = self._start()
            except (ExecutorGone, OSError) as found:
                if not self._is_closed:  # else it ended with the other maker's processes
                    logger.warning("no executor: %s", found)
                error = found
            with self._changed:
                self._num_making -= 1
                self._error = error
                if made is not None:
                    self._ready.append(made)
                self._changed.notify_all()

    @property
    def _is_spare_wanted(self) -> bool:
        """True if one more may be made: not after a failure that was not reported yet."""
        return self._error is None and len(self._ready) + self._num_making < self._num_spares


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
        """Number of the step that it runs, or ran last."""
        return PROGRESS.unpack_from(self._memory)[0]

    def end(self) -> None:
        """Kills it and waits for its end. Once."""
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

    def __init__(self, *, env: Mapping[str, str] | None = None) -> None:
        """`env` is the processes' environment; by default ours."""
        self._env = dict(os.environ if env is None else env)
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
        """Ends the nursery, and with it the executors that it made."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _open(self) -> None:
        self._sock, theirs = socket.socketpair()
        command = [sys.executable, "-m", MODULE, str(theirs.fileno()), str(os.getpid())]
        with theirs:
            self._process = subprocess.Popen(
                command, pass_fds=(theirs.fileno(),), env=self._env, stdin=subprocess.DEVNULL
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
        """Descriptors of the expected message."""
        assert self._sock is not None
        deadline, is_forked = time.monotonic() + timeout_s, kind is Kind.FORKED
        found = frames.receive(self._sock, deadline=deadline, expected=(kind,), takes_fds=is_forked)
        if len(found.fds) != is_forked:
            for fd in found.fds:
                os.close(fd)
            raise FrameError(f"{len(found.fds)} descriptors with {kind.name}")
        return found.fds
