# pyright: strict
"""One program in an executor: its memory, its calls, its timed calls, and what they left.

Promise: what is compared is what lies in the judge's memory after a call, for every call, timed
ones included; the executor answers with times and with what its driver saw. The caller decides who
else may use the card: `call` runs beside others, `tune` and `nodes` alone; `timed` takes its turns.

The memory is one block, which the executor maps between a program's calls and never while one runs.
A place in it holds what one call needs: the contents of an input set, parameters, a slot for each
output. Expected outputs stay in the judge's own memory.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import TypeAlias, TypeVar

import torch

from forge.evalpool.judge.channel.shm import TensorSpec
from forge.evalpool.judge.channel.words import at_line
from forge.evalpool.judge.compiler.binary import Binary, Failure
from forge.evalpool.judge.driver.gpu_memory import Block
from forge.evalpool.judge.execute import executors
from forge.evalpool.judge.execute.call import BLOCK_ALIGNMENT_BYTES, Call, ChoiceReport, NodeTime
from forge.evalpool.judge.numbers.called import CHUNK
from forge.evalpool.judge.numbers.protocols import Tf32
from forge.evalpool.judge.program.format import Origin, Program
from forge.evalpool.judge.program.readers import InvalidProgram
from forge.evalpool.judge.program.walk import returned_inputs
from forge.evalpool.judge.timing.baseline import Time
from forge.evalpool.judge.trial.draws import widened
from forge.evalpool.judge.trial.gpu.references import CardDraw, spec_of, view
from forge.evalpool.judge.trial.gpu.turns import Turn
from forge.evalpool.judge.trial.judgement import Left, may_stay
from forge.evalpool.judge.trial.trial import Decided
from forge.records.reason import Reason, Status

BUDGET_BYTES = 1 << 30
"""Memory that the places of one program may take; it has one place at least."""
MAX_PLACES = 16
"""The block of more would take the executor longer to map, before and after each call."""
FEW_SHARE = 1 / 16
POISON = 0xFF
"""Byte of slots that no call has written: NaN in every floating dtype."""


class Mixture(StrEnum):
    """Elements of an input that come from another set."""

    SECOND_HALF = "second half"
    FIRST_HALF = "first half"
    HALF = "half"
    """A random half of all elements."""
    FEW = "few"
    """A random share of FEW_SHARE."""

    def chosen(self, start: int, num: int, *, length: int, draw: torch.Generator) -> torch.Tensor:
        """[num] True for those from the other set, from `start` on, in rows of `length`."""
        if self in (Mixture.HALF, Mixture.FEW):
            share = 0.5 if self is Mixture.HALF else FEW_SHARE
            return torch.rand(num, device=draw.device, generator=draw) < share
        place = torch.arange(start, start + num, device=draw.device) % length
        is_behind = place >= (length + 1) // 2
        return is_behind if self is Mixture.SECOND_HALF else is_behind.logical_not()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A storage that the judge fills, and the tensor of the reference that it is like."""

    storage: int
    offset: int
    """Within a place."""
    input: int = -1
    """Position among the tensor inputs; -1 for a parameter."""
    tensor: int = -1
    """Index of a parameter in the reference; -1 for an input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """An input or a parameter that the reference changes."""

    tensor: int
    """Index in the reference; of an input in its first set."""
    storage: int
    """-1 where the program does not have it."""
    slot: int
    """For its content after a call."""


class ProgramMemory:
    """Places of one program."""

    def __init__(
        self,
        program: Program,
        content: CardDraw,
        *,
        create: Callable[[int], Block],
        written: Collection[str] = (),
        kinds: Collection[str] = (),
        budget_bytes: int = BUDGET_BYTES,
    ) -> None:
        """`written` are parameters that the reference writes to; `kinds` types that the program has
        in float64: contents are made wide as they are put into a place, so that they take no memory
        but there. Raises InvalidProgram for other inputs or parameters than the reference's, or
        DriverError."""
        self._draw, self._tensors = content.draw, content.tensors
        self.is_small = content.host is not None
        """True if a call's tensors are copied at once."""
        draw, named = content.draw, content.draw.named
        self._written = frozenset(named[name] for name in written if name in named)
        self._statistics = frozenset(
            named[name] for name in written if name in named and may_stay(name, draw)
        )
        self._program, self._kinds = program, kinds
        self._end = 0
        self._sources = [
            self._source(number)
            for number, storage in enumerate(program.storages)
            if storage.origin in (Origin.INPUT, Origin.PARAMETER)
        ]
        self._first = self._end
        """Byte of a place from which on its slots are."""
        outputs = [program.tensors[number] for number in program.outputs]
        self._specs = [TensorSpec(one.dtype, one.shape) for one in outputs]
        self._slots = [self._next(spec.num_bytes) for spec in self._specs]
        self._changed = [self._state(position=position) for position in draw.sets[0].changed]
        self._states = [self._state(tensor=named[name]) for name in draw.changed_parameters]
        self.num_places = min(MAX_PLACES, max(1, budget_bytes // max(self._end, 1)))
        self.block = create(self._end * self.num_places)
        self._bytes: torch.Tensor | None = self.block.bytes()

    def load(self, place: int, number: int) -> None:
        """Puts input set `number` and the parameters into a place, and poison into its slots."""
        start = self._start(place)
        first = self._slots[0] if self._slots else self._end
        if first < self._end:
            self.block.fill(start + first, self._end - first, POISON)
        for source in self._sources:
            content = self._content(source, number)
            spec = widened(spec_of(content), self._kinds)
            if content.numel() and spec == spec_of(content):
                self.block.put(start + source.offset, content)
            elif content.numel():
                view(self._memory(place), spec, source.offset).copy_(content)
        for state in self._states:
            others = self._draw.sets[number].parameters
            content = self._tensors[others.get(state.tensor, state.tensor)]
            if state.storage < 0 and content.numel():
                self.block.put(start + state.slot, content)

    def mix(self, place: int, number: int, *, mixture: Mixture, seed: int) -> None:
        """Puts elements of another set's floating inputs into a loaded place; where the mixture is
        random, the seed decides which."""
        memory = self._memory(place)
        for source in self._sources:
            content = self._content(source, number)
            if source.input < 0 or not content.is_floating_point():
                continue
            draw = torch.Generator(content.device)
            draw.manual_seed(seed + source.input)
            target, news = view(memory, spec_of(content), source.offset).view(-1), content.view(-1)
            length = content.shape[-1] if content.dim() else 1
            for start in range(0, len(target), CHUNK):
                part = target[start : start + CHUNK]
                is_new = mixture.chosen(start, len(part), length=length, draw=draw)
                part.copy_(torch.where(is_new, news[start : start + CHUNK], part))

    @property
    def has_statistics(self) -> bool:
        """True if the program has statistics of a norm that the reference writes to."""
        return any(source.tensor in self._statistics for source in self._sources)

    def call(self, place: int, *, seed: int, is_lasting: bool = False) -> Call:
        """The call that uses a place; if it `is_lasting`, statistics of a norm stay as the call
        before left them."""
        start = self._start(place)
        changing = self._draw.sets[0].changed
        returned = returned_inputs(self._program)
        fills = tuple(
            (source.storage, start + source.offset)
            for source in self._sources
            if not (is_lasting and source.tensor in self._statistics)
        )
        intact = tuple(
            (source.storage, start + source.offset)
            for source in self._sources
            if source.input not in changing
            and source.input not in returned
            and source.tensor not in self._written
        )
        slots = (start + slot for slot in self._slots)
        kept = (one for one in (*self._changed, *self._states) if one.storage >= 0)
        return Call(
            fills=fills,
            takes=tuple(zip(self._program.outputs, slots, strict=True)),
            copies=tuple((one.storage, start + one.slot) for one in kept),
            intact=intact,
            seed=seed,
        )

    def outputs(self, place: int) -> list[torch.Tensor]:
        """Outputs of the last call in a place, then the inputs that the reference changes, as the
        program left them. Views of the block, or of a copy where they are compared on the host."""
        changed = ((self._spec(one.tensor), one.slot) for one in self._changed)
        slots = [*zip(self._specs, self._slots, strict=True), *changed]
        memory = self._left(place)
        return [view(memory, spec, slot - self._first) for spec, slot in slots]

    def parameters(self, place: int) -> list[torch.Tensor]:
        """`Draw.changed_parameters` as the last call in a place left them; those that the
        program does not have, as they were. As `outputs`."""
        if not self._states:
            return []
        memory = self._left(place)
        return [
            view(memory, self._spec(one.tensor), one.slot - self._first) for one in self._states
        ]

    def close(self) -> None:
        self._bytes = None
        self.block.close()

    def _left(self, place: int) -> torch.Tensor:
        """Memory of a place from `_first` on."""
        found = self._memory(place)[self._first :]
        return found.cpu() if self.is_small else found

    def _memory(self, place: int) -> torch.Tensor:
        assert self._bytes is not None
        start = self._start(place)
        return self._bytes[start : start + self._end]

    def _start(self, place: int) -> int:
        assert 0 <= place < self.num_places
        return place * self._end

    def _content(self, source: _Source, number: int) -> torch.Tensor:
        one = self._draw.sets[number]
        own = one.parameters.get(source.tensor, source.tensor)
        return self._tensors[own if source.input < 0 else one.inputs[source.input]]

    def _spec(self, index: int) -> TensorSpec:
        return widened(self._draw.specs[index], self._kinds)

    def _next(self, num_bytes: int) -> int:
        start = self._end
        self._end += -(-max(num_bytes, 1) // BLOCK_ALIGNMENT_BYTES) * BLOCK_ALIGNMENT_BYTES
        return start

    def _source(self, number: int) -> _Source:
        storage, named = self._program.storages[number], self._draw.named
        if storage.origin is Origin.INPUT:
            inputs = self._draw.sets[0].inputs
            if storage.index >= len(inputs):
                raise InvalidProgram(f"storages[{number}]: the problem has {len(inputs)} inputs")
            place, tensor, index = storage.index, -1, inputs[storage.index]
        else:
            if storage.name not in named:
                raise InvalidProgram(f"storages[{number}]: Model has no {storage.name[:80]}")
            place, tensor = -1, named[storage.name]
            index = tensor
        num_bytes = self._spec(index).num_bytes
        if num_bytes != storage.num_bytes:
            raise InvalidProgram(f"storages[{number}]: {storage.num_bytes} bytes for {num_bytes}")
        return _Source(storage=number, offset=self._next(num_bytes), input=place, tensor=tensor)

    def _state(self, *, position: int = -1, tensor: int = -1) -> _State:
        """A slot for an input, by its position, or for a parameter."""
        pair = position, tensor
        found = (one.storage for one in self._sources if (one.input, one.tensor) == pair)
        index = self._draw.sets[0].inputs[position] if tensor < 0 else tensor
        slot = self._next(self._spec(index).num_bytes)
        return _State(tensor=index, storage=next(found, -1), slot=slot)


T = TypeVar("T")
Choices: TypeAlias = tuple[tuple[int, int], ...]
"""Pairs of a choice's step and one of its alternatives."""

PLACEMENTS = ("end", "start")
"""Checked calls in turn: an access behind a buffer faults in one, one before it in the other."""
SLACKS = (0xFF, 0x7E, 0x00)
"""Bytes beside the buffers in turn: NaN, large numbers, zeros. A kernel that reads there is wrong
with one of them."""
FEW_CALLS, MANY_CALLS = (10, 12), (20, 24)
"""Timed calls, drawn from these: a program must not know which is the last. Many where the times
of few are not steady."""
TIMED_S = 0.4
"""Time after which few calls are enough, comparisons included."""
RANDOM_SHARE = 0.75
"""Share of the timed calls in which memory that nothing has written has random bytes."""
FAULT_DETAIL = "a kernel loads or stores outside its tensors: check offsets and masks"
OUT_OF_BOUNDS_DETAIL = "a kernel stores beside a tensor: check offsets and masks"


@dataclass(slots=True, kw_only=True)
class ProgramRun:
    """One program in one executor."""

    executor: executors.Executor
    program: Program
    data: bytes
    binaries: Sequence[Binary | Failure]
    memory: ProgramMemory
    code: str
    """The candidate's source, for messages."""
    decided: Callable[..., Decided]
    """The end of a judgement of status, reason and detail."""
    correct_timeout_s: float
    timing_timeout_s: float
    deadline: float
    """For all checked calls together, monotonic."""
    tf32: Tf32
    synchronize: Callable[[], None]
    """Waits for the judge's own work on the card."""
    draw: secrets.SystemRandom = field(default_factory=secrets.SystemRandom)
    num_calls: int = 0
    """Checked calls so far, but those on what the one before left."""
    _last: Call | None = None

    def load(self) -> None:
        """Raises Decided, as all below."""
        load = partial(
            self.executor.load,
            self.program,
            self.data,
            self.binaries,
            block_fd=self.memory.block.fd,
            block_bytes=self.memory.block.num_bytes,
            tf32=self.tf32.request,
        )
        self._ask("load", self.correct_timeout_s, load)

    def tune(self) -> list[ChoiceReport]:
        """Times every open choice. Alone on the card."""
        call = self._loaded_call(number=0)
        return self._ask("tune", self.timing_timeout_s, partial(self.executor.tune, call))

    def calls(
        self, numbers: Sequence[int], *, kept: Collection[int] = (), choices: Sequence[Choices] = ()
    ) -> list[Left]:
        """Checked calls, each on an input set in a place of its own: at most as many as there are.
        `kept` are positions of calls on what the one before left; `choices` the alternatives of
        each call in place of the winners."""
        calls = [
            self._checked(place, number, is_kept=place in kept)
            for place, number in enumerate(numbers)
        ]
        if choices:
            pairs = zip(calls, choices, strict=True)
            calls = [replace(call, choices=chosen) for call, chosen in pairs]
        return self._ran(numbers, calls)

    def remembered(self, first: int, second: int, *, mixture: Mixture) -> tuple[Left, Left]:
        """Two calls on the same inputs, which mix two sets: one on what a call on set `first` left,
        and one on memory that is poisoned. Takes three places."""
        calls = [self._checked(place, first, is_kept=place == 1) for place in range(3)]
        seed = self._seed()
        for place in (1, 2):
            self.memory.mix(place, second, mixture=mixture, seed=seed)
        _, on_left, alone = self._ran([first] * 3, calls)
        return on_left, alone

    def lasting(self, first: int, second: int) -> list[Left]:
        """Calls on two sets by turns, as many as there are places, each on what the one before
        left, also in the statistics of a norm that the reference writes to. What they leave in
        parameters is not theirs alone."""
        numbers = [second if place % 2 else first for place in range(self.memory.num_places)]
        calls = [self._checked(*one, is_kept=one[0] > 0) for one in enumerate(numbers)]
        for place in range(1, len(calls)):
            fills = self.memory.call(place, seed=0, is_lasting=True).fills
            calls[place] = replace(calls[place], fills=fills)
        return [replace(one, parameters=None) for one in self._ran(numbers, calls)]

    def _ran(self, numbers: Sequence[int], calls: Sequence[Call]) -> list[Left]:
        self.synchronize()
        run = partial(self.executor.run, calls)
        reports = self._ask("correct", self.correct_timeout_s, run, deadline=self.deadline)
        if any(report.written for report in reports):
            raise self.decided(Status.RUNTIME_ERROR, Reason.OUT_OF_BOUNDS, OUT_OF_BOUNDS_DETAIL)
        return [
            self._left(place, number, is_kept=not report.changed)
            for place, (number, report) in enumerate(zip(numbers, reports, strict=True))
        ]

    def _left(self, place: int, number: int, *, is_kept: bool) -> Left:
        parameters = self.memory.parameters(place)
        return Left(number, self.memory.outputs(place), is_kept, parameters=parameters)

    def _checked(self, place: int, number: int, *, is_kept: bool) -> Call:
        """A checked call on a set whose contents are on their way to a place."""
        is_first = self._last is None
        is_kept = is_kept and not is_first
        if is_kept and self._last is not None:
            slack, placement = self._last.slack, self._last.placement
        else:
            slack = SLACKS[self.num_calls % len(SLACKS)]
            placement = PLACEMENTS[self.num_calls % len(PLACEMENTS)]
            self.num_calls += 1
        call = self._filled(place, number, poison=0 if is_first else self._seed())
        call = replace(call, slack=slack, placement=placement, is_kept=is_kept)
        self._last = call
        return call

    def timed(
        self,
        numbers: Sequence[int],
        check: Callable[[Sequence[Left]], None],
        *,
        unseen: Sequence[int] = (),
        shared: Turn,
        alone: Turn,
        finish: Callable[[], None] = lambda: None,
    ) -> Time:
        """Times calls on input sets drawn from `numbers`, at secret places.

        Args:
            unseen: sets of which each is in a call, since no checked call had them.
            check: called after calls with what they left; may raise Decided.
            shared: holds the card beside others, while inputs are copied and outputs compared.
            alone: holds the card alone, while calls are timed, and inputs are copied that are
                small: each turn is waited for with an executor in hand.
            finish: called in the last turn beside others.
        """
        spent_s = checked_s = 0.0
        times_us: list[float] = []
        for least, most in (FEW_CALLS, MANY_CALLS):
            num = self.draw.randint(least, most) - len(times_us)
            drawn = [] if times_us else list(unseen)
            drawn = [*drawn, *(self.draw.choice(numbers) for _ in range(num))][:num]
            self.draw.shuffle(drawn)
            batches = range(0, num, len(self._timed_places))
            for start in batches:
                batch = drawn[start : start + len(self._timed_places)]
                filled = None
                if not self.memory.is_small:
                    with shared():
                        filled = self._filled_batch(batch, warm_up=numbers[0])
                        self.synchronize()
                with alone():
                    if filled is None:
                        filled = self._filled_batch(batch, warm_up=numbers[0])
                        self.synchronize()
                    began = time.monotonic()
                    end, limit_s = began + self.timing_timeout_s - spent_s, self.timing_timeout_s
                    timed = partial(self.executor.time, filled[0], warm_up=filled[1])
                    found = self._ask("time", limit_s, timed, deadline=end)
                    spent_s += time.monotonic() - began
                with shared():
                    began = time.monotonic()
                    every = zip(self._timed_places, batch, found, strict=False)
                    check([self._left(*one, is_kept=not call.changed) for *one, call in every])
                    checked_s += time.monotonic() - began
                    times_us += [call.gpu_us for call in found]
                    measured = Time.of(tuple(times_us))
                    is_last = (least, most) == MANY_CALLS or measured.is_steady()
                    is_last = is_last or spent_s + checked_s > TIMED_S
                    if start == batches[-1] and is_last:
                        finish()
                        return measured
        raise AssertionError("the last batch of many calls is the last one")

    def nodes(self, number: int) -> list[NodeTime]:
        """GPU time of each node on an input set. Alone on the card."""
        call = self._loaded_call(number=number)
        return self._ask("time", self.timing_timeout_s, partial(self.executor.nodes, call))

    def close(self) -> None:
        try:
            if self.executor.is_alive:
                self.executor.unload(deadline=time.monotonic() + self.correct_timeout_s)
        except (executors.ProgramFault, executors.ProgramRefused, executors.ExecutorGone):
            self.executor.end()
        finally:
            self.memory.close()

    @property
    def _timed_places(self) -> range:
        """Places of timed calls: place 0 is that of the warm-ups, unless it is the only one."""
        num = self.memory.num_places
        return range(1 if num > 1 else 0, num)

    def _filled_batch(self, numbers: Sequence[int], *, warm_up: int) -> tuple[list[Call], Call]:
        """A call on each input set, and the call before them, on the set `warm_up`."""
        places = self._timed_places[: len(numbers)]
        calls = [self._filled(*one) for one in zip(places, numbers, strict=True)]
        return calls, self._filled(0, warm_up) if places.start else calls[0]

    def _loaded_call(self, *, number: int) -> Call:
        call = self._filled(0, number)
        self.synchronize()
        return call

    def _filled(self, place: int, number: int, *, poison: int | None = None) -> Call:
        """The call on an input set in a place, whose contents are on their way there. Without a
        given poison it has one of the two kinds that checked calls have."""
        self.memory.load(place, number)
        if poison is None:
            poison = self._seed() if self.draw.random() < RANDOM_SHARE else 0
        return replace(self.memory.call(place, seed=self._seed()), poison=poison)

    def _seed(self) -> int:
        return 1 + self.draw.randrange(1 << 60)

    def _ask(
        self, phase: str, limit_s: float, ask: Callable[..., T], *, deadline: float | None = None
    ) -> T:
        try:
            return ask(deadline=time.monotonic() + limit_s if deadline is None else deadline)
        except executors.ProgramRefused as error:
            unknown = Status.RUNTIME_ERROR, Reason.EXCEPTION
            status, reason = REFUSALS.get(error.reason, unknown)
            detail = at_line(self.code, error.line, str(error))
            raise self.decided(status, reason, detail) from None
        except executors.ProgramFault as error:
            line = error.step.line if error.step else 0
            where = f" in {error.step.what}" if error.step else ""
            if error.reason == "gpu_fault":
                detail = at_line(self.code, line, f"{error}{where}\n{FAULT_DETAIL}")
                raise self.decided(Status.RUNTIME_ERROR, Reason.GPU_FAULT, detail) from None
            detail = f"no answer within {limit_s:.3g} s{where}: does a loop end?"
            detail = at_line(self.code, line, detail)
            raise self.decided(Status.TIMEOUT, f"deadline:{phase}", detail) from None
        except executors.ExecutorGone as error:
            raise self.decided(Status.INFRA_ERROR, Reason.GPU_UNAVAILABLE, str(error)) from None


REFUSALS = {
    "out_of_memory": (Status.RUNTIME_ERROR, Reason.OUT_OF_MEMORY),
    "out_of_resources": (Status.RUNTIME_ERROR, Reason.OUT_OF_RESOURCES),
    "result": (Status.REJECTED, Reason.UNSUPPORTED),
    "launch": (Status.REJECTED, Reason.UNSUPPORTED),
    "value": (Status.REJECTED, Reason.UNSUPPORTED),
}
"""Verdicts by the executor's reason to refuse a program; by any other it raised."""
