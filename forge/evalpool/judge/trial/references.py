"""The draws of each problem, asked of oracles and kept for a few candidates.

Keeps the draws of a bounded number of problems, and has them made anew with fresh OS-random seeds
after `draws.MAX_USES` candidates: feedback tells each of them a few expected numbers, too many only
where there are few (`Draw.is_used_up`). An oracle draws for several problems only while all that it
ran could leave nothing behind in torch (`is_contained`); any other has one of its own, which ends
with its draw, as does one whose draw failed. At most `num_kept` are kept, since contexts on a GPU
are scarce; a draw that finds all of them at work waits for one.
"""

from __future__ import annotations

import hashlib
import math
import re
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.channel.shm import LayoutError, returned_memory
from forge.evalpool.judge.channel.words import clean, is_out_of_memory, without_paths
from forge.evalpool.judge.children.spawner import KeptChildren, SandboxedChild, Spawner, ZygoteGone
from forge.evalpool.judge.trial import draws
from forge.evalpool.judge.trial.host_code import host_code
from forge.records.problem import ReferenceModule

Turn = Callable[[], AbstractContextManager[None]]

OF_PROCESS = re.compile(r"\b(cuda|compile|backends|triton)\b")
"""Names of torch that a capture gives another meaning: here they may leave something behind."""
FUNCTION = re.compile(r"^def (\w+)", re.MULTILINE)


def is_contained(problem: ReferenceModule) -> bool:
    """True if the reference does nothing that outlives it, with all functions of its file: by the
    same rules as a candidate that shares its child. To doubt one wrongly costs time alone."""
    named = "".join(f"{name}, " for name in FUNCTION.findall(problem.source))
    code = f"{problem.source}\n({named})\n"
    is_plain = host_code(code, entry_point=problem.entry_point).is_shareable
    return is_plain and not OF_PROCESS.search(problem.source)


class OutOfMemory(Exception):
    """An oracle needed more memory than it may have."""


class Oracles(KeptChildren):
    """One judge's. Safe to call from several threads."""

    def __init__(self, spawner: Spawner, *, num_kept: int, role: str = "oracle") -> None:
        super().__init__(spawner, role=role, is_released=False)
        self._free = threading.Semaphore(num_kept)
        self._spent = set[SandboxedChild]()

    @contextmanager
    def lent(self, problem: ReferenceModule, *, is_clean: bool = True) -> Iterator[SandboxedChild]:
        """One for a draw of a problem, which may be asked for another once the block has ended
        well, unless what is asked of it leaves something behind (`is_clean`). Raises ZygoteGone or
        WeakSandbox, but not behind a draw that is done: it may hold memory of the card that
        somebody must free."""
        # Without a sandbox a candidate could enter the process that draws for the next one.
        is_shared = is_clean and is_contained(problem) and self.can_keep
        with self._free if is_shared else nullcontext():
            take = self.take if is_shared else self.fresh
            one = take(source=problem.source)
            try:
                yield one.child
            except BaseException as error:
                self._end_failed(one.child, error)
                raise
            if is_shared and one.child not in self._spent:
                self.give_back(one)
            else:
                self._spent.discard(one.child)
                self.end(one)

    def spend(self, child: SandboxedChild) -> None:
        """A lent one serves no other problem: what it did left something behind."""
        self._spent.add(child)

    def _end_failed(self, child: SandboxedChild, error: BaseException) -> None:
        """Raises ZygoteGone where it ended with its zygote: no reference is to blame for that; and
        OutOfMemory where the memory cap killed it."""
        self._spent.discard(child)
        if isinstance(error, frames.PeerGone):
            if self.spawner.ended(child).is_out_of_memory:
                raise OutOfMemory from error
        else:
            self.spawner.end(child)
        if not self.spawner.is_current(child):
            raise ZygoteGone("an oracle ended with its zygote") from error


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


