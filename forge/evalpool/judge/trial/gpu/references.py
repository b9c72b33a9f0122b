"""Reference results on a GPU, by problem: the GPU side of `references.py`.

Called by `trial.gpu`. One draw is a block of the judge's own GPU memory that an oracle filled
and no longer maps: all input sets, parameters, expected outputs. No executor ever maps it; each
call's inputs are copied from it into the places of a program (`trial.gpu.program_memory`).
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.channel.gpu_memory import create_block
from forge.evalpool.judge.channel.shm import LayoutError, offsets
from forge.evalpool.judge.channel.words import clean, without_paths
from forge.evalpool.judge.numbers.protocols import Tf32
from forge.evalpool.judge.trial.draws.build import Builder, parse_specs
from forge.evalpool.judge.trial.draws.failures import (
    KnownFailures,
    ProblemTooLarge,
    ReferenceFailed,
)
from forge.evalpool.judge.trial.draws.host import Delivered
from forge.evalpool.judge.trial.gpu.card_draw import CardDraw, view
from forge.evalpool.judge.trial.gpu.small import SmallDraws

if TYPE_CHECKING:
    from forge.evalpool.judge.channel.shm import TensorSpec
    from forge.evalpool.judge.children.spawner import SandboxedChild
    from forge.evalpool.judge.trial.gpu.turns import Turn
    from forge.evalpool.judge.trial.oracles import Oracles
    from forge.records.problem import ReferenceModule

MAX_PROBLEMS = 64
SMALL_BYTES = 16 << 20
"""A draw of up to so many bytes makes no room for another one. The canary's is small, and needed
after every fault, while all verdicts wait."""
CACHE_SHARE = 0.1
"""Share of the card's memory that kept draws may take together; one draw may take more."""
DRAW_SHARE = 0.3
"""Share of the card's memory that the sets of one draw may take: the oracle holds them twice."""
SMALL_SHARE, LARGE_SHARE = 1 / 32, 0.8
"""Shares of the card's memory that torch gives an oracle: small ones work beside each other, at
most as many as there are candidates; one that needs more is drawn again, while no other such is."""
_LARGE = threading.Lock()
"""Held for a large draw: the card has no room for two."""


class NoRoom(ProblemTooLarge):
    """Its tensors are more than its oracle was allowed."""


