"""Draws of small problems, made on the CPU for a card: as many at once as there are cores.

Called by `references.py`. An oracle on a card needs a context, which the driver makes one at a time
and which takes longer than most draws, and a turn on the card, for which timed calls wait. A small
problem has neither: question 2 accepts what is near to float64, so eager's own roundings on that
card are no demand. It is drawn on the card where a CPU says less: where nothing is computed in
float64, floats become integers (what is out of range becomes another one there), the source names
the card, or anything fails.
"""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.channel.shm import LayoutError, returned_memory
from forge.evalpool.judge.trial.draws import Delivered
from forge.evalpool.judge.trial.oracles import OutOfMemory

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.evalpool.judge.children.spawner import SandboxedChild
    from forge.evalpool.judge.trial.oracles import Oracles
    from forge.records.problem import ReferenceModule

SMALL_BYTES = 8 << 20
"""Inputs of two sets, and parameters, of what is small: about 0.3 s of a core."""
SMALL_WORK = 1 << 26
"""FLOPs, and bytes of all results, of a call of it: one in float64 takes 10 ms."""
ROOM_BYTES = 512 << 20
"""Memory for all sets. It takes up what is written."""
ON_CARD = re.compile(r"\bcuda\b")
"""In a source that names the card."""
MAX_REMEMBERED = 4096


class SmallDraws:
    """Safe to call from several threads."""

    def __init__(
        self, oracles: Oracles, *, request: Callable[..., dict[str, Any]], timeout_s: float
    ) -> None:
        """
        Args:
            oracles: without the card's files.
            request: body of an oracle's request for a problem.
        """
        self._oracles = oracles
        self._request = request
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._others: dict[int, int] = {}
        """Bytes that problems need which are drawn on the card, by hash of their sources."""

    def draw(self, problem: ReferenceModule) -> Delivered | int:
        """A draw of a small problem; for another one the bytes that it needs, 0 if unknown.
        Raises ZygoteGone."""
        key = hash((problem.source, problem.precision, problem.entry_point))
        if key in self._others or ON_CARD.search(problem.source):
            return self._others.get(key, 0)
        needed = 0
        try:
            with self._oracles.lent(problem) as oracle:
                found = self._ask(oracle, problem)
                if isinstance(found, Delivered):
                    return found
        except _Other as other:
            needed = other.needed_bytes
        except (frames.PeerGone, frames.DeadlinePassed, frames.FrameError, OutOfMemory):
            pass
        except (LayoutError, KeyError, TypeError, ValueError, IndexError):
            pass
        with self._lock:
            if len(self._others) >= MAX_REMEMBERED:
                self._others.clear()
            self._others[key] = needed
        return needed

    def clear(self) -> None:
        """Ends oracles that wait for a problem."""
        self._oracles.clear()

    def _ask(self, oracle: SandboxedChild, problem: ReferenceModule) -> Delivered | None:
        body = self._request(problem, device="cpu", plain=False, wide=True)
        body |= {"max_bytes": ROOM_BYTES, "small": [SMALL_BYTES, SMALL_WORK]}
        with returned_memory(ROOM_BYTES) as fd:
            frames.send(oracle.sock, Kind.PROBLEM, body, fds=(fd,))
            deadline = time.monotonic() + self._timeout_s
            expected = (Kind.LAYOUT, Kind.FAILED)
            answer = frames.receive(oracle.sock, deadline=deadline, expected=expected)
            if answer.kind is Kind.FAILED:
                is_large = answer.body.get("type") == "NotSmall"
                raise _Other(int(answer.body["message"]) if is_large else 0)
            if not answer.body.get("kinds"):
                return None
            return Delivered.taken(answer.body, fd, max_bytes=ROOM_BYTES)


class _Other(Exception):
    """The oracle has not drawn: it ends."""

    def __init__(self, needed_bytes: int) -> None:
        super().__init__(needed_bytes)
        self.needed_bytes = needed_bytes