C = TypeVar("C", bound="draws.Content")


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
        self._failures: OrderedDict[str, tuple[int, float, ReferenceFailed]] = OrderedDict()
        """Failures since the last success, by problem: their number, and the last one's time."""

    def hold(self, problem: ReferenceModule, *, shared: Turn = nullcontext, **terms: Any) -> C:
        """A draw that stays until `let_go`; `shared` holds the card beside others while an oracle
        draws there, and a draw on further terms of its request is for one candidate. Raises
        ReferenceFailed, ZygoteGone; on a card DriverError, Stalled."""
        key = key_of(problem) + (f" {terms}" if terms else "")
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
            drawn = self._drawn(key, problem, shared, **terms)
            with self._lock:
                self._cache[key] = drawn
                return self._held(key, drawn, is_aside=bool(terms))

    def let_go(self, kept: C) -> None:
        """Ends one hold; a retired draw without holders is freed."""
        with self._lock:
            kept.draw.num_holders -= 1
            self._free_unheld(kept)
            self._make_room(but=next((key for key, one in self._cache.items() if one is kept), ""))

    def end_idle(self) -> None:
        """Ends oracles that wait. On a card under its lease, but at the judge's end."""
        self._oracles.close()

    def _drawn(self, key: str, problem: ReferenceModule, shared: Turn, **terms: Any) -> C:
        """A new draw. A reference that failed twice in a row fails at once for FAILED_S: each
        candidate would wait for it, up to a judge's deadline. Not for ever: a machine may have
        been full."""
        known = self._failures.pop(key, None)
        num = known[0] if known else 0
        if known and num > 1 and time.monotonic() - known[1] < FAILED_S:
            self._failures[key] = known
            raise type(known[2])(*known[2].args)
        try:
            return self._draw(problem, shared, **terms)
        except ReferenceFailed as error:
            found = type(error)(*error.args)  # without the frames that the other one came through
            self._failures[key] = num + 1, time.monotonic(), found
            while len(self._failures) > MAX_FAILURES:
                self._failures.popitem(last=False)
            raise

    @abstractmethod
    def _draw(self, problem: ReferenceModule, shared: Turn, **terms: Any) -> C:
        """A new draw. Raises as `hold`."""

    def _request(self, problem: ReferenceModule, **terms: Any) -> dict[str, Any]:
        own = {"num_sets": self._num_sets, "max_bytes": self._max_bytes, "moved": self._is_varied}
        return {**body_of(problem), **own, **terms}

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
        """Retires draws but one, the oldest first, until they take no more than they may. One that
        is held stays: it would keep its memory, and the next candidate would ask for another."""
        sizes = {key: one.num_bytes for key, one in self._cache.items()}
        stay = {but, *(key for key, one in self._cache.items() if one.draw.num_holders)}
        large = [key for key, size in sizes.items() if size > self.small_bytes and key not in stay]
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


def body_of(problem: ReferenceModule) -> dict[str, Any]:
    """Facts of a problem for a child that runs its reference."""
    names = ("source", "entry_point", "precision")
    return {name: getattr(problem, name) for name in names}


def key_of(problem: ReferenceModule) -> str:
    text = f"{problem.entry_point}\0{problem.precision}\0{problem.source}"
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


