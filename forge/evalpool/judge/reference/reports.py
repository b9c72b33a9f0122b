# pyright: strict
"""Reports of a reference's child to the judge: a failure, or that a draw goes on.

Progress is reported by the oracle on a CPU, with the time that the reference has computed. The
judge's limit is one for the reference: passes over tensors that are ours do not count, nor does the
time that other processes had the processor. A draw of less than EVERY_S sends nothing.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Generator
from contextlib import contextmanager

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.channel.words import needs_card
from forge.evalpool.judge.numbers.called import CLOCK, Unjudgeable

EVERY_S = 1.0
MAX_CHARACTERS = 1000


@contextmanager
def reported(sock: socket.socket) -> Generator[None]:
    """Reports before calls of the reference in the block, at most once in EVERY_S."""
    last = time.monotonic()

    def report(seconds: float) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY_S:
            frames.send(sock, Kind.PROGRESS, {"reference_s": round(seconds, 3)})
            last = time.monotonic()

    CLOCK.start(report)
    try:
        yield
    finally:
        CLOCK.stop()


def describe(error: BaseException) -> dict[str, str]:
    """Type and message of an error, for a FAILED frame."""
    kind, message = type(error).__name__, str(error)
    if needs_card(message):
        kind = Unjudgeable.__name__
        message = (
            "its code asks for a GPU, and this judge computes on the CPU: leave devices out of the"
            " problem's file, or judge it on a GPU"
        )
    return {"type": kind, "message": message[:MAX_CHARACTERS]}
