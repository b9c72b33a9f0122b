"""The draws of each problem, asked of oracles and kept for a few candidates.

Called by `trials.py`. Keeps the draws of a bounded number of problems, and has them made anew with
fresh OS-random seeds after `draws.draw.MAX_USES` candidates. All that comes from one judgement
to the next is the feedback, so sharing inputs among a few candidates tells them a few expected
numbers each, which is too much only where there are few (`Draw.is_used_up`).
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakValueDictionary

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.channel.shm import LayoutError, returned_memory
from forge.evalpool.judge.channel.words import clean, is_out_of_memory, without_paths
from forge.evalpool.judge.trial.draws import Builder, Delivered, HostDraw, parse_specs
from forge.evalpool.judge.trial.oracles import Oracles, OutOfMemory

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager

    from forge.evalpool.judge.children.spawner import SandboxedChild, Spawner
    from forge.evalpool.judge.trial.draws import Draw
    from forge.evalpool.judge.trial.results import Content
    from forge.records.problem import ReferenceModule

    Turn = Callable[[], AbstractContextManager[None]]


MAX_CACHED_BYTES = 256 << 20
MAX_SHOWN_BYTES = 1 << 30
"""Memory of a draw whose sizes a model chose."""
MAX_SKETCHES = 256
"""Of 1 to 100 kB each."""
SKETCH_S = 2.0
"""Time for a sketch, of 5 to 50 ms: torch runs some layers on `meta` step by step."""
FAILED_S = 120.0
"""Time for which a failure of a reference stands for the next candidates."""
MAX_FAILURES = 256


class ReferenceFailed(Exception):
    """The problem's own reference cannot be run. Infra: no candidate is to blame."""


class ProblemTooLarge(ReferenceFailed):
    """The problem's tensors are more than this judge has memory for."""


