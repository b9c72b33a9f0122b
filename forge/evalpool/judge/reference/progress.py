# pyright: strict
"""Reports to the judge that a draw goes on, and how long the reference itself has computed.

Called by the oracle on a CPU. The judge's limit is one for the reference: passes over tensors for
own errors and witnesses, which are ours, do not count, nor does the time that other processes had
the processor. A draw of less than EVERY_S sends nothing.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.numbers.called import CLOCK

if TYPE_CHECKING:
    import socket
    from collections.abc import Generator

EVERY_S = 1.0


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
