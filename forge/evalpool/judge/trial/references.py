"""The draws of each problem, asked of oracles and kept for a few candidates.

Called by `trial.py`. Keeps the draws of a bounded number of problems, and has them made anew with
fresh OS-random seeds after `draws.draw.MAX_USES` candidates. All that comes from one judgement
to the next is the feedback, so sharing inputs among a few candidates tells them a few expected
numbers each, which is too much only where there are few (`Draw.is_used_up`).
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.channel.shm import LARGE_BYTES, LayoutError, returned_memory
from forge.evalpool.judge.channel.words import clean, is_out_of_memory, without_paths
from forge.evalpool.judge.trial.draws.failures import (
    KnownFailures,
    ProblemTooLarge,
    ReferenceFailed,
)
from forge.evalpool.judge.trial.draws.host import Delivered, HostDraw
from forge.evalpool.judge.trial.oracles import Oracles, OutOfMemory

if TYPE_CHECKING:
    import socket

    from forge.evalpool.judge.children.spawner import SandboxedChild, Spawner
    from forge.records.problem import ReferenceModule


MAX_PROBLEMS = 32
"""More than are usually played at once. Each holds 10 to 400 kB, and each change leaves holes
in the heap: 2.5 MB with 64 of them, half with 32."""
MAX_CACHED_BYTES = 256 << 20


class References:
    """Draws that oracles gave, kept. Safe to call from several threads."""

    def __init__(
        self,
        spawner: Spawner,
        *,
        num_sets: int,
        timeout_s: float,
        draw_timeout_s: float,
        uid: int | None,
        max_bytes: int,
        is_varied: bool = True,
    ) -> None:
        """
        Args:
            timeout_s: limit for the reference itself, and for any silence.
            draw_timeout_s: limit for a draw, most of which may be work of the judge's own.
            is_varied: draw inputs of several distributions and move parameters; else both are as
                the problem gives them.
        """
        self._oracles = Oracles(spawner, uid=uid, num_kept=1)
        self._num_sets = num_sets
        self._timeout_s = timeout_s
        self._draw_timeout_s = draw_timeout_s
        self._max_bytes = max_bytes
        self._is_varied = is_varied
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, HostDraw] = OrderedDict()
        self._failures = KnownFailures()
        self._ahead = ThreadPoolExecutor(1, "scales")

    def get(self, problem: ReferenceModule) -> HostDraw:
        """Raises ReferenceFailed, or ZygoteGone."""
        text = f"{problem.entry_point}\0{problem.precision}\0{problem.source}"
        key = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
        with self._lock:
            cached = self._cache.get(key)
            if cached is None or cached.draw.is_used_up:
                self._failures.require_unknown(key)
                self._make_room(key)
                with self._failures.noted(key):
                    cached = self._cache[key] = self._draw(problem)
                if cached.memory_bytes >= LARGE_BYTES:
                    # What fails there fails again, and is raised, at the comparison.
                    self._ahead.submit(cached.prepare)
            self._cache.move_to_end(key)
            while len(self._cache) > MAX_PROBLEMS or (
                len(self._cache) > 1 and self._size() > MAX_CACHED_BYTES
            ):
                self._cache.popitem(last=False)
            cached.draw.num_uses += 1
            return cached

    def end_idle(self) -> None:
        """Ends the oracle that waits for a problem, and a thread."""
        self._oracles.clear()
        self._ahead.shutdown(cancel_futures=True)
        self._ahead = ThreadPoolExecutor(1, "scales")

    def _make_room(self, key: str) -> None:
        """Drops what could not stay beside a new draw, before it is made: its memory is used again
        at once."""
        self._cache.pop(key, None)
        while self._size() > MAX_CACHED_BYTES:
            self._cache.popitem(last=False)

    def _size(self) -> int:
        return sum(one.memory_bytes * 4 for one in self._cache.values())

    def _draw(self, problem: ReferenceModule) -> HostDraw:
        """Draws inputs as the problem gives them alone, if any others end its oracle, and without
        results in float64 where there is no memory for them."""
        is_wide = self._is_varied
        try:
            try:
                return self._asked(problem, is_plain=not self._is_varied, is_wide=is_wide)
            except OutOfMemory:
                if not is_wide:
                    raise
                return self._asked(problem, is_plain=False, is_wide=False)
            except frames.PeerGone:
                return self._asked(problem, is_plain=True, is_wide=False)
        except OutOfMemory as error:
            words = f"its reference needs more than {self._max_bytes / 1e9:.3g} GB"
            raise _too_large(problem, f"{words} (judge.memory_bytes)") from error
        except frames.DeadlinePassed as error:
            limit = f"{self._timeout_s:g} s (judge.compile_timeout_s and judge.correct_timeout_s)"
            words = f"the reference of {problem.problem_id} gave no results within {limit}"
            raise ReferenceFailed(clean(words)) from error
        except (frames.PeerGone, frames.FrameError, LayoutError) as error:
            cause = f"{type(error).__name__}: {error}"
            words = f"the reference of {problem.problem_id} ended its oracle: {cause}"
            raise ReferenceFailed(clean(without_paths(words))) from error

    def _asked(self, problem: ReferenceModule, *, is_plain: bool, is_wide: bool) -> HostDraw:
        """A draw of an oracle's."""
        with self._oracles.lent(problem) as oracle:
            return self._ask(oracle, problem, is_plain=is_plain, is_wide=is_wide)

    def _ask(
        self, oracle: SandboxedChild, problem: ReferenceModule, *, is_plain: bool, is_wide: bool
    ) -> HostDraw:
        body = {
            "source": problem.source,
            "entry_point": problem.entry_point,
            "precision": problem.precision,
            "num_sets": self._num_sets,
            "device": "cpu",
            "reports": True,
            "tf32": False,
            "tf32_products": False,
            "max_bytes": self._max_bytes,
            "plain": is_plain,
            "moved": self._is_varied,
            "wide": is_wide,
        }
        with returned_memory(self._max_bytes) as fd:
            frames.send(oracle.sock, Kind.PROBLEM, body, fds=(fd,))
            answer = receive_answer(
                oracle.sock, timeout_s=self._timeout_s, draw_timeout_s=self._draw_timeout_s
            )
            if answer.kind is Kind.FAILED:
                raise self._failed(problem, answer.body)
            found = Delivered.taken(answer.body, fd, max_bytes=self._max_bytes)
        return HostDraw(found.draw(problem), found.parts)

    def _failed(self, problem: ReferenceModule, body: dict[str, Any]) -> Exception:
        """The error of a FAILED frame."""
        kind, message = body.get("type"), str(body.get("message"))
        if kind == "ProblemTooLarge":
            return _too_large(problem, message)
        if is_out_of_memory(f"{kind}: {message}"):
            return OutOfMemory()
        words = f"the reference of {problem.problem_id} fails: {kind}: {message}"
        return ReferenceFailed(clean(without_paths(words)))


def receive_answer(sock: socket.socket, *, timeout_s: float, draw_timeout_s: float) -> frames.Frame:
    """Receives the results of an oracle on a CPU.

    Raises DeadlinePassed after `timeout_s` of its reference's processor time, after as much
    silence, or after `draw_timeout_s` in all.
    """
    expected = (Kind.LAYOUT, Kind.FAILED, Kind.PROGRESS)
    last = time.monotonic() + draw_timeout_s
    while True:
        deadline = min(last, time.monotonic() + timeout_s)
        frame = frames.receive(sock, deadline=deadline, expected=expected)
        if frame.kind is not Kind.PROGRESS:
            return frame
        seconds = frame.body.get("reference_s")
        if not (isinstance(seconds, int | float) and seconds <= timeout_s):
            raise frames.DeadlinePassed("the reference computes past its limit")


def _too_large(problem: ReferenceModule, words: str) -> ProblemTooLarge:
    return ProblemTooLarge(clean(f"{problem.problem_id} is too large for this judge: {words}"))