class KnownFailures:
    """References that failed twice in a row lately. Each candidate of such a problem would wait for
    the same failure, up to a judge's deadline. Not for ever: a machine may have been full."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._found: OrderedDict[str, list[tuple[float, ReferenceFailed]]] = OrderedDict()
        """Failures since the last success, by problem."""

    def require_unknown(self, key: str) -> None:
        """Raises the failure of a problem that failed twice, for FAILED_S."""
        found = self._found.get(key, [])
        if len(found) > 1 and self._clock() - found[-1][0] < FAILED_S:
            error = found[-1][1]
            raise type(error)(*error.args)

    @contextmanager
    def noted(self, key: str) -> Generator[None]:
        """Within, a ReferenceFailed counts as a failure of this problem, and the end as a
        success."""
        before = self._found.pop(key, [])
        try:
            yield
        except ReferenceFailed as error:
            found = type(error)(*error.args)  # without the frames that the other one came through
            self._found[key] = [*before[-1:], (self._clock(), found)]
            while len(self._found) > MAX_FAILURES:
                self._found.popitem(last=False)
            raise


C = TypeVar("C", bound="Content")


class References(ABC, Generic[C]):
    """Draws that oracles gave, kept. Safe to call from several threads."""

    max_problems = 32
    """Kept draws, unless others are asked for: more problems than are usually played at once. Each
    holds 10 to 400 kB, and each change leaves holes in the heap: 2.5 MB with 64 of them, half with
    32."""
    small_bytes = 0
    """A draw of up to so many bytes makes no room for another one."""

    def __init__(
        self,
        oracles: Oracles,
        *,
        num_sets: int,
        timeout_s: float,
        max_bytes: int,
        max_cached_bytes: int,
        is_varied: bool = True,
        max_problems: int | None = None,
    ) -> None:
        """
        Args:
            timeout_s: limit for the reference itself, and for any silence.
            max_bytes: memory that one draw may take.
            max_cached_bytes: memory that all of them may take; one may take more.
            is_varied: draw inputs with plants and move parameters; else, under another project's
                protocol, both are as the problem gives them.
            max_problems: draws that are kept; with 0, each serves one candidate.
        """
        if max_problems is not None:
            self.max_problems = max_problems
        self._oracles = oracles
        self._num_sets = num_sets
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._max_cached_bytes = max_cached_bytes
        self._is_varied = is_varied
        self._lock = threading.Lock()
        self._drawing: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        self._cache: OrderedDict[str, C] = OrderedDict()
        self._failures = KnownFailures()

    def hold(self, problem: ReferenceModule, *, shared: Turn = nullcontext, **terms: Any) -> C:
        """A draw that stays until `let_go`.

        Args:
            shared: holds the card beside others while an oracle draws there; a kept draw needs no
                turn.
            terms: further ones of an oracle's request.

        Raises:
            ReferenceFailed, ZygoteGone; on a card DriverError, Stalled.
        """
        key = _key(problem) + (f" {terms}" if terms else "")
        with self._lock:
            drawing = self._drawing.setdefault(key, threading.Lock())
        with drawing:  # two candidates of one problem wait for one oracle; two problems do not
            with self._lock:
                cached = self._cache.get(key)
                if cached is not None and not cached.draw.is_used_up:
                    return self._held(key, cached, is_aside=bool(terms))
                self._retire(key)
                if not terms:
                    self._make_room()  # before it is made: memory is used again at once
            self._failures.require_unknown(key)
            with self._failures.noted(key):
                drawn = self._draw(problem, shared, **terms)
            with self._lock:
                self._cache[key] = drawn
                return self._held(key, drawn, is_aside=bool(terms))

    def let_go(self, kept: C) -> None:
        """Ends one hold; a retired draw without holders is freed."""
        with self._lock:
            kept.draw.num_holders -= 1
            self._free_unheld(kept)

    def end_idle(self) -> None:
        """Ends oracles that wait for a problem. On a card under its lease, but at the judge's
        end."""
        self._oracles.clear()

    def close(self) -> None:
        """Ends all oracles that wait."""
        self.end_idle()

    @abstractmethod
    def _draw(self, problem: ReferenceModule, shared: Turn, **terms: Any) -> C:
        """A new draw. Raises as `hold`."""

    def _request(self, problem: ReferenceModule, **terms: Any) -> dict[str, Any]:
        """Body of an oracle's request."""
        return {
            "source": problem.source,
            "entry_point": problem.entry_point,
            "precision": problem.precision,
            "num_sets": self._num_sets,
            "max_bytes": self._max_bytes,
            "moved": self._is_varied,
            **terms,
        }

    def _held(self, key: str, kept: C, *, is_aside: bool = False) -> C:
        """Notes a holder. A draw on further terms is for one candidate: it is the first to go."""
        kept.draw.num_uses += 1
        kept.draw.num_holders += 1
        self._cache.move_to_end(key, last=not is_aside)
        while len(self._cache) > self.max_problems:
            self._retire(next(iter(self._cache)))
        self._make_room(but="" if is_aside else key)
        return kept

    def _make_room(self, *, but: str = "") -> None:
        """Retires draws, the oldest first, until they take no more than they may.

        Args:
            but: key of one that stays.
        """
        sizes = {key: one.num_bytes for key, one in self._cache.items()}
        large = [key for key, size in sizes.items() if size > self.small_bytes and key != but]
        kept_bytes = sum(sizes.values())
        while large and kept_bytes > self._max_cached_bytes:
            oldest = large.pop(0)
            kept_bytes -= sizes[oldest]
            self._retire(oldest)

    def _retire(self, key: str) -> None:
        kept = self._cache.pop(key, None)
        if kept is not None:
            kept.draw.is_retired = True
            self._free_unheld(kept)

    def _free_unheld(self, kept: C) -> None:
        if kept.draw.is_retired and kept.draw.num_holders == 0:
            kept.free()


def _key(problem: ReferenceModule) -> str:
    text = f"{problem.entry_point}\0{problem.precision}\0{problem.source}"
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