class Sketches:
    """Draws of one set without values: types and shapes, which are all that a capture needs. An
    answer that fails by itself needs no draw. Safe to call from several threads."""

    def __init__(self, oracles: Oracles, *, max_bytes: int) -> None:
        """`oracles` of a CPU; `max_bytes` of memory may one draw take."""
        self._oracles, self._max_bytes = oracles, max_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, bool], tuple[draws.Draw | None, float]] = OrderedDict()
        """Sketches, and the times until which they stand."""

    def of(self, problem: ReferenceModule, *, is_plain: bool) -> draws.Draw | None:
        """The sketch of a problem, under another project's protocol if `is_plain`; None for one
        that needs values to run, or more memory than there is. Raises ZygoteGone or WeakSandbox."""
        key = key_of(problem), is_plain
        with self._lock:
            found, until = self._kept.get(key, (None, -math.inf))
            if time.monotonic() < until:
                self._kept.move_to_end(key)
                return found
        try:
            found, until = self._asked(problem, is_plain=is_plain), math.inf
        except (
            *(frames.PeerGone, frames.DeadlinePassed, frames.FrameError),
            *(OutOfMemory, LayoutError),
        ):  # of a loaded machine, perhaps: asked again later
            found, until = None, time.monotonic() + FAILED_S
        with self._lock:
            self._kept[key] = found, until
            while len(self._kept) > MAX_SKETCHES:
                self._kept.popitem(last=False)
        return found

    def close(self) -> None:
        self._oracles.close()

    def _asked(self, problem: ReferenceModule, *, is_plain: bool) -> draws.Draw | None:
        body = {**body_of(problem), "plain": is_plain, "sketch": True}
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
        specs = draws.parse_specs(answer.body.get("tensors"))
        draw = draws.Builder(specs, precision=problem.precision).build(answer.body)
        is_small = draw.num_bytes + draw.io_bytes <= self._max_bytes  # parameters, and two sets
        return draw if is_small and draw.has_elements(0) else None


def failed(problem: ReferenceModule, words: str) -> ReferenceFailed:
    return ReferenceFailed(clean(without_paths(f"the reference of {problem.problem_id} {words}")))


def failure(problem: ReferenceModule, body: dict[str, Any]) -> ReferenceFailed:
    """The error of an oracle that has failed."""
    kind, message = body.get("type"), str(body.get("message"))
    if kind == "ProblemTooLarge":
        return too_large(problem, message)
    return failed(problem, f"fails: {kind}: {message}")


class HostReferences(References[draws.HostDraw]):
    """Draws of a judge without a card."""

    def __init__(self, spawner: Spawner, *, draw_timeout_s: float, **terms: Any):
        """`draw_timeout_s`: limit for a draw, most of which may be work of the judge's own."""
        oracles = Oracles(spawner, num_kept=1)
        super().__init__(oracles, max_cached_bytes=MAX_CACHED_BYTES, **terms)
        self._draw_timeout_s = draw_timeout_s

    def _draw(self, problem: ReferenceModule, shared: Turn, **terms: Any) -> draws.HostDraw:
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
            raise too_large(problem, f"{words} (judge.memory_bytes)") from error
        except frames.DeadlinePassed as error:
            limit = f"{self._timeout_s:g} s (judge.compile_timeout_s and judge.correct_timeout_s)"
            raise failed(problem, f"gave no results within {limit}") from error
        except (frames.PeerGone, frames.FrameError, LayoutError) as error:
            raise failed(problem, f"ended its oracle: {type(error).__name__}: {error}") from error

    def _asked(self, problem: ReferenceModule, **terms: Any) -> draws.HostDraw:
        own = {"device": "cpu", "reports": True, "tf32": False, "tf32_products": False}
        body = self._request(problem, **own, **terms)
        oracles, room = self._oracles.lent(problem), returned_memory(self._max_bytes)
        with oracles as oracle, room as fd:
            frames.send(oracle.sock, Kind.PROBLEM, body, fds=(fd,))
            limits = {"timeout_s": self._timeout_s, "draw_timeout_s": self._draw_timeout_s}
            answer = receive_answer(oracle.sock, **limits)
            if answer.kind is Kind.FAILED:
                error = failure(problem, answer.body)
                raise OutOfMemory if is_out_of_memory(str(error)) else error
            found = draws.Delivered.taken(answer.body, fd, max_bytes=self._max_bytes)
            return draws.HostDraw(found.draw(problem), found.parts)


def receive_answer(sock: socket.socket, *, timeout_s: float, draw_timeout_s: float) -> frames.Frame:
    """Receives the results of an oracle on a CPU. Raises DeadlinePassed after `timeout_s` of its
    reference's processor time, after as much silence, or after `draw_timeout_s` in all."""
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


def too_large(problem: ReferenceModule, words: str) -> ProblemTooLarge:
    return ProblemTooLarge(clean(f"{problem.problem_id} is too large for this judge: {words}"))
