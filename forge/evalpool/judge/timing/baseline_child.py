"""Times a problem's reference on a card, in a sandboxed child: role `baseline` of the zygote.

The same method as the executor's for a candidate: a CUDA graph behind new inputs and a flushed
cache, or the stream where the reference cannot be captured. The judge believes this process, since
nothing but the problem's own code runs in it. Like an oracle it serves one problem or several
(`trial.references`): making a context takes longer than all else.

    judge ── PROBLEM ──▶ model, warm-up, graph ──▶ DONE, or FAILED and its end
    judge ── CALL ─────▶ times, nothing left on the card ──▶ DONE ──▶ …
"""

from __future__ import annotations

import gc
import socket
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.numbers import parameters
from forge.evalpool.judge.numbers.called import leaves, replaced
from forge.evalpool.judge.reference.construct import describe
from forge.evalpool.judge.reference.subject import Subject, terms_of

NUM_WARM_UPS = 3
MIN_FLUSH_BYTES = 256 << 20
FLUSHES_PER_L2 = 4
REPLAY_CYCLES = 200_000
"""About 0.1 ms of the card, so that the host has queued the replay before its start is reached.
These values are those of `execute.gpu.card`."""
MIN_CALLS, MAX_CALLS = 10, 24
TIMED_S = 0.4
"""Time for all timed calls, by the host's clock."""


class Timed:
    """One reference on the card, ready to be timed."""

    def __init__(self, request: dict[str, Any]) -> None:
        """Raises whatever the reference does."""
        torch.backends.cuda.matmul.allow_tf32 = bool(request["tf32_products"])
        torch.backends.cudnn.allow_tf32 = bool(request["tf32"])
        subject = Subject.load(request, terms_of(request))
        parameters.move(subject.model)
        self._model: Any = subject.model
        if request["mode"] == "compile":
            self._model = torch.compile(self._model, dynamic=False)
        self._given = subject.draw()
        self._inputs = replaced(self._given, lambda _, one: one.clone())
        l2_bytes = int(getattr(torch.cuda.get_device_properties(), "L2_cache_size", 0) or 0)
        size = max(MIN_FLUSH_BYTES, FLUSHES_PER_L2 * l2_bytes)
        self._flush = torch.empty(size, dtype=torch.uint8, device="cuda")
        self._making: AbstractContextManager[Any] = nullcontext()
        try:
            self._warm_up()
        except Exception:  # it may make tensors without a device; for another cause it fails again
            self._making = torch.device("cuda")
            self._warm_up()
        self.no_graph = ""
        """Reason why the stream is timed; empty if a graph is."""
        self._graph = self._captured()

    def times(self) -> list[float]:
        """GPU time of each call in us."""
        wall_us = [self._call()[1] for _ in range(NUM_WARM_UPS)]
        num = int(TIMED_S * 1e6 / max(min(wall_us), 1.0))
        return [self._call()[0] for _ in range(min(max(num, MIN_CALLS), MAX_CALLS))]

    def _warm_up(self) -> None:
        for _ in range(NUM_WARM_UPS):
            self._refresh()
            self._run()
        torch.cuda.synchronize()

    def _run(self) -> None:
        with self._making:
            self._model(*self._inputs)

    def _captured(self) -> torch.cuda.CUDAGraph | None:
        graph = torch.cuda.CUDAGraph()
        try:
            self._refresh()
            with torch.cuda.graph(graph):
                self._run()
        except Exception as error:
            self.no_graph = str(error).split("\n")[0][:300]
            torch.cuda.synchronize()
            return None
        return graph

    def _refresh(self) -> None:
        for own, given in zip(leaves(self._inputs), leaves(self._given), strict=True):
            own.copy_(given)

    def _call(self) -> tuple[float, float]:
        """(GPU time, host time) in us."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._refresh()
        torch.cuda.synchronize()
        began = time.perf_counter_ns()
        self._flush.zero_()
        torch.cuda._sleep(REPLAY_CYCLES)
        start.record()
        if self._graph is not None:
            self._graph.replay()
        else:
            self._run()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e3, (time.perf_counter_ns() - began) / 1e3


def main(sock: socket.socket) -> None:
    """Times references, one after another, until the judge hangs up or one fails."""
    request = frames.asked(sock, Kind.PROBLEM).body
    torch.set_grad_enabled(False)
    torch.cuda.init()
    torch.cuda.set_stream(torch.cuda.Stream())
    while _measure(sock, request):
        request = frames.asked(sock, Kind.PROBLEM).body


def _measure(sock: socket.socket, request: dict[str, Any]) -> bool:
    """Prepares one reference and times it. Returns True if another may follow."""
    try:
        timed = Timed(request)
        frames.send(sock, Kind.DONE, {"no_graph": timed.no_graph})
        frames.asked(sock, Kind.CALL)
        body = {"gpu_us": timed.times()}
        del timed
        gc.collect()  # a model refers to itself
        torch.cuda.empty_cache()
    except frames.PeerGone:
        raise
    except BaseException as error:  # a reference may raise anything; the judge reports it
        frames.send(sock, Kind.FAILED, describe(error))
        return False
    frames.send(sock, Kind.DONE, body)
    return True
