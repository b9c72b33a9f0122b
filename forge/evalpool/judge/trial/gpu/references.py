"""Draws on a card, by problem: the GPU side of `references.py`.

One draw is a block of the judge's own GPU memory that an oracle filled and no longer maps: all
input sets, parameters, expected outputs. No executor ever maps it; each call's inputs are copied
from it into the places of a program (`trial.gpu.program_run`).
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.channel.shm import LayoutError, TensorSpec, offsets, returned_memory
from forge.evalpool.judge.children.spawner import SandboxedChild
from forge.evalpool.judge.driver.gpu_memory import Block, create_block
from forge.evalpool.judge.numbers.called import dtype_name, is_equal
from forge.evalpool.judge.numbers.protocols import Tf32
from forge.evalpool.judge.trial import references
from forge.evalpool.judge.trial.draws import Builder, Content, Delivered, HostDraw, parse_specs
from forge.evalpool.judge.trial.gpu.turns import Turn
from forge.evalpool.judge.wide.compare import Elements, OnCard, Question, agree
from forge.records.problem import ReferenceModule


@dataclass(slots=True, eq=False)
class CardDraw(Content):
    """A draw, and its tensors. All sets have tensors of the same shapes; but outputs may have other
    shapes, as of `nonzero`, and arguments that are no tensors other values."""

    tensors: list[torch.Tensor]
    block: Block
    host: HostDraw | None = None
    """The same in the host's memory, where a small draw is compared: a kernel of the judge's own on
    the card takes longer to launch. A call of torch there gives Python's lock away, and many
    threads wait for it: numpy needs a tenth of the calls."""

    def __post_init__(self) -> None:
        draw = self.draw
        shapes = [[draw.specs[index] for index in one.inputs] for one in draw.sets]
        if any(one != shapes[0] for one in shapes):
            raise LayoutError("get_inputs gives other shapes from call to call")
        types = [[draw.specs[index].dtype for index in one.outputs] for one in draw.sets]
        if any(one != types[0] for one in types):
            raise LayoutError("outputs differ in their number or types from call to call")
        if self.host is None:
            self.want()
        else:
            self.wanted = self.host.wanted

    @property
    def num_bytes(self) -> int:
        return self.block.num_bytes

    def free(self) -> None:
        self.tensors.clear()
        self.wanted.clear()
        self.block.close()

    def agree(self, pairs: Sequence[tuple[torch.Tensor, int, Question | None]]) -> list[bool]:
        """For each tensor and the expected one, True if it is right. Waits for the card once."""
        if self.host is not None:
            return [self.mismatch(*one, name="", operands=tuple) is None for one in pairs]
        fit = [tuple(got.shape) == self.draw.specs[index].shape for got, index, _ in pairs]
        asked = [(OnCard(got), self.result(index, question)) for got, index, question in pairs]
        found = iter(agree([one for one, is_fit in zip(asked, fit, strict=True) if is_fit]))
        return [is_fit and next(found) for is_fit in fit]

    def tensor(self, index: int, got: torch.Tensor | None = None) -> Elements:
        one = self.tensors[index] if got is None else got
        if self.host is None or tuple(one.shape) != self.draw.specs[index].shape:
            return OnCard(one)
        return self.host.tensor(index, None if got is None else bytes_of(got))

    def is_same(self, got: torch.Tensor, index: int) -> bool:
        if self.host is not None:
            return self.host.is_same(bytes_of(got), index)
        return is_equal(got, self.tensors[index])


def view(memory: torch.Tensor, spec: TensorSpec, start: int) -> torch.Tensor:
    kind = getattr(torch, spec.dtype)
    return memory[start : start + spec.num_bytes].view(kind).view(spec.shape)


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(dtype_name(tensor), tuple(tensor.shape))


def bytes_of(tensor: torch.Tensor) -> memoryview[int]:
    flat = tensor.reshape(-1)
    found: Any = flat.view(torch.uint8).numpy() if len(flat) else b""
    return memoryview(found)


SMALL_BYTES = 16 << 20
"""A draw of up to so many bytes stays when another one needs room."""
CACHE_SHARE = 0.1
"""Share of the card's memory that kept draws may take together; one draw may take more."""
DRAW_SHARE = 0.3
"""Share of the card's memory that the sets of one draw may take: the oracle holds them twice."""
SMALL_SHARE, LARGE_SHARE = 1 / 32, 0.8
"""Shares of the card's memory that torch gives an oracle: small ones work beside each other, at
most as many as there are candidates; one that needs more is drawn again, while no other such is."""
_LARGE = threading.Lock()
"""Held while a large draw is made: the card has no room for two."""
ROOM_TIMEOUT_S = 120.0
"""Longest wait until candidates give a large draw back."""

MAX_DRAWN_BYTES = 8 << 20
"""Inputs of two sets, and parameters, of what is small: about 0.3 s of a core."""
MAX_DRAWN_WORK = 1 << 26
"""FLOPs, and bytes of all results, of a call of it: one in float64 takes 10 ms."""
ROOM_BYTES = 512 << 20
"""Memory for all sets. It takes up what is written."""
ON_CARD = re.compile(r"\bcuda\b")
"""In a source that names the card."""
MAX_REMEMBERED = 4096