class Sketches:
    """Draws of one set without values: types and shapes, which are all that a capture needs. An
    answer that fails by itself needs no draw. Safe to call from several threads."""

    def __init__(
        self, oracles: Oracles, *, max_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """
        Args:
            oracles: of a CPU.
            max_bytes: memory that one draw may take.
        """
        self._oracles = oracles
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._clock = clock
        self._kept: OrderedDict[tuple[str, bool], tuple[Draw | None, float]] = OrderedDict()
        """Sketches, and the times until which they stand."""

    def of(self, problem: ReferenceModule, *, is_plain: bool) -> Draw | None:
        """The sketch of a problem; None for one that needs values to run, or more memory than there
        is.

        Args:
            is_plain: under another project's protocol.

        Raises:
            ZygoteGone, WeakSandbox: no child can be had.
        """
        key = _key(problem), is_plain
        with self._lock:
            found, until = self._kept.get(key, (None, -math.inf))
            if self._clock() < until:
                self._kept.move_to_end(key)
                return found
        try:
            found, until = self._asked(problem, is_plain=is_plain), math.inf
        except (
            *(frames.PeerGone, frames.DeadlinePassed, frames.FrameError),
            *(OutOfMemory, LayoutError),
        ):  # of a loaded machine, perhaps: asked again later
            found, until = None, self._clock() + FAILED_S
        with self._lock:
            self._kept[key] = found, until
            while len(self._kept) > MAX_SKETCHES:
                self._kept.popitem(last=False)
        return found

    def close(self) -> None:
        """Ends the oracles that wait."""
        self._oracles.clear()

    def _asked(self, problem: ReferenceModule, *, is_plain: bool) -> Draw | None:
        """An oracle's sketch. Raises what may be the machine's fault."""
        body = {
            "source": problem.source,
            "entry_point": problem.entry_point,
            "precision": problem.precision,
            "plain": is_plain,
            "sketch": True,
        }
        expected = (Kind.LAYOUT, Kind.FAILED)
        with self._oracles.lent(problem) as oracle:
            frames.send(oracle.sock, Kind.PROBLEM, body)
            deadline = time.monotonic() + SKETCH_S
            answer = frames.receive(oracle.sock, deadline=deadline, expected=expected)
            if answer.kind is Kind.FAILED:
                self._oracles.spend(oracle)
        if answer.kind is Kind.FAILED:
            if is_out_of_memory(f"{answer.body.get('type')}: {answer.body.get('message')}"):
                raise OutOfMemory
            return None
        specs = parse_specs(answer.body.get("tensors"))
        draw = Builder(specs, precision=problem.precision).build(answer.body)
        is_small = draw.num_bytes + draw.io_bytes <= self._max_bytes  # parameters, and two sets
        return draw if is_small and draw.has_elements(0) else None


def failed(problem: ReferenceModule, words: str) -> ReferenceFailed:
    """The error of a reference."""
    return ReferenceFailed(clean(without_paths(f"the reference of {problem.problem_id} {words}")))


class HostReferences(References[HostDraw]):
    """Draws of a judge without a card."""

    def __init__(self, spawner: Spawner, *, draw_timeout_s: float, **terms: Any):
        """
        Args:
            draw_timeout_s: limit for a draw, most of which may be work of the judge's own.
            terms: of `References`.
        """
        oracles = Oracles(spawner, num_kept=1)
        super().__init__(oracles, max_cached_bytes=MAX_CACHED_BYTES, **terms)
        self._draw_timeout_s = draw_timeout_s

    def _draw(self, problem: ReferenceModule, shared: Turn, **terms: Any) -> HostDraw:
        """Draws inputs as the problem gives them alone, if any others end its oracle, and without
        results in float64 where there is no memory for them."""
        is_wide = self._is_varied
        try:
            try:
                return self._asked(problem, plain=not self._is_varied, wide=is_wide, **terms)
            except OutOfMemory:
                if not is_wide or terms:
                    raise
                return self._asked(problem, plain=False, wide=False)
            except frames.PeerGone:
                if terms:
                    raise
                return self._asked(problem, plain=True, wide=False)
        except OutOfMemory as error:
            words = f"its reference needs more than {self._max_bytes / 1e9:.3g} GB"
            raise _too_large(problem, f"{words} (judge.memory_bytes)") from error
        except frames.DeadlinePassed as error:
            limit = f"{self._timeout_s:g} s (judge.compile_timeout_s and judge.correct_timeout_s)"
            raise failed(problem, f"gave no results within {limit}") from error
        except (frames.PeerGone, frames.FrameError, LayoutError) as error:
            raise failed(problem, f"ended its oracle: {type(error).__name__}: {error}") from error

    def _asked(self, problem: ReferenceModule, **terms: Any) -> HostDraw:
        """A draw of an oracle's."""
        with self._oracles.lent(problem) as oracle:
            return self._ask(oracle, problem, **terms)

    def _ask(self, oracle: SandboxedChild, problem: ReferenceModule, **terms: Any) -> HostDraw:
        body = self._request(
            problem,
            device="cpu",
            reports=True,
            tf32=False,
            tf32_products=False,
            **terms,
        )
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
        return failed(problem, f"fails: {kind}: {message}")


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
