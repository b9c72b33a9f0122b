"""Times a loaded program on the card: a CUDA graph behind a flush, or its stream where it has none.
And times the alternatives of its choices, and fixes the fastest of each.

Called by `child.py`, alone on the card. For each call: new inputs and parameters, `init` run again,
outputs and temporaries poisoned, persisting cache lines reset, the cache flushed **last**, then the
program between two events. An alternative that does not compile, load or launch is skipped with its
reason, as Triton's autotuner skips it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias

import torch

from forge.evalpool.judge.execute.call import BLOCK_ALIGNMENT_BYTES, Call, ChoiceReport, TimedCall
from forge.evalpool.judge.execute.gpu.card import REPLAY_CYCLES, RUN_CYCLES, Card, Graph
from forge.evalpool.judge.execute.gpu.places import POISON, Sealed
from forge.evalpool.judge.execute.gpu.run import CannotRun, Loaded, Step, reason_of
from forge.evalpool.judge.program.format import Choice, Origin, Section

# --- a program's buffers, filled before a call
#
# The judge writes inputs and parameters into a block that this process maps only here, never while
# the program runs; outputs are copied into the same block. Constants come from a sealed copy.


Source: TypeAlias = "tuple[int | None, int | None]"
"""Addresses of block and constants while they are mapped; None where there is none."""


@dataclass(slots=True, kw_only=True)
class Exchange:
    """Source of one loaded program's inputs and constants, and target of its outputs."""

    loaded: Loaded
    block: Sealed | None
    """The judge's memory; None where it sends none."""
    _constants: Sealed | None = None
    _offsets: dict[int, int] = field(default_factory=dict[int, int])

    def __post_init__(self) -> None:
        self._seal_constants()

    @property
    def _card(self) -> Card:
        return self.loaded.card

    def prepare(self, call: Call, *, is_checked: bool = False) -> None:
        """Sets everything that a program can reach: inputs and parameters from the block,
        constants, poison elsewhere; then runs `init`, and waits after each step of it if it
        `is_checked`. A call on what the one before left gets inputs, parameters and constants
        alone. Raises as `Loaded.run`."""
        with self._opened() as source:
            self._copy_in(call, source)
        self._begin(call, is_checked=is_checked)

    def collect(self, call: Call) -> torch.Tensor | None:
        """Copies the asked tensors into the block. Returns flags for `changed`, on the card."""
        with self._opened() as source:
            return self._copy_out(call, source)

    def turn(self, done: Call, following: Call | None) -> torch.Tensor | None:
        """`collect` of a call and `prepare` of the one that follows, with one mapping of the
        block. Returns the flags for `changed`, still on the card."""
        with self._opened() as source:
            flags = self._copy_out(done, source)
            if following is not None:
                self._copy_in(following, source)
        if following is not None:
            self._begin(following)
        return flags

    def changed(self, call: Call, flags: torch.Tensor | None) -> tuple[int, ...]:
        """Storages of a call that are not intact. Waits for the card."""
        if flags is None:
            return ()
        pairs = zip(self._watched(call), flags.tolist(), strict=True)
        return tuple(storage for (storage, _), is_changed in pairs if is_changed)

    def close(self) -> None:
        for one in (self.block, self._constants):
            if one is not None:
                one.close()
        self.block = self._constants = None

    @contextmanager
    def _opened(self) -> Iterator[Source]:
        """Maps what this program is filled from; the card is idle before it is unmapped."""
        with ExitStack() as mapped:
            block, constants = (
                None if one is None else mapped.enter_context(one.opened(stream=self._card.stream))
                for one in (self.block, self._constants)
            )
            yield block, constants

    def _copy_in(self, call: Call, source: Source) -> None:
        block, constants = source
        if constants is not None:
            for storage, offset in self._offsets.items():
                self._copy(storage, constants + offset)
        if block is not None:
            for storage, offset in call.fills:
                self._require(offset, self.loaded.program.storages[storage].num_bytes)
                self._copy(storage, block + offset)

    def _copy(self, storage: int, source: int) -> None:
        buffer = self.loaded.places.buffer(storage)
        self._card.driver.copy(buffer.address, source, buffer.num_bytes, stream=self._card.stream)

    def _begin(self, call: Call, *, is_checked: bool = False) -> None:
        """Leaves nothing of earlier calls in reach: `init` runs anew, all else is poisoned."""
        places = self.loaded.places
        self._card.seed(call.seed)
        if call.is_kept:
            return
        places.fill_slack(call.slack)
        places.poison(Section.INIT, seed=call.poison)
        self.loaded.run(Section.INIT, is_checked=is_checked)
        places.poison(Section.FORWARD, seed=call.poison)

    def _copy_out(self, call: Call, source: Source) -> torch.Tensor | None:
        """Copies outputs; returns a flag for each storage that is watched, true if it changed."""
        block, card = source[0], self._card
        if block is None:
            return None
        for number, offset in call.takes:
            tensor = self.loaded.places.tensor(number)
            self._require(offset, tensor.nbytes)
            if tensor.nbytes and tensor.is_contiguous():
                place = block + offset, tensor.data_ptr(), tensor.nbytes
                card.driver.copy(*place, stream=card.stream)
            elif tensor.nbytes:
                slot = card.bytes_at(block + offset, tensor.nbytes).view(tensor.dtype)
                slot.view(tensor.shape).copy_(tensor)
        for storage, offset in call.copies:
            buffer = self.loaded.places.buffer(storage)
            self._require(offset, buffer.num_bytes)
            place = block + offset, buffer.address, buffer.num_bytes
            card.driver.copy(*place, stream=card.stream)
        flags = [self._differs(storage, block + at) for storage, at in self._watched(call)]
        return torch.stack(flags) if flags else None

    def _watched(self, call: Call) -> list[tuple[int, int]]:
        storages = self.loaded.program.storages
        watched = [(one, offset) for one, offset in call.intact if storages[one].num_bytes]
        for storage, offset in watched:
            self._require(offset, storages[storage].num_bytes)
        return watched

    def _differs(self, storage: int, address: int) -> torch.Tensor:
        buffer = self.loaded.places.buffer(storage)
        own = self._card.bytes_at(buffer.address, buffer.num_bytes)
        other = self._card.bytes_at(address, buffer.num_bytes)
        if buffer.num_bytes % 8 == 0:  # both addresses are multiples of 16
            own, other = own.view(torch.int64), other.view(torch.int64)
        return (own != other).any()

    def _require(self, offset: int, num_bytes: int) -> None:
        """Raises ValueError for what does not lie in the block."""
        assert self.block is not None
        if (
            offset < 0
            or offset % BLOCK_ALIGNMENT_BYTES
            or offset + num_bytes > self.block.num_bytes
        ):
            raise ValueError(f"{num_bytes} bytes at {offset} of a block of {self.block.num_bytes}")

    def _seal_constants(self) -> None:
        program = self.loaded.program
        end = 0
        for number, storage in enumerate(program.storages):
            if storage.origin is Origin.CONSTANT:
                self._offsets[number] = end
                end += -(-storage.num_bytes // BLOCK_ALIGNMENT_BYTES) * BLOCK_ALIGNMENT_BYTES
        if not end:
            return
        self._constants = Sealed(self._card.pool, num_bytes=end)
        with self._constants.opened(stream=self._card.stream) as address:
            for number, offset in self._offsets.items():
                data = program.constants[program.storages[number].index]
                self._card.driver.upload(address + offset, data)


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
