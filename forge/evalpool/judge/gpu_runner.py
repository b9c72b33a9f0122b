"""Untrusted: runs one candidate, or a reference that is timed, on a GPU. The runner's GPU side.

Entered by the zygote in a fresh child; imports nothing of forge but the runner and the memory
calls, which the zygote has imported already.

    CALL context  ─▶ context, ahead of any candidate                                  ─▶ DONE
    CANDIDATE + memory ─▶ context, memory mapped                                 ─▶ DONE
    CANDIDATE     ─▶ import, construct, parameters, call 0                            ─▶ DONE
    CALL set k    ─▶ call on inputs k                                                 ─▶ DONE
    CALL timed    ─▶ flush, event, forward, event, outputs to the slots, synchronize ─▶ DONE
    CALL counted  ─▶ the same with torch's work counted, which takes time
    CALL dry      ─▶ the same without the forward: what the frames, flush and copies cost
    CALL profiled ─▶ one forward under torch's profiler: GPU time by kernel
    CALL let_go   ─▶ the candidate and its memory are gone; the next may come         ─▶ DONE
"""

from __future__ import annotations

import gc
import os
import socket
import sys
from functools import partial
from typing import Any

import torch
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from forge.evalpool.judge import gpu_memory, runner
from forge.evalpool.judge.gpu_session import SKIPPED, GpuSession, Streams


class Launches:
    """What stands between Triton and the candidate of the moment."""

    def __init__(self) -> None:
        self.session: GpuSession | None = None
        self._streams = Streams()
        self._block: gpu_memory.Block | None = None
        original, bench = JITFunction.run, Autotuner._bench

        def run(function: Any, *args: Any, warmup: bool, **kwargs: Any) -> Any:
            if warmup or self.session is None:
                return original(function, *args, warmup=warmup, **kwargs)
            kwargs["warmup"] = False
            return self.session.launched_on_gpu(original, function, args, kwargs)

        def benched(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            session = self.session
            if session is None:
                return bench(tuner, *args, **kwargs)
            session.skipped = SKIPPED
            try:
                return bench(tuner, *args, **kwargs)
            finally:
                session.skipped = ()

        JITFunction.run = run  # pyright: ignore[reportAttributeAccessIssue]
        Autotuner._bench = benched  # pyright: ignore[reportAttributeAccessIssue]

    def open(self, *, fd: int, num_bytes: int) -> None:
        """The memory of the next candidate; that of the one before is let go of."""
        self.let_go()
        self._block = gpu_memory.open_block(fd, num_bytes)

    def let_go(self) -> None:
        """Of a candidate and all memory that was its."""
        self.session = None
        sys.modules.pop("candidate", None)
        if self._block is None:
            return
        gc.collect()
        self._block.close()
        self._block = None
        torch.cuda.empty_cache()

    def begin(self, request: dict[str, Any], *, file: str) -> GpuSession:
        assert self._block is not None
        torch.backends.cuda.matmul.allow_tf32 = bool(request["tf32"])
        torch.backends.cudnn.allow_tf32 = bool(request["tf32"])
        torch._C._set_deterministic_algorithms(True, warn_only=True)
        memory = self._block.bytes()
        self.session = GpuSession(request, memory=memory, file=file, streams=self._streams)
        return self.session


def main(sock: socket.socket, *, file: str) -> None:
    """Serves the judge on `sock` until it hangs up: one candidate, or several in smoke checks.

    The memory comes first, alone: what fails then is not the candidate's. Nothing here remembers a
    session, or its memory would not go with it.
    """
    launches = Launches()
    num_candidates = 0
    while True:
        kind, asked, fds = runner._receive(sock)
        if fds or asked.get("context"):
            try:
                _prepare(launches, asked, fds)
            except Exception as error:
                words = {"stage": "device", "type": type(error).__name__}
                runner._send(sock, runner.FAILED, {**words, "message": str(error)[:1000]})
                return
            runner._send(sock, runner.DONE, {})
        elif kind == runner.CANDIDATE:
            num_candidates += 1  # Python keeps a file's lines by its name
            name = file.replace(".py", f"{num_candidates}.py")
            runner._answer(sock, launches.begin(asked, file=name), runner._first_call)
        elif asked.get("let_go"):
            launches.let_go()
            runner._send(sock, runner.DONE, {})
        elif launches.session is not None:
            runner._answer(sock, launches.session, partial(_do, asked=asked))


def _prepare(launches: Launches, asked: dict[str, Any], fds: list[int]) -> None:
    """The context, and the memory of the next candidate where it comes along."""
    if not fds:
        gpu_memory.make_context()
        return
    launches.open(fd=fds[0], num_bytes=asked["num_bytes"])
    torch.cuda.set_per_process_memory_fraction(asked["memory_share"])
    os.close(fds[0])


def _do(session: GpuSession, *, asked: dict[str, Any]) -> Any:
    session.is_ghost = bool(asked.get("ghost"))
    if asked.get("timed"):
        is_dry, is_counted = bool(asked.get("dry")), bool(asked.get("counted"))
        return session.timed_call(slots=asked["slots"], is_dry=is_dry, is_counted=is_counted)
    if asked.get("profiled"):
        return session.profiled_call()
    return session.call(asked["set"], slots=asked["slots"])
