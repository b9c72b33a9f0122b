"""Times a loaded program on the card: a CUDA graph behind a flush, or its stream where it has none.
And times the alternatives of its choices, and fixes the fastest of each.

Called by `child.py`, alone on the card. For each call: new inputs and parameters, `init` run again,
outputs and temporaries poisoned, persisting cache lines reset, the cache flushed **last**, then the
program between two events. An alternative that does not compile, load or launch is skipped with its
reason, as Triton's autotuner skips it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

from forge.evalpool.judge.execute.call import Call, ChoiceReport, TimedCall
from forge.evalpool.judge.execute.gpu.card import REPLAY_CYCLES, RUN_CYCLES, Graph
from forge.evalpool.judge.execute.gpu.exchange import Exchange
from forge.evalpool.judge.execute.gpu.places import POISON
from forge.evalpool.judge.execute.gpu.run import CannotRun, Loaded, Step, reason_of
from forge.evalpool.judge.program.format import Choice, Section

NUM_WARM_UPS = 1
"""Runs before the graph is captured, and replays of it before the first timed one."""
NUM_RUNS = 5
"""Runs of which a node's time is the median; of an alternative after one that is not timed."""
MAX_REASON = 500


class Timer:
    """Times one loaded program; keeps its graph between requests."""

    def __init__(self, loaded: Loaded, exchange: Exchange) -> None:
        self._loaded, self._exchange = loaded, exchange
        self._card = loaded.card
        self._graph: Graph | None = None
        self._graph_ranges: list[tuple[int, int]] = []
        self._is_ready = False
        self._bindings: dict[int, tuple[torch.Tensor, int]] = {}

    def calls(self, calls: Sequence[Call], *, warm_up: Call) -> list[TimedCall]:
        """Times each call once, after warm-ups on a call of its own. Raises as `Loaded.run`."""
        if not self._is_ready:
            self._get_ready(warm_up)
        times: list[float] = []
        flags: list[torch.Tensor | None] = []
        self._exchange.prepare(calls[0])
        for call, following in zip(calls, [*calls[1:], None], strict=True):
            times.append(self._clocked(self._replay))
            flags.append(self._exchange.turn(call, following))
        return [
            TimedCall(gpu_us=gpu_us, changed=self._exchange.changed(call, flag))
            for call, gpu_us, flag in zip(calls, times, flags, strict=True)
        ]

    def by_node(self, call: Call) -> list[float]:
        """Median GPU time of each node of `forward` in us, behind a card that is kept busy."""
        rows: list[list[float]] = []
        for _ in range(NUM_RUNS):
            self._exchange.prepare(call)
            self._card.flush()
            self._card.keep_busy(RUN_CYCLES)
            rows.append(self._run_nodes())
        return [statistics.median(column) for column in zip(*rows, strict=True)]

    def close(self) -> None:
        """Destroys the graph, before anything that it uses is unmapped."""
        if self._graph is not None:
            self._bindings = {}
            self._loaded.places.rebind({})
            self._graph.close()
            self._graph = None
            self._graph_ranges = []
        self._is_ready = False

    def _get_ready(self, call: Call) -> None:
        for _ in range(NUM_WARM_UPS):
            self._exchange.prepare(call)
            self._loaded.run(Section.FORWARD)
        self._loaded.synchronize()
        self._capture()
        for _ in range(NUM_WARM_UPS):
            self._exchange.prepare(call)
            self._clocked(self._replay)
        self._is_ready = True

    def _capture(self) -> None:
        loaded, graph = self._loaded, self._card.graph()
        loaded.is_capturing = True
        try:
            with graph.captured():
                loaded.run(Section.FORWARD)
            self._graph, self._graph_ranges = graph, graph.ranges()
            self._bindings = loaded.places.bindings()
        except torch.OutOfMemoryError as error:
            raise CannotRun("out_of_memory", str(error).split("\n")[0]) from error
        except CannotRun as error:
            if error.reason == "out_of_memory":
                raise
        except RuntimeError:
            pass  # what no graph can hold is timed in its stream
        finally:
            loaded.is_capturing = False

    def _replay(self) -> None:
        if self._graph is not None:
            self._loaded.places.rebind(self._bindings)
            self._graph.replay()
        else:
            self._loaded.run(Section.FORWARD)

    def _clocked(self, work: Callable[[], None]) -> float:
        """GPU time in us. Raises Faulted where the card has failed."""
        card = self._card
        start, end = card.event(), card.event()
        for address, num_bytes in self._torch_ranges():
            card.driver.fill(address, num_bytes, POISON, stream=card.stream)
        card.driver.reset_persisting()
        self._loaded.synchronize()
        card.flush()
        card.keep_busy(REPLAY_CYCLES)
        start.record()
        work()
        end.record()
        self._loaded.synchronize()
        return start.elapsed_time(end) * 1e3

    def _torch_ranges(self) -> list[tuple[int, int]]:
        """Memory of operations' results, which a kernel may reach from one of them."""
        if self._graph is not None:
            return self._graph_ranges
        return self._loaded.memory.ranges() if self._loaded.residency.floating else []

    def _run_nodes(self) -> list[float]:
        loaded = self._loaded
        steps: list[Step] = loaded.forward
        events = [self._card.event() for _ in range(len(steps) + 1)]
        loaded.begin(Section.FORWARD)
        events[0].record()
        with loaded.torch_memory():
            for step, event in zip(steps, events[1:], strict=True):
                loaded.step(step)
                event.record()
        loaded.synchronize()
        return [start.elapsed_time(end) * 1e3 for start, end in pairwise(events)]


