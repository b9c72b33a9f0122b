# pyright: strict
"""The supervisor's side of a child process: spawn, readiness, end. The child's is `lease.py`.

    spawned ──/health 200──▶ ready ──stop()──▶ TERM ──grace──▶ KILL of the whole group ──▶ reaped
       └── died or silent: ChildDied / Stalled with the last log lines ─────────────────────┘

Promises: each child leads a new session and ends with the supervisor, even a killed one (death
signal and lease pipe); its output is appended to its log; when it ends, the rest of its process
group is killed before its pid can be reused. No task runs here: the owner of a child waits for it.

A pidfd awaits a death without polling or a thread, unlike anyio's processes and psutil's.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import anyio

from forge.errors import ChildDied, ForgeError, MachineError, Stalled
from forge.process import lease
from forge.process.ask import open_client, send
from forge.process.machine import limit_behind
from forge.process.sockets import check_socket_path

logger = logging.getLogger(__name__)

_threads_for_children: set[int] = set()
"""Threads besides the main one that may start children: see `thread_for_children`."""

FIRST_PROBE_S = 0.01
"""Pause after the first refused /health. Doubles up to LONGEST_PROBE_S."""
LONGEST_PROBE_S = 0.2
PROBE_TIMEOUT_S = 5.0
"""Maximum wait for the answer of a /health; a slower child is not ready yet."""
KILL_TIMEOUT_S = 10.0
"""Maximum wait after SIGKILL. A process stuck in the kernel (a driver, a dead NFS) exceeds it."""
SIGNAL_HINTS: dict[int, str] = {
    signal.SIGKILL: " (often out of memory)",
    signal.SIGSEGV: " (it crashed in native code)",
    signal.SIGABRT: " (it aborted in native code)",
    signal.SIGTERM: " (SIGTERM)",
}


class ProcessObserver(Protocol):
    """Receives the start and the end of every child; the runner writes them to the store."""

    def started(self, name: str, *, pid: int, devices: str, log_path: Path) -> None: ...
    def ended(self, name: str, *, pid: int, reason: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    name: str
    """`serve-0`, `judge-1`, `trainer`: the name in messages, logs, store and TUI."""
    argv: tuple[str, ...]
    """Command; the path of the config is appended."""
    log_path: Path
    """Receives stdout and stderr."""
    env: Mapping[str, str]
    """The whole environment, from `environment.child_env`."""
    socket_path: Path | None
    """Socket that the child serves; None for a child that serves nothing."""
    config: Mapping[str, Any]
    """JSON for the child, passed in a 0600 file; `hold_lease` returns it."""
    ready_timeout_s: float = 60.0
    stop_grace_s: float = 5.0
    devices: str = "cpu"
    """Its devices for people: GPU UUIDs, or `cpu`."""


class Child:
    """A started child. Made by `open_child` only."""

    def __init__(
        self,
        spec: ChildSpec,
        *,
        process: subprocess.Popen[bytes],
        lease_fd: int,
        log_offset: int,
        observer: ProcessObserver | None,
    ) -> None:
        self.spec = spec
        self.pid = process.pid
        self.started_at = time.monotonic()
        self._process = process
        self._pidfd = os.pidfd_open(process.pid)
        self._lease_fd = lease_fd
        self._log_offset = log_offset
        self._observer = observer
        self._exit_reason: str | None = None
        self._asked_to_stop = False
        self._was_killed = False

    @property
    def exit_reason(self) -> str | None:
        """The reason of its end, for people; None while it runs."""
        return None if self.is_alive else self._exit_reason

    @property
    def is_alive(self) -> bool:
        """True until the child has ended. Asks the kernel, and reaps a child that has ended."""
        if self._exit_reason is None and lease.is_readable(self._pidfd):
            self._reap()
        return self._exit_reason is None

    async def wait(self) -> str:
        """Wait for its end and return the exit reason. Any number of tasks may wait."""
        if self.is_alive:
            fd = os.dup(self._pidfd)
            try:
                await anyio.wait_readable(fd)
            finally:
                os.close(fd)
        reason = self.exit_reason
        assert reason is not None, "a pidfd is readable once its process has ended"
        return reason

    async def stop(self) -> None:
        """Send SIGTERM, and after `stop_grace_s` SIGKILL to the group. Returns when it is gone."""
        self._asked_to_stop = True
        if self.is_alive:
            os.kill(self.pid, signal.SIGTERM)
            with anyio.move_on_after(self.spec.stop_grace_s):
                await self.wait()
        await self.kill()

    async def kill(self) -> None:
        """Send SIGKILL to the whole group. Returns when it is gone; raises Stalled."""
        self._asked_to_stop = True
        if not self.is_alive:
            return
        self._was_killed = True
        _kill_group(self.pid)
        with anyio.move_on_after(KILL_TIMEOUT_S) as scope:
            await self.wait()
        if scope.cancelled_caught:
            raise Stalled(
                f"{self.spec.name} (pid {self.pid}) is still there {KILL_TIMEOUT_S:.0f} s after "
                "SIGKILL: it hangs in the kernel (a driver or a file system)"
            )

    def dump_stacks(self) -> None:
        """Make the child write the stacks of all its threads to its log."""
        if self.is_alive:
            os.kill(self.pid, signal.SIGUSR1)

    def last_log_lines(self, n: int = 20) -> str:
        """The last `n` lines of this child, without its predecessor's in the same file."""
        return read_last_lines(self.spec.log_path, num_lines=n, offset=self._log_offset)

    def died(self, *, doing: str) -> ChildDied:
        """The error for a child that ended unasked, with its exit reason and last log lines."""
        age_s = time.monotonic() - self.started_at
        return ChildDied(
            f"{self.spec.name} died {age_s:.0f} s after start while {doing}: {self.exit_reason}. "
            f"{self._log_tail()}"
        )

    def stalled(self, *, asked: str, silent_s: float) -> Stalled:
        """The error for a child that did not answer, with its last log lines."""
        return Stalled(
            f"{self.spec.name} (pid {self.pid}) was silent for {silent_s:.0f} s; asked: {asked}. "
            f"{self._log_tail()}"
        )

    def _log_tail(self) -> str:
        lines = read_ending(self.spec.log_path, offset=self._log_offset)
        if not lines:
            return f"It wrote nothing to {self.spec.log_path}"
        behind = limit_behind(lines).lstrip()
        return f"{behind}{' ' if behind else ''}Last lines of {self.spec.log_path}:\n{lines}"

    def _reap(self) -> None:
        """Kill the rest of the group while the dead leader holds its number; reap the leader."""
        _kill_group(self.pid)
        code = self._process.wait()
        if self._was_killed and code == -signal.SIGKILL:
            reason = f"killed by forge (did not end within {self.spec.stop_grace_s:g} s)"
        else:
            reason = describe_exit(code) + (", stopped by forge" if self._asked_to_stop else "")
        self._exit_reason = reason
        os.close(self._pidfd)
        os.close(self._lease_fd)
        if self._observer is not None:
            self._observer.ended(self.spec.name, pid=self.pid, reason=reason)


