"""The executor's process: holds one card's context and runs programs, one after another.

A fork of the nursery, never of the zygote; no candidate's Python ever runs here. It has no
seed, no expected output and no verdict: it gets a program, its binaries and a block of memory with
inputs, and answers with outputs in the same block and with times.

    LOAD    program, binaries, block ─▶ modules loaded, buffers mapped         ─▶ DONE | REFUSED
    RUN     one call, each step awaited ─▶ outputs, values, what was written outside of its tensor
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
import time
from typing import TYPE_CHECKING, Any

import torch

from forge.evalpool.judge import linux
from forge.evalpool.judge.compiler.binary import Binary, Failure, FailureKind, parse_binary
from forge.evalpool.judge.execute import messages
from forge.evalpool.judge.execute.call import Call
from forge.evalpool.judge.execute.gpu.arena import Placement, Pool, Sealed
from forge.evalpool.judge.execute.gpu.choices import Tuner
from forge.evalpool.judge.execute.gpu.driver import Driver, DriverError
from forge.evalpool.judge.execute.gpu.exchange import Exchange
from forge.evalpool.judge.execute.gpu.places import bytes_at
from forge.evalpool.judge.execute.gpu.run import CannotRun, Faulted, Loaded, Progress, failed
from forge.evalpool.judge.execute.gpu.timing import Flush, Timer
from forge.evalpool.judge.execute.messages import MAX_BLOB_BYTES, Message, PeerEnded
from forge.evalpool.judge.program import wire
from forge.evalpool.judge.program.format import Section

if TYPE_CHECKING:
    from forge.evalpool.judge.execute.messages import Received

FAULT_STATUS, CRASH_STATUS = 3, 70
"""Exit statuses after a program's fault, and after one of ours."""


class Session:
    """One program from its LOAD to its UNLOAD."""

    def __init__(self, asked: Received, *, pool: Pool, stream: Any, progress: Progress) -> None:
        """Raises CannotRun, with nothing left loaded."""
        body, blob = asked.body, memoryview(asked.blob)
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
        torch.backends.cuda.matmul.allow_tf32 = bool(body["tf32"])
        torch.backends.cudnn.allow_tf32 = bool(body["tf32"])
        self._loaded = Loaded(
            program,
            binaries,
            pool=pool,
            stream=stream,
            progress=progress,
            is_guarded=bool(body["guarded"]),
        )
        try:
            block = None
            if asked.fds:
                block = Sealed(pool, num_bytes=int(body["block_bytes"]), fd=asked.fds[0])
            self._exchange = Exchange(loaded=self._loaded, pool=pool, block=block)
        except BaseException:
            self._loaded.close()
            raise
        self._timer: Timer | None = None
        self._is_placed = False

    def run(self, body: dict[str, Any]) -> dict[str, Any]:
        """One call. Raises CannotRun or Faulted, as all below."""
        loaded, call, slack = self._loaded, Call.parse(body["call"]), int(body["slack"])
        is_checked = bool(body["checked"])
        self._place(Placement(body["placement"]), is_direct=bool(body["direct"]))
        self._exchange.prepare(call, slack=slack, is_checked=is_checked)
        loaded.run(Section.FORWARD, is_checked=is_checked)
        self._synchronize()
        changed = self._exchange.collect(call)
        return {
            "values": loaded.values,
            "changed": changed,
            "written": loaded.places.written_slack(slack),
            "num_launches": loaded.num_launches,
        }

    def time(self, body: dict[str, Any], flush: Flush) -> dict[str, Any]:
        timer = self._timed(flush)
        timed = timer.calls([Call.parse(one) for one in body["calls"]])
        return {
            "calls": [one.body() for one in timed],
            "dry_us": timer.dry(),
            "no_graph": timer.no_graph,
        }

    def nodes(self, body: dict[str, Any], flush: Flush) -> dict[str, Any]:
        timer = self._timed(flush)
        times = timer.by_node(Call.parse(body["call"]), num_runs=int(body["num_runs"]))
        steps = [step.says() for step in self._loaded.forward]
        return {"nodes": [{**one, "us": us} for one, us in zip(steps, times, strict=True)]}

    def tune(self, body: dict[str, Any], flush: Flush) -> dict[str, Any]:
        self._place(Placement.START, is_direct=True)
        tuned = Tuner(self._loaded, self._exchange, flush).tune(Call.parse(body["call"]))
        self._synchronize()
        return {"choices": [one.body() for one in tuned]}

    def close(self) -> None:
        """Waits for the card, then destroys the graph, the buffers and the modules, in this order.

        Raises Faulted.
        """
        self._synchronize()
        if self._timer is not None:
            self._timer.close()
        self._exchange.close()
        self._loaded.close()
        torch._C._cuda_clearCublasWorkspaces()

    def _timed(self, flush: Flush) -> Timer:
        self._place(Placement.START, is_direct=True)
        if self._timer is None:
            self._timer = Timer(self._loaded, self._exchange, flush)
        return self._timer

    def _place(self, placement: Placement, *, is_direct: bool) -> None:
        places = self._loaded.places
        is_same = placement is places.placement and is_direct == places.is_direct
        if is_same and self._is_placed:
            return
        if self._timer is not None:
            self._timer.close()
            self._timer = None
        places.place(placement, is_direct=is_direct)
        self._is_placed = True

    def _synchronize(self) -> None:
        try:
            self._loaded.driver.synchronize(self._loaded.stream.cuda_stream)
        except DriverError as error:
            raise failed(error, None) from error


