# pyright: strict
"""The judge's handle on its zygote: start it, have it fork children, have them killed; and children
that serve one candidate or problem after the other, since to fork and end one takes longer.

Promise: a child is returned only after the judge has looked at its sandbox from outside; a zygote
that does not answer is `ZygoteGone`, which is our fault (infra) and never a verdict.

A child is kept only while nothing of a candidate can stay in it: its owner decides (`give_back` or
`end`). RELEASE tells a child to forget its candidate, DONE says that it has.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.children.zygote import CANDIDATE_ROLES, SIGNALLED
from forge.evalpool.judge.sandbox import processes, proof, root
from forge.evalpool.judge.sandbox.caps import CANDIDATE_UIDS, OTHER_UIDS, Caps, CapsKind, Cores
from forge.evalpool.judge.sandbox.enter import Isolation
from forge.evalpool.judge.sandbox.root import home_files
from forge.process.child import describe_exit

START_TIMEOUT_S = 60.0
"""Maximum time of a zygote's start, for imports on a busy machine."""
FORK_TIMEOUT_S = 10.0
EXIT_TIMEOUT_S, EXIT_PAUSE_S = 1.0, 0.001
"""Maximum time, and pause between two looks, from the end of a channel to the end of its child,
which ends with all that it started."""
CANDIDATE_ROLE = "capture"
"""Role of the children that have the Python of one candidate each."""
WIDE = ("oracle",)
"""Roles whose children have all cores of their judge on a machine without cards."""
HARVEST = {"PYTHONHASHSEED": "0", "SYMPY_CACHE_SIZE": "None"}
"""Variables of a harvest's zygote: an answer is the same in each process, and Sympy remembers all
that it finds about sizes."""
PASSED_ON = (*root.PASSED_ON, "PYTHONPATH", "PYTHONSAFEPATH")
"""The only variables that the zygote inherits."""


class ZygoteGone(Exception):
    """The zygote died or is silent: an infra error, for which no candidate is blamed."""


class UnusableInstallation(ZygoteGone):
    """The zygote cannot import or use torch or Triton."""


class SandboxRefused(ZygoteGone):
    """The machine forbids a step into the sandbox, or the sandbox does not hold."""


class LimitMet(ZygoteGone):
    """A limit of this process or machine is too low for a child."""


FAILURES = {"installation": UnusableInstallation, "sandbox": SandboxRefused, "limit": LimitMet}
"""Errors by the kind that a FAILED frame names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxedChild:
    """A child that has been inspected and waits for work."""

    sock: socket.socket
    pid: int
    """Its pid in the zygote's namespace."""
    pid_here: int = 0
    """Its pid in the judge's namespace."""
    core: int | None = None
    uid: int | None = None
    """User id of its own; None unless the judge runs as root, in a sandbox."""
    generation: int = 0
    """Number of its zygote: the children of another zygote may have the same pids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of a child that closed its channel: its wait status, if it ran on and was killed for
    that, and if it was killed for its memory."""

    status: int
    was_running: bool
    is_out_of_memory: bool


