"""Reference results on a GPU, by problem: the GPU side of `references.py`.

Called by `trial.gpu`. One draw is a block of the judge's own GPU memory that an oracle filled
and no longer maps: all input sets, parameters, expected outputs. No executor ever maps it; each
call's inputs are copied from it into the places of a program (`trial.gpu.program_memory`).
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.channel.shm import LayoutError, offsets
from forge.evalpool.judge.driver.gpu_memory import create_block
from forge.evalpool.judge.numbers.protocols import Tf32
from forge.evalpool.judge.trial.draws import Builder, Delivered, HostDraw, parse_specs
from forge.evalpool.judge.trial.gpu.card_draw import CardDraw, view
from forge.evalpool.judge.trial.gpu.small import SmallDraws
from forge.evalpool.judge.trial.references import (
    ProblemTooLarge,
    ReferenceFailed,
    References,
    failed,
)

if TYPE_CHECKING:
    from forge.evalpool.judge.children.spawner import SandboxedChild
    from forge.evalpool.judge.trial.gpu.turns import Turn
    from forge.evalpool.judge.trial.oracles import Oracles
    from forge.records.problem import ReferenceModule

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


class NoRoom(ProblemTooLarge):
    """Its tensors are more than its oracle was allowed."""


class CardReferences(References[CardDraw]):
    """Draws of a judge on a card."""

    max_problems = 64
    small_bytes = SMALL_BYTES

    def __init__(
        self,
        oracles: Oracles,
        *,
        num_sets: int,
        timeout_s: float,
        is_tf32: bool,
        is_varied: bool = True,
        max_problems: int | None = None,
        max_bytes: int | None = None,
        small: Oracles | None = None,
    ) -> None:
        """
        Args:
            small: oracles without the card's files, which draw small problems.
            is_tf32: allow TF32 in fp32 products and convolutions; another project's protocol has
                torch's defaults.
        """
        self._memory_bytes = torch.cuda.get_device_properties().total_memory
        super().__init__(
            oracles,
            num_sets=num_sets,
            timeout_s=timeout_s,
            max_bytes=max_bytes or int(DRAW_SHARE * self._memory_bytes),
            max_cached_bytes=int(CACHE_SHARE * self._memory_bytes),
            is_varied=is_varied,
            max_problems=max_problems,
        )
        self._tf32 = Tf32.of(is_tf32, is_other=not is_varied)
        self._small = small and SmallDraws(small, request=self._request, timeout_s=timeout_s)
        self._large: list[CardDraw] = []
        """Large draws on the card, held or kept."""
        self._freed = threading.Condition(self._lock)

    def close(self) -> None:
        """Ends all oracles that wait."""
        self.end_idle()
        if self._small is not None:
            self._small.clear()

    def _request(self, problem: ReferenceModule, **terms: Any) -> dict[str, Any]:
        return super()._request(problem, **self._tf32.request, **terms)

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
        with self._freed:
            self._make_room()
            self._freed.wait_for(self._has_no_large, timeout=ROOM_TIMEOUT_S)

    def _has_no_large(self) -> bool:
        """Retires the large draws that are kept; true if none of them is held."""
        for key in [key for key, one in self._cache.items() if one in self._large]:
            self._retire(key)
        return not self._large

    def _draw_large(self, problem: ReferenceModule) -> CardDraw:
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
            raise failed(problem, f"ended its oracle: {type(error).__name__}: {error}") from error
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
        body = self._request(problem, device="cuda", **asked)
        frames.send(oracle.sock, Kind.PROBLEM, body)
        answer = frames.receive(oracle.sock, deadline=deadline, expected=(Kind.LAYOUT, Kind.FAILED))
        if answer.kind is Kind.FAILED:
            kind, message = answer.body.get("type"), answer.body.get("message")
            error = failed(problem, f"fails: {kind}: {message}")
            raise NoRoom(str(error)) if kind == "OutOfMemoryError" else error
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


def _unusable(problem: ReferenceModule, error: LayoutError) -> ReferenceFailed:
    return failed(problem, f"cannot be used: {type(error).__name__}: {error}")