class Executing:
    """Serves one judge on a socket until it hangs up."""

    def __init__(self, sock: socket.socket, progress: Progress) -> None:
        """Makes the context. Raises Unsupported."""
        began = time.monotonic()
        self._sock, self._progress = sock, progress
        torch.set_grad_enabled(False)
        torch.cuda.init()
        self._device = torch.cuda.current_device()
        self._stream = torch.cuda.Stream()
        self._driver = Driver("hip" if torch.version.hip else "cuda")
        self._pool = Pool(self._driver, device=self._device)
        self._flush: Flush | None = None
        self._session: Session | None = None
        torch.cuda.set_stream(self._stream)
        self._warm_up()
        self.seconds = time.monotonic() - began

    def serve(self) -> None:
        messages.send(self._sock, Message.READY, self._facts(), timeout_s=None)
        while True:
            asked = messages.receive(self._sock, max_blob_bytes=MAX_BLOB_BYTES)
            try:
                answer = self._do(asked)
            except CannotRun as error:
                body = {"reason": error.reason, "message": str(error)[:2000], "line": error.line}
                self._answer(Message.REFUSED, body)
            except (Faulted, DriverError) as error:
                step = error.step.says() if isinstance(error, Faulted) and error.step else None
                self._answer(Message.FAULT, {"message": str(error)[:2000], "step": step})
                os._exit(FAULT_STATUS)
            else:
                self._answer(Message.DONE, answer)
            finally:
                for fd in asked.fds:
                    os.close(fd)

    def _do(self, asked: Received) -> dict[str, Any]:
        if asked.kind is Message.LOAD:
            self._unload()
            self._session = self._loaded(asked)
            return {}
        if asked.kind is Message.UNLOAD:
            self._unload()
            return {}
        if self._session is None:
            raise CannotRun("request", "no program is loaded")
        if asked.kind is Message.RUN:
            return self._session.run(asked.body)
        if self._flush is None:
            self._flush = Flush()
        if asked.kind is Message.TIME:
            return self._session.time(asked.body, self._flush)
        if asked.kind is Message.NODES:
            return self._session.nodes(asked.body, self._flush)
        if asked.kind is Message.TUNE:
            return self._session.tune(asked.body, self._flush)
        raise CannotRun("request", f"{asked.kind.name} is no request")

    def _loaded(self, asked: Received) -> Session:
        try:
            return Session(asked, pool=self._pool, stream=self._stream, progress=self._progress)
        except DriverError as error:
            raise failed(error, None) from error

    def _unload(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        session.close()
        del session
        torch.cuda.empty_cache()

    def _answer(self, kind: Message, body: dict[str, Any]) -> None:
        messages.send(self._sock, kind, body, timeout_s=None)

    def _facts(self) -> dict[str, Any]:
        return {
            "device": torch.cuda.get_device_name(),
            "unit_bytes": self._pool.unit_bytes,
            "seconds": self.seconds,
            "pid": os.getpid(),
        }

    def _warm_up(self) -> None:
        """Loads the modules of torch's kernels that every program's checks need."""
        self._driver.shrink_buffers()
        sealed = Sealed(self._pool, num_bytes=self._pool.unit_bytes)
        with sealed.opened(stream=self._stream.cuda_stream) as address:
            flat = bytes_at(address, 1 << 12)
            flat.zero_()
            wide = flat.view(torch.int64)
            torch.stack([(flat != 1).any(), (wide != wide.clone()).any()]).tolist()
            for kind in (torch.float32, torch.float16, torch.bfloat16):
                flat.view(kind).copy_(wide.clone().view(kind))
        sealed.close()
        for kind in (torch.float32, torch.float16):  # libraries take a tenth of a second
            one = torch.ones(64, 64, dtype=kind, device="cuda")
            torch.addmm(one, one, one).sum()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


def serve(sock_fd: int, progress_fd: int) -> None:
    """Serves the judge until it hangs up. In a fork of the nursery."""
    drop_privileges()
    progress = Progress(mmap.mmap(progress_fd, mmap.PAGESIZE))
    os.close(progress_fd)
    with socket.socket(fileno=sock_fd) as sock:
        try:
            Executing(sock, progress).serve()
        except PeerEnded:
            os._exit(0)


def drop_privileges() -> None:
    """No core dumps, no new privileges, and no capabilities for root."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    if os.geteuid() == 0:
        linux.drop_bounding_set()
        linux.drop_capabilities()