class Spawner:
    """Owns one zygote at a time. `start` from the main thread only: death signals go by thread."""

    def __init__(
        self,
        *,
        isolation: str,
        folder: Path,
        memory_bytes: int,
        cores: tuple[int, ...] = (),
        num_children: int = 1,
        is_gpu: bool = False,
        gpu_minor: int | None = None,
        site_packages: tuple[str, ...] = (),
        harvests: str = "",
    ) -> None:
        """`site_packages`: distributions that references may import. `harvests`: `problems` or
        `answers` for the children of a harvest."""
        self.isolation = Isolation.NONE
        """The level in use on this machine, once ready."""
        self.versions: dict[str, str] = {}
        self._config = {
            "isolation": isolation, "folder": str(folder), "judge_pid": os.getpid(),
            "device": "gpu" if is_gpu else "cpu", "gpu_minor": gpu_minor,
            "site_packages": site_packages, "harvests": harvests,
        }  # fmt: skip
        self._has_uids = os.geteuid() == 0 and isolation != Isolation.NONE
        self._cores = Cores(cores)
        self._num_children = num_children
        kind = CapsKind.WATCH if is_gpu else CapsKind.RLIMIT
        self._caps = Caps(kind, memory_bytes=memory_bytes)
        self._is_gpu = is_gpu
        self._folder = folder
        self._memory_bytes = memory_bytes
        self._lock = threading.RLock()
        """Held during a request to the zygote: one at a time, and no replacement meanwhile."""
        self._process: subprocess.Popen[bytes] | None = None
        self._mounts: frozenset[str] = frozenset()
        self._sock: socket.socket | None = None
        self._generation = 0
        self._is_ready = False

    @property
    def caps(self) -> CapsKind:
        """Mechanism that caps the memory of children."""
        return self._caps.kind

    @property
    def is_running(self) -> bool:
        """True if children can be spawned: the zygote is ready, intact and alive."""
        return self._is_ready and self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Spawns the zygote; `wait_ready` must follow."""
        self.close()
        self._folder.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        proof.ask_for_credentials(ours)
        module = "forge.evalpool.judge.children.zygote"
        command = [sys.executable, "-m", module, str(theirs.fileno()), json.dumps(self._config)]
        env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        env |= {} if self._is_gpu else root.NO_CARDS
        env |= {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
        env |= {"PATH": "/usr/bin:/bin", "OMP_WAIT_POLICY": "passive"}  # of an oracle's threads
        env |= HARVEST if self._config["harvests"] else {}
        self._process = subprocess.Popen(
            command, env=env, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL
        )
        theirs.close()
        with self._lock:
            self._sock, self._generation = ours, self._generation + 1

    def wait_ready(self) -> None:
        """Raises ZygoteGone: where namespaces are forbidden, with the step that was refused; and
        UnusableInstallation."""
        assert self._sock is not None
        try:
            pid, frame = _greeting(self._sock, Kind.READY, timeout_s=START_TIMEOUT_S)
            self._mounts = proof.read_mounts(pid) | {"/tmp"}
        except frames.PeerGone as error:
            raise ZygoteGone(f"the zygote {self._how_it_ended()} while it started") from error
        except (frames.DeadlinePassed, frames.FrameError, OSError) as error:
            raise ZygoteGone(f"the zygote did not get ready: {error}") from error
        self.isolation = Isolation(frame.body.pop("isolation"))
        self.versions = {name: str(value) for name, value in frame.body.items()}
        self._is_ready = True
        self._try_sandbox()

    def spawn(self, *, role: str, source: str = "") -> SandboxedChild:
        """A new child, inspected, with a user id of its own. It gets the configs of models that
        `source`, the reference that it is to run, names. Raises ZygoteGone or WeakSandbox."""
        ours, theirs = socket.socketpair()
        uids = CANDIDATE_UIDS if role in CANDIDATE_ROLES else OTHER_UIDS
        uid = uids.take() if self._has_uids else None
        core = self._cores.take()
        cores = self._cores.every if role in WIDE and not self._is_gpu else (core,)
        try:
            proof.ask_for_credentials(ours)
            body = {
                "role": role, "uid": uid, "cores": () if core is None else cores,
                "memory_bytes": None if self._is_gpu else self._memory_bytes,
                "num_siblings": self._num_children,
                "home_files": home_files(source) if self._config["site_packages"] else {},
            }  # fmt: skip
            with self._lock:
                answer = self._ask(Kind.SPAWN, body, fds=(theirs.fileno(),), answer=Kind.SPAWNED)
                generation = self._generation
        except BaseException:
            self._give_back(core, uid)
            ours.close()
            raise
        finally:
            theirs.close()
        pid = int(answer["pid"])
        child = SandboxedChild(sock=ours, pid=pid, core=core, uid=uid, generation=generation)
        try:
            pid_here = self._inspect(child, role=role)
            self._caps.enclose(pid_here)
        except ZygoteGone as error:
            status = os.waitstatus_to_exitcode(self.end(child) or 0)
            raise ZygoteGone(f"{error} ({describe_exit(status)})") from error
        except BaseException:
            self.end(child)
            raise
        return dataclasses.replace(child, pid_here=pid_here)

    def _give_back(self, core: int | None, uid: int | None) -> None:
        self._cores.give_back(core)
        for uids in (CANDIDATE_UIDS, OTHER_UIDS):
            uids.give_back(uid)

    def is_current(self, child: SandboxedChild) -> bool:
        """True if its zygote has not been replaced; otherwise the child ended with it."""
        return child.generation == self._generation

    def ended(self, child: SandboxedChild) -> Ending:
        """Ends a child that closed its channel; the wait status is its own unless it still ran.
        Raises ZygoteGone also if it ended with its zygote."""
        deadline = time.monotonic() + EXIT_TIMEOUT_S
        while not (ended := processes.has_ended(child.pid_here)) and time.monotonic() < deadline:
            time.sleep(EXIT_PAUSE_S)
        is_out_of_memory = self._caps.release(child.pid_here)
        status = self.end(child)
        if status is None:
            raise ZygoteGone("a child ended with its zygote")
        return Ending(status=status, was_running=not ended, is_out_of_memory=is_out_of_memory)

    def end(self, child: SandboxedChild) -> int | None:
        """Kills a child with all that it started. Returns its wait status, None if it ended with a
        zygote that has been replaced. Raises ZygoteGone."""
        child.sock.close()
        self._caps.release(child.pid_here)
        try:
            with self._lock:
                if not self.is_current(child):
                    return None
                answer = self._ask(Kind.REAP, {"pid": child.pid}, answer=Kind.REAPED)
        finally:
            self._give_back(child.core, child.uid)
        if answer["status"] is None:
            raise ZygoteGone(f"the zygote knows no child {child.pid}")
        return int(answer["status"])

    def close(self) -> None:
        """Ends the zygote and with it every child."""
        self._is_ready = False
        if self._sock is not None:
            self._sock.shutdown(socket.SHUT_RDWR)  # a thread that waits for an answer has the lock
            with self._lock:
                self._sock.close()
                self._sock = None
        if (launcher := self._process) is not None:
            # It ends its zygote: at once if that is pid 1, else with every child's group.
            launcher.send_signal(signal.SIGTERM)
            try:
                launcher.wait(timeout=FORK_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                launcher.kill()
                launcher.wait()
            self._process = None

    def _try_sandbox(self) -> None:
        """Tries forbidden actions in a child of our own code. Raises ZygoteGone if one works."""
        if self.isolation is Isolation.NONE:
            return
        forbidden = self._folder.with_suffix(".forbidden")
        forbidden.write_text("of the judge")
        body = {"forbidden": str(forbidden), "judge_pid": os.getpid()}
        try:
            child = self.spawn(role="probe")
            deadline = time.monotonic() + FORK_TIMEOUT_S
            try:
                frames.send(child.sock, Kind.CALL, body)
                works = frames.receive(child.sock, deadline=deadline, expected=(Kind.DONE,)).body
            finally:
                self.end(child)
        except (frames.PeerGone, frames.DeadlinePassed, proof.WeakSandbox) as error:
            kind = SandboxRefused if isinstance(error, proof.WeakSandbox) else ZygoteGone
            raise kind(f"the sandbox {self.isolation} could not be tried: {error}") from error
        finally:
            forbidden.unlink(missing_ok=True)
        if works["works"]:
            self._is_ready = False
            raise SandboxRefused(f"the sandbox {self.isolation} does not stop {works['works']}")

    def _how_it_ended(self) -> str:
        """Text about the end of a launcher that hung up, which ends as its zygote did."""
        assert self._process is not None
        try:
            code = self._process.wait(timeout=EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return "hung up"
        return f"ended: {describe_exit(SIGNALLED - code if code > SIGNALLED else code)}"

    def _inspect(self, child: SandboxedChild, *, role: str) -> int:
        try:
            pid, _ = _greeting(child.sock, Kind.HELLO, timeout_s=FORK_TIMEOUT_S)
            mounts = self._mounts - root.find_hidden(self._mounts, role=role)
            proof.check_sandbox(pid, isolation=self.isolation, uid=child.uid, mounts=mounts)
        except (frames.PeerGone, frames.DeadlinePassed, frames.FrameError, OSError) as error:
            raise ZygoteGone(f"a forked child gave no hello: {error}") from error
        child.sock.setsockopt(socket.SOL_SOCKET, proof.SO_PASSCRED, 0)
        return pid

    def _ask(
        self, kind: Kind, body: dict[str, Any], *, answer: Kind, fds: tuple[int, ...] = ()
    ) -> dict[str, Any]:
        with self._lock:
            if self._sock is None or not self._is_ready:
                raise ZygoteGone("no zygote is running")
            try:
                frames.send(self._sock, kind, body, fds=fds, timeout_s=FORK_TIMEOUT_S)
                deadline = time.monotonic() + FORK_TIMEOUT_S
                return frames.receive(self._sock, deadline=deadline, expected=(answer,)).body
            except (frames.PeerGone, frames.DeadlinePassed, frames.FrameError) as error:
                self._is_ready = False
                words = f"the zygote was asked to {kind.name.lower()} and: {error}"
                raise ZygoteGone(words) from error


def _greeting(sock: socket.socket, kind: Kind, *, timeout_s: float) -> tuple[int, frames.Frame]:
    """The pid of who says that it is ready, and its frame. Only forge's own code has run in it:
    FAILED is an error. Raises ZygoteGone, PeerGone, DeadlinePassed, FrameError and OSError."""
    deadline = time.monotonic() + timeout_s
    sock.settimeout(timeout_s)
    pid = proof.peer_pid(sock)
    frame = frames.receive(sock, deadline=deadline, expected=(kind, Kind.FAILED))
    if frame.kind is Kind.FAILED:
        error = FAILURES.get(str(frame.body.get("kind")), ZygoteGone)
        raise error(str(frame.body.get("message")))
    return pid, frame


MAX_SERVED = 256
"""Candidates or problems of one child: what leaks in a library stays small."""
MAX_IDLE = 16
RELEASE_TIMEOUT_S = 5.0


@dataclass(slots=True)
class Kept:
    """A child and its past."""

    child: SandboxedChild
    num_served: int = 0


class KeptChildren:
    """The children of one role of one judge. Safe to call from several threads."""

    def __init__(self, spawner: Spawner, *, role: str, is_released: bool = True) -> None:
        """`is_released`: a child has to forget what it served; others have forgotten it when they
        answer."""
        self.spawner = spawner
        self._role = role
        self._is_released = is_released
        self._lock = threading.Lock()
        self._idle: list[Kept] = []
        """The one that worked last is the last."""

    @property
    def can_keep(self) -> bool:
        """False without a sandbox: a candidate could enter the process that serves the next one."""
        return self.spawner.isolation is not Isolation.NONE

    def take(self, *, source: str = "") -> Kept:
        """A child that serves nobody; `source` as of `Spawner.spawn`. Raises as that."""
        while True:
            with self._lock:
                kept = self._idle.pop() if self._idle else None
            if kept is None:
                return self.fresh(source=source)
            if self.spawner.is_current(kept.child) and self._is_ready(kept.child):
                return kept
            self.end(kept)

    def fresh(self, *, source: str = "") -> Kept:
        """A child that has served nobody. As `take`."""
        return Kept(self.spawner.spawn(role=self._role, source=source))

    def give_back(self, kept: Kept) -> None:
        """Keeps a child for another one, or ends it. Does not wait for it."""
        kept.num_served += 1
        with suppress(frames.PeerGone, frames.DeadlinePassed):
            if kept.num_served < MAX_SERVED and self.can_keep:
                if self._is_released:
                    frames.send(kept.child.sock, Kind.RELEASE, {}, timeout_s=RELEASE_TIMEOUT_S)
                with self._lock:
                    if len(self._idle) < MAX_IDLE:
                        self._idle.append(kept)
                        return
        self.end(kept)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for kept in idle:
            self.end(kept)

    def end(self, kept: Kept) -> None:
        """Ends a child that serves nobody else."""
        with suppress(ZygoteGone):
            self.spawner.end(kept.child)

    def _is_ready(self, child: SandboxedChild) -> bool:
        """True once a child has given up its last candidate, or if it says nothing and lives."""
        if not self._is_released:
            poll = select.poll()
            poll.register(child.sock, select.POLLIN)
            return not poll.poll(0)
        deadline = time.monotonic() + RELEASE_TIMEOUT_S
        try:
            frames.receive(child.sock, deadline=deadline, expected=(Kind.DONE,))
        except (frames.PeerGone, frames.DeadlinePassed, frames.FrameError):
            return False
        return True
