"""The executor's process: holds one card's context and runs programs, one after another.

A fork of the nursery, never of the zygote; no candidate's Python ever runs here. It has no
seed, no expected output and no verdict: it gets a program, its binaries and a block of memory with
inputs, and answers with outputs in the same block and with times.

    LOAD    program, binaries, block ─▶ modules loaded, buffers mapped         ─▶ DONE | REFUSED
    RUN     calls, each step awaited ─▶ outputs, values, what was written outside of its tensor
    TUNE    the choices ─▶ times of their alternatives
    TIME    calls ─▶ times
    NODES   one call ─▶ time of each node
    UNLOAD  ─▶ everything unmapped

A fault of the card answers FAULT with the step and ends the process; a kernel without end is the
judge's to end, which finds the step's number in the shared memory of `Progress`.
"""

from __future__ import annotations

import mmap
import os
import resource
import socket
from collections.abc import Sequence
from typing import Any

import torch
from pydantic_core import to_jsonable_python

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import IDLE_S, Frame, Kind, PeerGone
from forge.evalpool.judge.compiler.binary import Binary, Failure, FailureKind, parse_binary
from forge.evalpool.judge.driver.driver import DriverError
from forge.evalpool.judge.execute.call import Call, ChoiceReport, NodeTime, RunReport, parsed
from forge.evalpool.judge.execute.gpu.card import Card
from forge.evalpool.judge.execute.gpu.places import BadResult, Placement, Sealed
from forge.evalpool.judge.execute.gpu.run import CannotRun, Faulted, Loaded, Progress, failed
from forge.evalpool.judge.execute.gpu.timing import Exchange, Timer, Tuner
from forge.evalpool.judge.program import wire
from forge.evalpool.judge.program.format import Section
from forge.evalpool.judge.sandbox import linux

REQUESTS = (Kind.LOAD, Kind.RUN, Kind.TIME, Kind.NODES, Kind.TUNE, Kind.UNLOAD)
FAULT_STATUS, CRASH_STATUS = 3, 70
"""Exit statuses after a program's fault, and after one of ours."""


class Session:
    """One program from its LOAD to its UNLOAD."""

    def __init__(self, asked: Frame, *, card: Card, progress: Progress) -> None:
        """Raises CannotRun, with nothing left loaded."""
        program_fd, *rest = asked.fds
        body, blob = asked.body, memoryview(os.pread(program_fd, os.fstat(program_fd).st_size, 0))
        end = int(body["program_bytes"])
        program = wire.loads(bytes(blob[:end]))
        binaries: list[Binary | Failure] = []
        for num_bytes, header in body["binaries"]:
            if num_bytes is None:
                failure = Failure(kind=FailureKind.COMPILE_ERROR, message=str(header))
                binaries.append(failure)
                continue
            start, end = end, end + int(num_bytes)
            binaries.append(parse_binary(header, bytes(blob[start:end])))
        torch.backends.cuda.matmul.allow_tf32 = bool(body["tf32_products"])
        torch.backends.cudnn.allow_tf32 = bool(body["tf32"])
        self._loaded = Loaded(program, binaries, card=card, progress=progress)
        try:
            block = None
            if rest:
                block = Sealed(card.pool, num_bytes=int(body["block_bytes"]), fd=rest[0])
            self._exchange = Exchange(loaded=self._loaded, block=block)
        except BaseException:
            self._loaded.close()
            raise
        self._timer: Timer | None = None

    def run(self, calls: Sequence[Call]) -> list[RunReport]:
        """Runs calls, and waits after each step. Raises CannotRun or Faulted, as all below."""
        loaded, exchange = self._loaded, self._exchange
        ran: list[tuple[Call, Any, Any]] = []
        for call in calls:
            self._place(Placement(call.placement), is_direct=False)
            with loaded.chosen(call.choices):
                exchange.prepare(call, is_checked=True)
                loaded.run(Section.FORWARD, is_checked=True)
            self._loaded.synchronize()
            flags = exchange.collect(call)
            ran.append((call, flags, loaded.places.slack_flags(call.slack)))
        return [
            RunReport(
                changed=exchange.changed(call, flags), written=loaded.places.written_slack(slack)
            )
            for call, flags, slack in ran
        ]

    def nodes(self, call: Call) -> list[NodeTime]:
        times = self.timed().by_node(call)
        return [
            NodeTime(what=step.what, line=step.line, us=us)
            for step, us in zip(self._loaded.forward, times, strict=True)
        ]

    def tune(self, call: Call) -> list[ChoiceReport]:
        self._place(Placement.START, is_direct=True)
        tuned = Tuner(self._loaded, self._exchange).tune(call)
        self._loaded.synchronize()
        return tuned

    def close(self) -> None:
        """Waits for the card, then destroys the graph, the buffers and the modules, in this order.

        Raises Faulted.
        """
        self._loaded.synchronize()
        if self._timer is not None:
            self._timer.close()
        self._exchange.close()
        self._loaded.close()

    def timed(self) -> Timer:
        self._place(Placement.START, is_direct=True)
        if self._timer is None:
            self._timer = Timer(self._loaded, self._exchange)
        return self._timer

    def _place(self, placement: Placement, *, is_direct: bool) -> None:
        places = self._loaded.places
        if placement is places.placement and is_direct == places.is_direct:
            return
        if self._timer is not None:
            self._timer.close()
            self._timer = None
        places.place(placement, is_direct=is_direct)