class NoRoom(references.ProblemTooLarge):
    """Its tensors are more than its oracle was allowed."""


class CardReferences(references.References[CardDraw]):
    """Draws of a judge on a card."""

    max_problems = 64
    small_bytes = SMALL_BYTES

    def __init__(
        self,
        oracles: references.Oracles,
        *,
        is_tf32: bool,
        small: references.Oracles | None = None,
        **terms: Any,
    ) -> None:
        """`small` oracles, without the card's files, draw small problems. Another project's
        protocol has torch's defaults of TF32. A problem is as large as the card lets it be, unless
        `max_bytes` are given: then it is held to them, as on a CPU."""
        self._memory_bytes = torch.cuda.get_device_properties().total_memory
        self._is_limited = "max_bytes" in terms
        terms = {"max_bytes": int(DRAW_SHARE * self._memory_bytes), **terms}
        super().__init__(oracles, max_cached_bytes=int(CACHE_SHARE * self._memory_bytes), **terms)
        self._tf32 = Tf32.of(is_tf32, is_other=not self._is_varied)
        self._small = small and SmallDraws(small, self._request, self._timeout_s)
        self._large: list[CardDraw] = []
        """Large draws on the card, held or kept."""
        self._freed = threading.Condition(self._lock)

    def _request(self, problem: ReferenceModule, **terms: Any) -> dict[str, Any]:
        own = {**self._tf32.request, "is_limited": self._is_limited}
        return super()._request(problem, **own, **terms)

    def _draw(self, problem: ReferenceModule, shared: Turn, **terms: Any) -> CardDraw:
        found = 0 if self._small is None else self._small.draw(problem)
        if isinstance(found, Delivered):
            try:
                return _put(found, problem, shared)
            except LayoutError as error:
                raise _unusable(problem, error) from error
        if found <= SMALL_SHARE * self._memory_bytes:
            with suppress(NoRoom), shared():
                return self._draw_within(problem, memory_share=SMALL_SHARE)
        with _LARGE:
            self._wait_for_room()
            with shared():
                return self._draw_large(problem)

    def _wait_for_room(self) -> None:
        """Waits until no candidate holds a large draw. The caller has no turn: a thread with a draw
        may wait to have the card alone."""

        def has_no_large() -> bool:
            """Retires the large draws that nobody holds; true if none is left. Candidates of a
            problem share its draw until then: they come one after another."""
            for key, one in list(self._cache.items()):
                if one in self._large and not one.draw.num_holders:
                    self._retire(key)
            return not self._large

        with self._freed:
            self._freed.wait_for(has_no_large, timeout=ROOM_TIMEOUT_S)

    def _draw_large(self, problem: ReferenceModule) -> CardDraw:
        torch.cuda.empty_cache()  # of what comparisons left with torch in this process
        try:
            found = self._draw_within(problem, memory_share=LARGE_SHARE)
        except NoRoom:
            if not self._is_varied:
                raise
            found = self._draw_within(problem, memory_share=LARGE_SHARE, is_wide=False)
        if found.num_bytes > SMALL_SHARE * self._memory_bytes:
            with self._lock:
                self._large.append(found)
        return found

    def _free_unheld(self, kept: CardDraw) -> None:
        super()._free_unheld(kept)
        if kept.draw.num_holders == 0 and kept in self._large:
            if kept.draw.is_retired:
                self._large.remove(kept)
            self._freed.notify_all()  # one that is kept makes room for who waits

    def _draw_within(
        self, problem: ReferenceModule, *, memory_share: float, is_wide: bool = True
    ) -> CardDraw:
        """Draws from the reference's own inputs alone, if it fails on any others."""
        left_s = self._timeout_s
        for is_plain in (False, True) if self._is_varied else (True,):
            began = time.monotonic()
            terms = {"plain": is_plain, "wide": is_wide and not is_plain}
            try:
                with self._oracles.lent(problem) as oracle:
                    began = time.monotonic()  # others may have kept it from us
                    body = self._request(problem, device="cuda", memory_share=memory_share, **terms)
                    try:
                        found = self._ask(oracle, body, problem, deadline=began + left_s)
                    except (frames.PeerGone, frames.DeadlinePassed, frames.FrameError) as error:
                        words = f"ended its oracle: {type(error).__name__}: {error}"
                        raise references.failed(problem, words) from error
                    except LayoutError as error:
                        raise _unusable(problem, error) from error
                if isinstance(found, CardDraw):
                    return found
                raise found  # behind the block: its oracle may be asked for more
            except NoRoom:
                raise
            except references.ReferenceFailed:
                left_s -= time.monotonic() - began
                if is_plain or left_s <= 0:  # without time, the next oracle would end for nothing
                    raise
        raise AssertionError("the last attempt raises")

    def _ask(
        self,
        oracle: SandboxedChild,
        body: dict[str, Any],
        problem: ReferenceModule,
        *,
        deadline: float,
    ) -> CardDraw | NoRoom:
        frames.send(oracle.sock, Kind.PROBLEM, body)
        answer = frames.receive(oracle.sock, deadline=deadline, expected=(Kind.LAYOUT, Kind.FAILED))
        if answer.kind is Kind.FAILED:
            error = references.failure(problem, answer.body)
            if answer.body.get("type") != "OutOfMemoryError":
                raise error
            if answer.body.get("is_free") is not True:
                self._oracles.spend(oracle)
            return NoRoom(str(error))
        if answer.body.get("is_short") is True and body["memory_share"] < LARGE_SHARE:
            raise NoRoom("something that it may do without had no room")
        specs = parse_specs(answer.body.get("tensors"))
        starts, num_bytes = offsets(specs)
        if self._is_limited and num_bytes > self._max_bytes:  # its size was not known before
            raise references.too_large(problem, f"a draw of {num_bytes / 1e9:.3g} GB")
        block = create_block(num_bytes)
        try:
            fill = {"block_bytes": block.num_bytes}
            frames.send(oracle.sock, Kind.FILL, fill, fds=(block.fd,))
            frames.receive(oracle.sock, deadline=deadline, expected=(Kind.DONE,))
            memory = block.bytes()
            tensors = [view(memory, spec, at) for spec, at in zip(specs, starts, strict=True)]
            draw = Builder(specs, precision=problem.precision).build(answer.body)
            return CardDraw(draw, tensors, block)
        except BaseException:
            block.close()
            raise