class GpuReferences:
    """Draws that oracles gave, kept. Safe to call from several threads."""

    def __init__(
        self,
        oracles: Oracles,
        *,
        num_sets: int,
        timeout_s: float,
        is_tf32: bool,
        is_varied: bool = True,
        small: Oracles | None = None,
    ) -> None:
        """
        Args:
            num_sets: input sets.
            small: oracles without the card's files, which draw small problems.
            is_tf32: allow TF32 in fp32 products and convolutions.
            is_varied: False for another project's protocol: inputs and parameters as the problem
                gives them alone, and TF32 by torch's defaults.
        """
        self._is_varied = is_varied
        self._num_sets = num_sets
        self._timeout_s = timeout_s
        self._is_tf32 = is_tf32
        self._lock = threading.Lock()
        self._drawing: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        self._cache: OrderedDict[str, CardDraw] = OrderedDict()
        self._failures = KnownFailures()
        self._memory_bytes = torch.cuda.get_device_properties().total_memory
        self._oracles = oracles
        self._small = small and SmallDraws(
            small, num_sets=num_sets, timeout_s=timeout_s, is_tf32=is_tf32
        )

    def hold(self, problem: ReferenceModule, *, shared: Turn) -> CardDraw:
        """A draw that stays until `let_go`.

        Args:
            shared: holds the card beside others while an oracle draws there; a kept draw needs no
                turn.

        Raises:
            ReferenceFailed, ZygoteGone, GpuMemoryError, Stalled.
        """
        text = f"{problem.entry_point}\0{problem.precision}\0{problem.source}"
        key = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
        with self._lock:
            drawing = self._drawing.setdefault(key, threading.Lock())
        with drawing:  # two candidates of one problem wait for one oracle; two problems do not
            with self._lock:
                cached = self._cache.get(key)
                if cached is not None and not cached.draw.is_used_up:
                    return self._held(key, cached)
                self._retire(key)
            self._failures.require_unknown(key)
            with self._failures.noted(key):
                drawn = self._draw(problem, shared)
            with self._lock:
                self._cache[key] = drawn
                return self._held(key, drawn)

    def let_go(self, reference: CardDraw) -> None:
        """Ends one hold; a retired draw without holders is freed."""
        with self._lock:
            reference.num_holders -= 1
            self._free_unheld(reference)

    def end_idle(self) -> None:
        """Ends oracles that wait for a problem. Under the card's lease, but at the judge's end."""
        self._oracles.clear()

    def close(self) -> None:
        """Ends all oracles that wait."""
        self.end_idle()
        if self._small is not None:
            self._small.clear()

    def _held(self, key: str, reference: CardDraw) -> CardDraw:
        reference.draw.num_uses += 1
        reference.num_holders += 1
        self._cache.move_to_end(key)
        while len(self._cache) > MAX_PROBLEMS:
            self._retire(next(iter(self._cache)))
        self._make_room(but=key)
        return reference

    def _make_room(self, *, but: str = "") -> None:
        """Retires large draws, the oldest first, until they take no more than their share.

        Args:
            but: key of one that stays.
        """
        sizes = {key: one.block.num_bytes for key, one in self._cache.items()}
        large = [key for key, size in sizes.items() if size > SMALL_BYTES and key != but]
        kept_bytes = sum(sizes.values())
        while large and kept_bytes > CACHE_SHARE * self._memory_bytes:
            oldest = large.pop(0)
            kept_bytes -= sizes[oldest]
            self._retire(oldest)

    def _retire(self, key: str) -> None:
        reference = self._cache.pop(key, None)
        if reference is not None:
            reference.is_retired = True
            self._free_unheld(reference)

    def _free_unheld(self, reference: CardDraw) -> None:
        if reference.is_retired and reference.num_holders == 0:
            reference.free()

    def _draw(self, problem: ReferenceModule, shared: Turn) -> CardDraw:
        found = 0 if self._small is None else self._small.draw(problem)
        if isinstance(found, Delivered):
            try:
                return _put(found, problem, shared)
            except LayoutError as error:
                raise _unusable(problem, error) from error
        with shared():
            return self._drawn_there(problem, is_large=found > SMALL_SHARE * self._memory_bytes)

    def _drawn_there(self, problem: ReferenceModule, *, is_large: bool) -> CardDraw:
        try:
            if is_large:
                raise NoRoom
            return self._draw_within(problem, memory_share=SMALL_SHARE)
        except NoRoom:
            with _LARGE:
                with self._lock:
                    self._make_room()
                try:
                    return self._draw_within(problem, memory_share=LARGE_SHARE)
                except NoRoom:
                    if not self._is_varied:
                        raise
                    return self._draw_within(problem, memory_share=LARGE_SHARE, is_wide=False)

    def _draw_within(
        self, problem: ReferenceModule, *, memory_share: float, is_wide: bool = True
    ) -> CardDraw:
        """Draws from the reference's own inputs alone, if it fails on any others."""
        left_s = self._timeout_s
        for is_plain in (False, True) if self._is_varied else (True,):
            began = time.monotonic()
            try:
                with self._oracles.lent(problem) as oracle:
                    began = time.monotonic()  # others may have kept it from us
                    asked = {
                        "memory_share": memory_share,
                        "plain": is_plain,
                        "wide": is_wide and not is_plain,
                    }
                    return self._draw_by(oracle, asked, problem, deadline=began + left_s)
            except NoRoom:
                raise
            except ReferenceFailed:
                left_s -= time.monotonic() - began
                if is_plain or left_s <= 0:  # without time, the next oracle would end for nothing
                    raise
        raise AssertionError("the last attempt raises")

    def _draw_by(
        self,
        oracle: SandboxedChild,
        asked: dict[str, Any],
        problem: ReferenceModule,
        *,
        deadline: float,
    ) -> CardDraw:
        try:
            return self._ask(oracle, asked, problem, deadline=deadline)
        except (frames.PeerGone, frames.DeadlinePassed, frames.FrameError) as error:
            raise _failed(problem, f"ended its oracle: {type(error).__name__}: {error}") from error
        except LayoutError as error:
            raise _unusable(problem, error) from error

    def _ask(
        self,
        oracle: SandboxedChild,
        asked: dict[str, Any],
        problem: ReferenceModule,
        *,
        deadline: float,
    ) -> CardDraw:
        body = {
            **asked,
            "source": problem.source,
            "entry_point": problem.entry_point,
            "precision": problem.precision,
            "num_sets": self._num_sets,
            "device": "cuda",
            **Tf32.of(self._is_tf32, is_other=not self._is_varied).request,
            "max_bytes": int(DRAW_SHARE * self._memory_bytes),
            "moved": self._is_varied,
        }
        frames.send(oracle.sock, Kind.PROBLEM, body)
        answer = frames.receive(oracle.sock, deadline=deadline, expected=(Kind.LAYOUT, Kind.FAILED))
        if answer.kind is Kind.FAILED:
            kind, message = answer.body.get("type"), answer.body.get("message")
            failed = _failed(problem, f"fails: {kind}: {message}")
            raise NoRoom(str(failed)) if kind == "OutOfMemoryError" else failed
        if answer.body.get("is_short") is True and asked["memory_share"] < LARGE_SHARE:
            raise NoRoom("something that it may do without had no room")
        specs = parse_specs(answer.body.get("tensors"))
        starts, num_bytes = offsets(specs)
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
    """A draw of the CPU's with its inputs on the card. Raises GpuMemoryError or LayoutError."""
    content = bytearray(found.data) or bytearray(1)
    data = torch.frombuffer(content, dtype=torch.uint8)
    places = zip(found.specs, found.starts, strict=True)
    tensors = [_view(content, spec, at) for spec, at in places]
    with shared():
        block = create_block(len(data))
        memory = block.bytes()
        memory[: len(data)].copy_(data)
    try:
        made = CardDraw(found.draw(problem), tensors, block)
        made.put_inputs(lambda index: view(memory, found.specs[index], found.starts[index]))
    except BaseException:
        block.close()
        raise
    return made


def _view(content: bytearray, spec: TensorSpec, start: int) -> torch.Tensor:
    """A tensor in the host's memory."""
    kind, num = getattr(torch, spec.dtype), math.prod(spec.shape)
    if not num:
        return torch.empty(spec.shape, dtype=kind)
    return torch.frombuffer(content, dtype=kind, count=num, offset=start).view(spec.shape)


def _unusable(problem: ReferenceModule, error: LayoutError) -> ReferenceFailed:
    return _failed(problem, f"cannot be used: {type(error).__name__}: {error}")


def _failed(problem: ReferenceModule, words: str) -> ReferenceFailed:
    return ReferenceFailed(clean(without_paths(f"the reference of {problem.problem_id} {words}")))
