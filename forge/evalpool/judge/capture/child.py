"""Untrusted: serves the judge in a sandboxed child without a GPU; captures one candidate.

Forked by the zygote, which has called `warmup.warm_up()` and forgets forge's modules before this
runs: nothing here imports anything later. Sends nothing but the candidate's own program, its
questions or its failure.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.capture import channel
from forge.evalpool.judge.capture.failures import CaptureFailed, Unsupported
from forge.evalpool.judge.capture.session import capture
from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.program import wire

if TYPE_CHECKING:
    import socket

    from forge.evalpool.judge.program.format import Program

IDLE_S = 1e9
"""A child waits for its judge for ever; the judge's end of the socket ends it."""
FILE = "/tmp/work/candidate.py"


def main(sock: socket.socket, *, file: str = FILE) -> None:
    """Captures the candidate of one CANDIDATE frame. Its body is the request of
    `session.capture`, with `code`."""
    deadline = time.monotonic() + IDLE_S
    request = frames.receive(sock, deadline=deadline, expected=(Kind.CANDIDATE,)).body

    def ask(kind: str, body: dict[str, Any], program: Program) -> Any:
        question = {"kind": kind, "body": body}
        channel.send_program(sock, Kind.ASK, question, wire.dumps(program))
        found = frames.receive(sock, deadline=deadline, expected=(Kind.ANSWER,)).body["answer"]
        if found is None:
            raise Unsupported(UNANSWERED[kind])
        return found

    try:
        data = wire.dumps(capture(request, request["code"], ask=ask, file=file))
    except CaptureFailed as error:
        frames.send(sock, Kind.FAILED, error.body())
        return
    channel.send_program(sock, Kind.DONE, {}, data)


UNANSWERED = {
    "value": "the judge cannot read this value: compute on the device, without .item() or bool()",
    "kernel": "the judge cannot tell registers and shared memory: choose the grid without them",
}