def _put(found: Delivered, problem: ReferenceModule, shared: Turn) -> CardDraw:
    """A draw of the CPU's, which is on the card, too. Raises DriverError or LayoutError."""
    host = HostDraw(found.draw(problem), found.parts)
    data = torch.frombuffer(bytearray(found.data) or bytearray(1), dtype=torch.uint8)
    with shared():
        block = create_block(len(data))
        memory = block.bytes()
        memory[: len(data)].copy_(data)
    try:
        places = zip(found.specs, found.starts, strict=True)
        return CardDraw(host.draw, [view(memory, *one) for one in places], block, host)
    except BaseException:
        block.close()
        raise


def _unusable(problem: ReferenceModule, error: LayoutError) -> references.ReferenceFailed:
    return references.failed(problem, f"cannot be used: {type(error).__name__}: {error}")


@dataclass(slots=True)
class SmallDraws:
    """Draws of small problems, made on the CPU for a card: as many at once as there are cores. Safe
    to call from several threads.

    An oracle on a card needs a context, which the driver makes one at a time and which takes longer
    than most draws, and a turn on the card, for which timed calls wait. A small problem has
    neither: question 2 accepts what is near to float64, so eager's own roundings on that card are
    no demand. It is drawn on the card where a CPU says less: where nothing is computed in float64,
    floats become integers (what is out of range becomes another one there), the source names the
    card, or anything fails.
    """

    oracles: references.Oracles
    """Without the card's files."""
    request: Callable[..., dict[str, Any]]
    """Makes their body for a problem."""
    timeout_s: float
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _others: dict[str, int] = field(default_factory=dict[str, int])
    """Least bytes of draws that are made on the card, by key of their problems."""

    def draw(self, problem: ReferenceModule) -> Delivered | int:
        """A draw of a small problem, or least bytes of another's (or 0). Raises ZygoteGone."""
        key = references.key_of(problem)
        if key in self._others or ON_CARD.search(problem.source):
            return self._others.get(key, 0)
        needed = 0
        try:
            with self.oracles.lent(problem) as oracle:
                found = self._ask(oracle, problem)
                if isinstance(found, Delivered):
                    return found
        except _Other as other:
            needed = other.args[0]
        except (
            *(frames.PeerGone, frames.DeadlinePassed, frames.FrameError, references.OutOfMemory),
            *(LayoutError, KeyError, TypeError, ValueError, IndexError),
        ):
            pass
        with self._lock:
            if len(self._others) >= MAX_REMEMBERED:
                self._others.clear()
            self._others[key] = needed
        return needed

    def _ask(self, oracle: SandboxedChild, problem: ReferenceModule) -> Delivered | None:
        body = self.request(problem, device="cpu", plain=False, wide=True)
        body |= {"max_bytes": ROOM_BYTES, "small": [MAX_DRAWN_BYTES, MAX_DRAWN_WORK]}
        with returned_memory(ROOM_BYTES) as fd:
            frames.send(oracle.sock, Kind.PROBLEM, body, fds=(fd,))
            deadline, expected = time.monotonic() + self.timeout_s, (Kind.LAYOUT, Kind.FAILED)
            answer = frames.receive(oracle.sock, deadline=deadline, expected=expected)
            if answer.kind is Kind.FAILED:
                is_large = answer.body.get("type") == "NotSmall"
                raise _Other(int(answer.body["message"]) if is_large else 0)
            if not answer.body.get("kinds"):
                return None
            return Delivered.taken(answer.body, fd, max_bytes=ROOM_BYTES)


class _Other(Exception):
    """The oracle has not drawn, and ends: a draw has so many bytes at least, 0 if unknown."""