class Tuner:
    """Tunes one loaded program."""

    def __init__(self, loaded: Loaded, exchange: Exchange) -> None:
        self._loaded, self._exchange = loaded, exchange
        self._found: list[ChoiceReport] = []

    def tune(self, call: Call) -> list[ChoiceReport]:
        """Fixes every choice of the program, in its order; one that the program fixed stays.

        Raises CannotRun where no alternative of a choice runs; else as `Loaded.run`.
        """
        self._exchange.prepare(call)
        for section in (Section.INIT, Section.FORWARD):
            self._loaded.begin(section)
            with self._loaded.torch_memory():
                self._walk(self._loaded.steps_of(section))
        return self._found

    def _walk(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if not isinstance(step.node, Choice):
                self._loaded.step(step)
                continue
            if step.chosen is None:
                self._choose(step)
            assert step.chosen is not None
            self._walk(step.alternatives[step.chosen])

    def _choose(self, step: Step) -> None:
        assert isinstance(step.node, Choice)
        times: list[float | None] = []
        reasons: list[str] = []
        for alternative, steps in zip(step.node.alternatives, step.alternatives, strict=True):
            times.append(None)
            if reason := reason_of(steps):
                reasons.append(reason)
                continue
            try:
                times[-1] = self._timed(steps, alternative.restored)
            except CannotRun as error:
                reasons.append(str(error)[:MAX_REASON])
        able = [(us, number) for number, us in enumerate(times) if us is not None]
        if not able:
            words = f"no configuration runs: {'; '.join(reasons[:3])}"
            raise CannotRun("out_of_resources", words, line=step.line)
        step.chosen = min(able)[1]
        report = ChoiceReport(step=step.number, chosen=step.chosen, times_us=tuple(times))
        self._found.append(report)

    def _timed(self, steps: Sequence[Step], restored: Sequence[int]) -> float:
        loaded, card = self._loaded, self._loaded.card
        tensors = [loaded.places.tensor(number) for number in restored]
        kept = [tensor.clone() for tensor in tensors]
        pairs: list[tuple[Any, Any]] = []
        for _ in range(NUM_RUNS + 1):
            start, end = card.event(), card.event()
            card.flush()
            start.record()
            for step in steps:
                loaded.step(step)
            end.record()
            for tensor, content in zip(tensors, kept, strict=True):
                tensor.copy_(content)
            pairs.append((start, end))
        loaded.synchronize(steps[0] if steps else None)
        return statistics.median(start.elapsed_time(end) * 1e3 for start, end in pairs[1:])
