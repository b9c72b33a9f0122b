"""Times a loaded program on the card: a CUDA graph behind a flush, or its stream where it has none.

Called by `child.py`, alone on the card. For each call: new inputs and parameters, outputs and
temporaries poisoned, persisting cache lines reset, the cache flushed **last**, then the program
between two events. The host's clock runs from before the flush until the card is idle: the judge
holds it against the same without a program.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from forge.evalpool.judge.execute.gpu.run import CannotRun, Faulted
from forge.evalpool.judge.program.format import Section

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forge.evalpool.judge.execute.call import Call
    from forge.evalpool.judge.execute.gpu.exchange import Exchange
    from forge.evalpool.judge.execute.gpu.run import Loaded, Step

NUM_WARM_UPS = 3
NUM_DRY = 5
"""Calls without a program, for the host's clock."""
AHEAD_CYCLES = 2_000_000
"""About 1 ms: keeps the card busy until the host has queued all nodes of a run."""
FLUSH_BYTES_PER_L2 = 4
MIN_FLUSH_BYTES = 256 << 20
"""As in triton.testing.do_bench: long enough (about 80 us) that the replay is queued behind it."""


class Flush:
    """Memory to write before a timed call, several times the L2 cache."""

    def __init__(self) -> None:
        l2_bytes = int(getattr(torch.cuda.get_device_properties(), "L2_cache_size", 0) or 0)
        size = max(MIN_FLUSH_BYTES, FLUSH_BYTES_PER_L2 * l2_bytes)
        self._memory = torch.empty(size // 4, dtype=torch.int32, device="cuda")

    def write(self) -> None:
        self._memory.zero_()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One timed call."""

    gpu_us: float
    wall_us: float
    changed: list[int]
    """Storages that should be intact and are not."""

    def body(self) -> dict[str, Any]:
        return {"gpu_us": self.gpu_us, "wall_us": self.wall_us, "changed": self.changed}


class Timer:
    """Times one loaded program; keeps its graph between requests."""

    def __init__(self, loaded: Loaded, exchange: Exchange, flush: Flush) -> None:
        self._loaded, self._exchange, self._flush = loaded, exchange, flush
        self._graph: torch.cuda.CUDAGraph | None = None
        self.no_graph = ""
        """Reason why the stream is timed; empty if a graph is."""
        self._is_ready = False
        self._bindings: dict[int, tuple[torch.Tensor, int]] = {}

    def calls(self, calls: Sequence[Call]) -> list[Timed]:
        """Times each call once, after warm-ups on the first one. Raises as `Loaded.run`."""
        if not self._is_ready:
            self._get_ready(calls[0])
        times: list[tuple[float, float]] = []
        flags: list[torch.Tensor | None] = []
        self._exchange.prepare(calls[0])
        for call, following in zip(calls, [*calls[1:], None], strict=True):
            times.append(self._clocked(self._replay))
            flags.append(self._exchange.turn(call, following))
        return [
            Timed(gpu_us=gpu_us, wall_us=wall_us, changed=self._exchange.changed(call, flag))
            for call, (gpu_us, wall_us), flag in zip(calls, times, flags, strict=True)
        ]

    def dry(self) -> list[float]:
        """Host times of calls without a program, in us."""
        return [self._clocked(lambda: None)[1] for _ in range(NUM_DRY)]

    def by_node(self, call: Call, *, num_runs: int) -> list[float]:
        """Median GPU time of each node of `forward` in us, behind a card that is kept busy."""
        rows: list[list[float]] = []
        for _ in range(num_runs):
            self._exchange.prepare(call)
            self._flush.write()
            torch.cuda._sleep(AHEAD_CYCLES)
            rows.append(self._run_nodes())
        return [statistics.median(column) for column in zip(*rows, strict=True)]

    def close(self) -> None:
        """Destroys the graph, before anything that it uses is unmapped."""
        if self._graph is not None:
            self._bindings = {}
            self._loaded.places.rebind({})
            self._graph.reset()
            self._graph = None
        self._is_ready = False

    def _get_ready(self, call: Call) -> None:
        for _ in range(NUM_WARM_UPS):
            self._exchange.prepare(call)
            self._loaded.run(Section.FORWARD)
        torch.cuda.current_stream().synchronize()
        self._capture()
        for _ in range(NUM_WARM_UPS):
            self._exchange.prepare(call)
            self._clocked(self._replay)
        self._is_ready = True

    def _capture(self) -> None:
        loaded = self._loaded
        graph = torch.cuda.CUDAGraph()
        loaded.is_capturing = True
        try:
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                loaded.run(Section.FORWARD)
            finally:
                graph.capture_end()
            self._graph = graph
            self._bindings = loaded.places.bindings()
        except Faulted:
            raise
        except (CannotRun, RuntimeError) as error:
            self.no_graph = str(error).split("\n")[0][:300]
        finally:
            loaded.is_capturing = False

    def _replay(self) -> None:
        if self._graph is not None:
            self._loaded.places.rebind(self._bindings)
            self._graph.replay()
        else:
            self._loaded.run(Section.FORWARD)

    def _clocked(self, work: Callable[[], None]) -> tuple[float, float]:
        """(GPU time, host time) in us. Raises Faulted where the card has failed."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._loaded.driver.reset_persisting()
        torch.cuda.current_stream().synchronize()
        began = time.perf_counter_ns()
        self._flush.write()
        start.record()
        work()
        end.record()
        try:
            end.synchronize()
        except RuntimeError as error:
            raise Faulted(str(error).split("\n")[0], step=None) from error
        wall_us = (time.perf_counter_ns() - began) / 1e3
        return start.elapsed_time(end) * 1e3, wall_us

    def _run_nodes(self) -> list[float]:
        loaded = self._loaded
        steps: list[Step] = loaded.forward
        events = [torch.cuda.Event(enable_timing=True) for _ in range(len(steps) + 1)]
        loaded.begin(Section.FORWARD)
        events[0].record()
        with loaded.torch_memory():
            for step, event in zip(steps, events[1:], strict=True):
                loaded.step(step)
                event.record()
        try:
            events[-1].synchronize()
        except RuntimeError as error:
            raise Faulted(str(error).split("\n")[0], step=None) from error
        return [start.elapsed_time(end) * 1e3 for start, end in pairwise(events)]
