"""Processes of executors: forked by a nursery, a process that has imported torch once.

Called by the judge, in the threads that make spares. Importing torch takes 3 s, a context 0.2 s: so
the nursery imports and never makes a context, and each executor is a fork of it that makes its own.
Both end with the thread that started the nursery (death signal), so that thread must live on.
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
from contextlib import suppress
from typing import TYPE_CHECKING

from forge.evalpool.judge.execute import messages
from forge.evalpool.judge.execute.executor import Executor, ExecutorGone
from forge.evalpool.judge.execute.messages import Message, MessageError, PeerEnded, Silent
from forge.evalpool.judge.execute.steps import PROGRESS

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)

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
            except (PeerEnded, MessageError, Silent, OSError) as error:
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
        self._receive(Message.READY, IMPORT_TIMEOUT_S)

    def _forked(self) -> Forked:
        assert self._sock is not None
        ours, theirs = socket.socketpair()
        progress_fd = os.memfd_create("forge-progress")
        try:
            os.ftruncate(progress_fd, mmap.PAGESIZE)
            memory = mmap.mmap(progress_fd, mmap.PAGESIZE)
            messages.send(self._sock, Message.FORK, {}, fds=(theirs.fileno(), progress_fd))
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(progress_fd)
        try:
            (pidfd,) = self._receive(Message.FORKED, FORK_TIMEOUT_S)
        except BaseException:
            ours.close()
            raise
        return Forked(ours, memory, pidfd)

    def _receive(self, kind: Message, timeout_s: float) -> tuple[int, ...]:
        """Descriptors of the expected message."""
        assert self._sock is not None
        found = messages.receive(self._sock, deadline=time.monotonic() + timeout_s)
        if found.kind is not kind or len(found.fds) != (kind is Message.FORKED):
            for fd in found.fds:
                os.close(fd)
            raise MessageError(f"{found.kind.name} in place of {kind.name}")
        return found.fds
