"""Untrusted: serves the judge in a sandboxed child without a GPU; captures candidates.

    main           one candidate, whatever it does
    serve_plain    one plain candidate after the other (`trial/host_code.py`): it starts nothing,
                   loads nothing, and finds compiled what an earlier one compiled

Forked by the zygote, which has called `warmup.warm_up()` and forgets forge's modules before this
runs: nothing here imports anything later. Sends nothing but the candidate's own program, its
questions or its failure.
"""

from __future__ import annotations

import gc
import linecache
import mmap
import socket
import sys
from time import monotonic
from typing import Any

import torch
from triton.runtime import jit

from forge.evalpool.judge.capture import exchange
from forge.evalpool.judge.capture.exchange import Ask
from forge.evalpool.judge.capture.failures import CaptureFailed, Unsupported
from forge.evalpool.judge.capture.session import capture
from forge.evalpool.judge.capture.stage import Stage
from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import IDLE_S, Kind
from forge.evalpool.judge.program import wire
from forge.evalpool.judge.program.format import Program

FILE = "/tmp/work/candidate.py"
COLLECTED_EVERY = 8
"""Plain candidates behind which Python collects what refers to itself: it takes 2 ms."""
MAX_GROWTH_BYTES = 256 << 20
"""Address space that plain candidates may leave in use: a later one would find none, and be blamed.
A module's tensors last until its functions, which refer to it, are collected."""
SIZES = "/proc/self/statm"


def main(sock: socket.socket, *, file: str = FILE) -> None:
    """Captures the candidate of one CANDIDATE frame. Its body is the request of
    `session.capture`, with `code`."""
    deadline = monotonic() + IDLE_S
    request = frames.receive(sock, deadline=deadline, expected=(Kind.CANDIDATE,)).body

    def ask(program: Program) -> Any:
        exchange.send_program(sock, Kind.ASK, {}, wire.dumps(program))
        found = frames.receive(sock, deadline=deadline, expected=(Kind.ANSWER,)).body["answer"]
        if found is None:
            words = "the judge cannot read this value: compute on the device, without .item()"
            raise Unsupported(f"{words} or bool()")
        return found

    _report(sock, request, ask=ask, file=file)


def serve_plain(sock: socket.socket, *, file: str = FILE) -> None:
    """Captures the plain candidate of one CANDIDATE frame after the other, and forgets each on
    RELEASE. Asks the judge nothing: a candidate with a question fails as unsupported. Returns, so
    that the process ends, where candidates have left too much in use."""
    deadline = monotonic() + IDLE_S
    drawn = torch.get_rng_state()
    most = _used_bytes() + MAX_GROWTH_BYTES
    count = 0
    while True:
        request = frames.receive(sock, deadline=deadline, expected=(Kind.CANDIDATE,)).body
        _report(sock, request, ask=None, file=file)
        del request
        frames.receive(sock, deadline=deadline, expected=(Kind.RELEASE,))
        _forget(file)
        torch.set_rng_state(drawn)
        count += 1
        if not count % COLLECTED_EVERY or _used_bytes() > most:
            gc.collect()
        if _used_bytes() > most:
            return
        frames.send(sock, Kind.DONE, {})


def _report(sock: socket.socket, request: dict[str, Any], *, ask: Ask | None, file: str) -> None:
    notes: dict[str, Any] = {}
    try:
        data = wire.dumps(capture(request, request["code"], ask=ask, file=file, notes=notes))
    except CaptureFailed as error:
        frames.send(sock, Kind.FAILED, error.body())
        return
    exchange.send_program(sock, Kind.DONE, notes, data)


def _used_bytes() -> int:
    """Address space of this process, which its limit counts."""
    with open(SIZES) as file:
        return int(file.read().split()[0]) * mmap.PAGESIZE


def _forget(file: str) -> None:
    """Takes a plain candidate's module out of the tables of Python and Triton."""
    Stage.get().end()
    sys.modules.pop("candidate", None)
    linecache.cache.pop(file, None)
    names: Any = getattr(jit, "_triton_jit_function_registry", {})  # not in Triton 3.6
    for name in [name for name in names if name.startswith("candidate:")]:
        del names[name]