class ContextLost(Exception):
    """A program's fault was reported; nothing more can run in this process."""


class Executing:
    """Serves one judge on a socket until it hangs up."""

    def __init__(self, sock: socket.socket, card: Card, progress: Progress) -> None:
        self._sock, self._card, self._progress = sock, card, progress
        self._session: Session | None = None

    def serve(self) -> None:
        """Raises PeerGone when the judge hangs up, ContextLost after a fault."""
        self._answer(Kind.READY, {})
        while True:
            asked = frames.asked(self._sock, *REQUESTS, takes_fds=True)
            try:
                answer = self._do(asked)
            except (CannotRun, BadResult, torch.OutOfMemoryError) as error:
                known = ("operation" if isinstance(error, BadResult) else "out_of_memory"), 0
                reason, line = (error.reason, error.line) if isinstance(error, CannotRun) else known
                body = {"reason": reason, "message": str(error)[:2000], "line": line}
                self._answer(Kind.REFUSED, body)
            except (Faulted, DriverError) as error:
                has_step = isinstance(error, Faulted) and error.step is not None
                self._answer(Kind.FAULT, {"message": str(error)[:2000], "step": has_step})
                raise ContextLost from error
            else:
                self._answer(Kind.DONE, {"answer": to_jsonable_python(answer)})
            finally:
                for fd in asked.fds:
                    os.close(fd)

    def _do(self, asked: Frame) -> Any:
        """The answer to a request; None to one that only loads or unloads."""
        if asked.kind in (Kind.LOAD, Kind.UNLOAD):
            self._unload()
            if asked.kind is Kind.LOAD:
                try:
                    self._session = Session(asked, card=self._card, progress=self._progress)
                except DriverError as error:
                    raise failed(error, None) from error
            return None
        if self._session is None:
            raise CannotRun("request", "no program is loaded")
        first, *others = parsed(list[Call], asked.body["calls"])
        match asked.kind:
            case Kind.RUN:
                return self._session.run([first, *others])
            case Kind.TIME:
                return self._session.timed().calls(others, warm_up=first)
            case Kind.NODES:
                return self._session.nodes(first)
            case _:
                return self._session.tune(first)

    def _unload(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        session.close()
        del session
        self._card.free()

    def _answer(self, kind: Kind, body: dict[str, Any]) -> None:
        frames.send(self._sock, kind, body, timeout_s=IDLE_S)


def serve(sock_fd: int, progress_fd: int) -> None:
    """Serves the judge until it hangs up. In a fork of the nursery."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    if os.geteuid() == 0:  # no capabilities for root
        linux.drop_bounding_set()
        linux.drop_capabilities()
    progress = Progress(mmap.mmap(progress_fd, mmap.PAGESIZE))
    os.close(progress_fd)
    with socket.socket(fileno=sock_fd) as sock:
        try:
            Executing(sock, Card(), progress).serve()
        except PeerGone:
            os._exit(0)
        except ContextLost:
            os._exit(FAULT_STATUS)