@asynccontextmanager
async def open_child(
    spec: ChildSpec, *, observer: ProcessObserver | None = None
) -> AsyncGenerator[Child]:
    """Start a child, wait until it is ready, yield it, and stop it at the end.

    Raises ChildDied if it ended before it was ready, Stalled if it was not ready within
    `ready_timeout_s`, MachineError if the process could not be created.
    """
    child = _spawn(spec, observer=observer)
    try:
        if spec.socket_path is not None:
            await _wait_ready(child, socket_path=spec.socket_path)
        yield child
    finally:
        with anyio.CancelScope(shield=True):
            await child.stop()


@contextmanager
def thread_for_children() -> Generator[None]:
    """Lets the current thread start children, as the main thread may. All of them must end inside:
    a death signal fires when the thread that spawned the child ends."""
    thread = threading.get_ident()
    _threads_for_children.add(thread)
    try:
        yield
    finally:
        _threads_for_children.discard(thread)


def describe_exit(code: int) -> str:
    """A `returncode` of `subprocess` for people."""
    if code >= 0:
        return f"exit {code}"
    return f"killed by signal {-code}{SIGNAL_HINTS.get(-code, '')}"


def _spawn(spec: ChildSpec, *, observer: ProcessObserver | None) -> Child:
    is_main = threading.current_thread() is threading.main_thread()
    is_allowed = is_main or threading.get_ident() in _threads_for_children
    assert is_allowed, f"{spec.name}: its death signal would fire with this thread"
    try:
        spec.log_path.parent.mkdir(parents=True, exist_ok=True)
        config_path = _write_config(spec)
        read_fd, write_fd = os.pipe()
    except OSError as error:
        raise MachineError(f"{spec.name} cannot be started: {error}") from error
    env = dict(spec.env) | {
        lease.LEASE_FD_VARIABLE: str(read_fd),
        lease.SUPERVISOR_VARIABLE: str(os.getpid()),
    }
    try:
        with spec.log_path.open("ab") as log:
            log_offset = log.seek(0, os.SEEK_END)
            process = subprocess.Popen(
                [*spec.argv, str(config_path)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=env, pass_fds=(read_fd,), start_new_session=True,
            )  # fmt: skip
    except OSError as error:
        os.close(write_fd)
        words = f"{spec.name} cannot be started: {spec.argv[0]}: {error.strerror}"
        raise MachineError(words) from error
    finally:
        os.close(read_fd)
    made: Any = {"process": process, "lease_fd": write_fd, "log_offset": log_offset}
    child = Child(spec, **made, observer=observer)
    logger.info("%s started: pid %d on %s", spec.name, child.pid, spec.devices)
    if observer is not None:
        observer.started(spec.name, pid=child.pid, devices=spec.devices, log_path=spec.log_path)
    return child


def _write_config(spec: ChildSpec) -> Path:
    """Write it beside the socket, in a private directory; without a socket, beside the log."""
    folder = spec.log_path.parent
    if spec.socket_path is not None:
        folder = check_socket_path(spec.socket_path).parent
    path = folder / f"{spec.name}.json"
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        json.dump(dict(spec.config), file, indent=1, default=os.fspath)
    return path.absolute()


async def _wait_ready(child: Child, *, socket_path: Path) -> None:
    """Return when /health is 200. A refused connection or another status means not ready yet."""
    pause_s = FIRST_PROBE_S
    with anyio.move_on_after(child.spec.ready_timeout_s):
        async with open_client(socket_path, timeout_s=PROBE_TIMEOUT_S) as client:
            while child.is_alive:
                try:
                    answer = await send(
                        client, "GET", "/health", server=child.spec.name, timeout_s=PROBE_TIMEOUT_S
                    )
                    if answer.status == 200:
                        return
                except (ChildDied, Stalled):
                    pass  # it is not ready
                await anyio.sleep(pause_s)
                pause_s = min(pause_s * 2, LONGEST_PROBE_S)
    if not child.is_alive:
        raise child.died(doing="starting")
    child.dump_stacks()
    await anyio.sleep(0.1)
    raise child.stalled(asked="GET /health until 200", silent_s=child.spec.ready_timeout_s)


def _kill_group(pgid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # empty, or of another user
        os.killpg(pgid, signal.SIGKILL)


TAIL_BYTES = 64 * 1024
"""Bytes that are read from the end: enough for any number of lines that a person reads."""
TRACEBACK = "Traceback (most recent call last):"
"""Last words of the line above the frames of an exception."""


def read_last_lines(path: Path, *, num_lines: int, offset: int = 0) -> str:
    """The last lines after byte `offset`, without control characters; empty without a file."""
    return "\n".join(_read_lines(path, offset)[-num_lines:])


def read_ending(path: Path, *, num_lines: int = 20, offset: int = 0) -> str:
    """The last lines, and above them the last exception if it stands further up: libraries write
    lists while a process ends."""
    lines = _read_lines(path, offset)
    starts = [i for i, line in enumerate(lines) if line.endswith(TRACEBACK)]
    rest = range(starts[-1] + 1, len(lines) - num_lines) if starts else ()
    cause = next((lines[i] for i in rest if not lines[i].startswith(" ")), None)
    if cause is None:
        return "\n".join(lines[-num_lines:])
    return "\n".join([cause, "...", *lines[2 - num_lines :]])


def _read_lines(path: Path, offset: int) -> list[str]:
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(offset, end - TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    # Without characters that move the cursor or colour a terminal; tabs stay.
    chars = ((c for c in line if c == "\t" or c.isprintable()) for line in text.splitlines())
    return [line for line in map("".join, chars) if line.strip()]


def logged_error(error: ForgeError, *kinds: type[ForgeError]) -> ForgeError | None:
    """The error that a child logged before it ended, with its message alone; None if `error`, which
    has the last lines of its log, shows none of these kinds."""
    for kind in kinds:
        _, mark, message = str(error).rpartition(f" {kind.__name__}: ")
        if mark:
            return kind(message.splitlines()[0])
    return None
