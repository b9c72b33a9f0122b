"""Reference results, by problem: what a candidate is given, and what it is compared with.

Called by `trial.py`. Asks an oracle for each draw, keeps the results of a bounded number of
problems, and has them made anew with fresh OS-random seeds after `MAX_USES` candidates. All that
comes from one judgement to the next is the feedback, so sharing inputs among a few candidates tells
them a few expected numbers each, which is too much only where there are few (`max_uses`).
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.channel.shm import (
    LARGE_BYTES,
    LayoutError,
    TensorSpec,
    offsets,
    shared_memory,
    taken,
)
from forge.evalpool.judge.channel.values import fill, is_same, unwritten_byte
from forge.evalpool.judge.channel.words import clean, is_out_of_memory, without_paths
from forge.evalpool.judge.numbers.compare import Expected
from forge.evalpool.judge.numbers.tolerance import rounding_in
from forge.evalpool.judge.trial.oracles import Oracles, OutOfMemory

if TYPE_CHECKING:
    import mmap
    import socket
    from collections.abc import Callable, Collection, Generator

    from forge.evalpool.judge.channel.shm import Data
    from forge.evalpool.judge.children.spawner import SandboxedChild, Spawner
    from forge.records.problem import ReferenceModule


MAX_PROBLEMS = 32
"""More than are usually played at once. Each holds 10 to 400 kB, and each change leaves holes
in the heap: 2.5 MB with 64 of them, half with 32 (bench/RESULTS.md, "Soak")."""
MAX_CACHED_BYTES = 256 << 20
MAX_USES = 32
"""Candidates judged on one draw of inputs and parameters: a group of 8 with 3 turns on 2 judges
needs it once."""
MAX_TENSORS = 20_000
RECURRENT = ("rnn", "lstm", "gru")
"""In names of operations whose products have no FLOPs of their own."""
FAILED_S = 120.0
"""Time for which a failure of a reference stands for the next candidates."""
MAX_FAILURES = 256

Tree = list[Any]


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


def max_uses(num_expected: int) -> int:
    """Candidates that a draw is given to whose outputs are so many numbers: as many, up to
    MAX_USES. A kernel that knows the answers to all input sets need not compute, and feedback tells
    up to three numbers: one that is expected, one that the kernel had, the largest error."""
    return max(1, min(num_expected, MAX_USES))


@dataclass(slots=True, kw_only=True)
class Reference:
    """One draw of a problem. `request` and `contents` go to a candidate; the rest never does."""

    request: dict[str, Any]
    """Body of the CANDIDATE frame, but for the code."""
    contents: list[Data | None]
    """Tensors of the shared memory before the first call: inputs and parameters; None for an
    unwritten slot."""
    starts: list[int]
    specs: list[TensorSpec]
    sets: list[InputSet]
    is_sequence: bool
    """True if it returns its outputs in a list or tuple."""
    operations: tuple[tuple[int, int], ...] = ()
    """(bytes, FLOPs) of each operation of one call."""
    names: frozenset[str] = frozenset()
    """Names of torch's operations of one call that read or write data."""
    has_products: bool = True
    """True if a call has products that TF32 may make inexact, or its operations are unknown."""
    num_uses: int = 0

    @property
    def max_uses(self) -> int:
        """Candidates that one draw may serve."""
        return max_uses(sum(one.size for one in self.sets[0].expected))

    @property
    def io_bytes(self) -> int:
        """Inputs and outputs of one call."""
        one = self.sets[0]
        return sum(self.specs[index].num_bytes for index in (*one.places, *one.slots))

    @property
    def memory_bytes(self) -> int:
        """Length of the shared memory."""
        return int(self.request["num_bytes"])

    @property
    def num_bytes(self) -> int:
        """Bytes of the inputs, parameters and outputs of one call."""
        places = [place for _, place in self.request["state"]]
        return self.io_bytes + sum(self.specs[place].num_bytes for place in places)

    def prepare(self) -> None:
        """Computes what the comparisons would compute, in their order, beside capture and calls."""
        for one in self.sets:
            for expected in (*one.expected, *one.changed.values()):
                expected.prepare()

    def has_elements(self, number: int) -> bool:
        """True if a call on an input set has something to compute."""
        one = self.sets[number]
        return any(expected.size for expected in (*one.expected, *one.changed.values()))

    def write(self, memory: mmap.mmap, place: int) -> None:
        """One tensor of the memory as it is before the first call."""
        self._write(memory, place, self.contents[place])

    def load(self, memory: mmap.mmap, number: int) -> None:
        """One input set to where a candidate finds it; its outputs unwritten."""
        one = self.sets[number]
        for place, content in zip(one.places, one.contents, strict=True):
            self._write(memory, place, content)
        for place in one.slots:
            self._write(memory, place, None)

    def are_inputs_kept(self, memory: memoryview[int], number: int) -> bool:
        """True if a call left alone what the reference leaves alone."""
        one = self.sets[number]
        pairs = enumerate(zip(one.places, one.contents, strict=True))
        return all(
            is_same(self.part(memory, place), content)
            for position, (place, content) in pairs
            if position not in one.changed
        )

    def part(self, memory: memoryview[int], place: int) -> memoryview[int]:
        """Bytes of a tensor in the memory."""
        start = self.starts[place]
        return memory[start : start + self.specs[place].num_bytes]

    def _write(self, memory: mmap.mmap, place: int, content: Data | None) -> None:
        start, spec = self.starts[place], self.specs[place]
        if content is None:
            fill(memory, start=start, num_bytes=spec.num_bytes, byte=unwritten_byte(spec))
        else:
            memory[start : start + len(content)] = content


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSet:
    """Arguments of one call and what must come of it. Sets of the same form share their memory."""

    tree: Tree
    places: tuple[int, ...]
    """Places of its input tensors, by index into the tensors of the memory."""
    contents: tuple[Data, ...]
    slots: tuple[int, ...]
    """Places in which a call leaves its outputs."""
    expected: tuple[Expected, ...]
    changed: dict[int, Expected]
    """Inputs that the reference changes, by position, as it leaves them."""
    variant: str
    """Name of its distribution; `given` for the problem's own."""
    state: dict[str, Expected] = field(default_factory=dict[str, Expected])
    """Parameters that the reference changes, by name, as it leaves them."""


class References:
    """Draws that oracles gave, kept. Safe to call from several threads."""

    def __init__(
        self,
        spawner: Spawner,
        *,
        num_sets: int,
        timeout_s: float,
        draw_timeout_s: float,
        uid: int | None,
        max_bytes: int,
        is_varied: bool = True,
    ) -> None:
        """
        Args:
            timeout_s: limit for the reference itself, and for any silence.
            draw_timeout_s: limit for a draw, most of which may be work of the judge's own.
            is_varied: draw inputs of several distributions and move parameters; else both are as
                the problem gives them.
        """
        self._oracles = Oracles(spawner, uid=uid, num_kept=1)
        self._num_sets = num_sets
        self._timeout_s = timeout_s
        self._draw_timeout_s = draw_timeout_s
        self._max_bytes = max_bytes
        self._is_varied = is_varied
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, Reference] = OrderedDict()
        self._failures = KnownFailures()
        self._ahead = ThreadPoolExecutor(1, "tolerances")

    def get(self, problem: ReferenceModule) -> Reference:
        """Raises ReferenceFailed, or ZygoteGone."""
        text = f"{problem.entry_point}\0{problem.precision}\0{problem.source}"
        key = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
        with self._lock:
            cached = self._cache.get(key)
            if cached is None or cached.num_uses >= cached.max_uses:
                self._failures.require_unknown(key)
                with self._failures.noted(key):
                    cached = self._cache[key] = self._draw(problem)
                if cached.memory_bytes >= LARGE_BYTES:
                    self._ahead.submit(cached.prepare)
            self._cache.move_to_end(key)
            while len(self._cache) > MAX_PROBLEMS or (
                len(self._cache) > 1 and self._size() > MAX_CACHED_BYTES
            ):
                self._cache.popitem(last=False)
            cached.num_uses += 1
            return cached

    def end_idle(self) -> None:
        """Ends the oracle that waits for a problem, and a thread."""
        self._oracles.clear()
        self._ahead.shutdown(cancel_futures=True)
        self._ahead = ThreadPoolExecutor(1, "tolerances")

    def _size(self) -> int:
        return sum(one.memory_bytes * 4 for one in self._cache.values())

    def _draw(self, problem: ReferenceModule) -> Reference:
        """Draws inputs as the problem gives them alone, if any others end its oracle."""
        try:
            try:
                with self._oracles.lent(problem) as oracle:
                    return self._ask(oracle, problem, is_plain=False)
            except frames.PeerGone:
                with self._oracles.lent(problem) as oracle:
                    return self._ask(oracle, problem, is_plain=True)
        except OutOfMemory as error:
            words = f"its reference needs more than {self._max_bytes / 1e9:.3g} GB"
            raise _too_large(problem, f"{words} (judge.memory_bytes)") from error
        except frames.DeadlinePassed as error:
            limit = f"{self._timeout_s:g} s (judge.compile_timeout_s and judge.correct_timeout_s)"
            words = f"the reference of {problem.problem_id} gave no results within {limit}"
            raise ReferenceFailed(clean(words)) from error
        except (frames.PeerGone, frames.FrameError, LayoutError) as error:
            cause = f"{type(error).__name__}: {error}"
            words = f"the reference of {problem.problem_id} ended its oracle: {cause}"
            raise ReferenceFailed(clean(without_paths(words))) from error

    def _ask(
        self, oracle: SandboxedChild, problem: ReferenceModule, *, is_plain: bool
    ) -> Reference:
        body = {
            "source": problem.source,
            "entry_point": problem.entry_point,
            "precision": problem.precision,
            "num_sets": self._num_sets,
            "device": "cpu",
            "reports": True,
            "tf32": False,
            "tf32_products": False,
            "max_bytes": self._max_bytes,
            "plain": is_plain or not self._is_varied,
            "moved": self._is_varied,
        }
        frames.send(oracle.sock, Kind.PROBLEM, body)
        answer = receive_answer(
            oracle.sock, timeout_s=self._timeout_s, draw_timeout_s=self._draw_timeout_s
        )
        if answer.kind is Kind.FAILED:
            kind, message = answer.body.get("type"), str(answer.body.get("message"))
            if kind == "ProblemTooLarge":
                raise _too_large(problem, message)
            if is_out_of_memory(f"{kind}: {message}"):
                raise OutOfMemory
            words = f"the reference of {problem.problem_id} fails: {kind}: {message}"
            raise ReferenceFailed(clean(without_paths(words)))
        specs = parse_specs(answer.body.get("tensors"))
        starts, num_bytes = offsets(specs)
        if num_bytes > self._max_bytes:
            raise OutOfMemory
        with shared_memory(num_bytes, is_returned=True) as (fd, memory):
            frames.send(oracle.sock, Kind.FILL, {}, fds=(fd,))
            deadline = time.monotonic() + self._timeout_s
            frames.receive(oracle.sock, deadline=deadline, expected=(Kind.DONE,))
            data = taken(fd, memory)
        parts: list[Data] = [
            data[start : start + spec.num_bytes] for start, spec in zip(starts, specs, strict=True)
        ]
        try:
            rounding = rounding_in(answer.body, problem.precision)
            return _Builder(specs, parts, precision=rounding).build(answer.body)
        except (KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
            raise LayoutError(f"{type(error).__name__}: {error}") from error


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


class _Builder:
    """Arranges an oracle's tensors into a candidate's memory: inputs, parameters, slots."""

    def __init__(self, specs: list[TensorSpec], parts: list[Data], *, precision: str) -> None:
        self._specs = specs
        self._parts = parts
        self._precision = precision
        self._chosen: list[TensorSpec] = []
        self._contents: list[Data | None] = []
        self._places: dict[str, tuple[int, ...]] = {}

    def build(self, layout: dict[str, Any]) -> Reference:
        if not layout["sets"]:
            raise LayoutError("no input set")
        init_parts: list[int] = []
        init = self._tree(layout["init"], init_parts)
        init = _placed(init, self._take("init", init_parts))
        sets = [self._set(one) for one in layout["sets"]]
        state_names = [str(name) for name, _ in layout["state"]]
        state_places = self._take("state", [index for _, index in layout["state"]])
        starts, num_bytes = offsets(self._chosen)
        tensors = [
            [spec.dtype, list(spec.shape), start]
            for spec, start in zip(self._chosen, starts, strict=True)
        ]
        request = {
            "init": init,
            "state": [list(pair) for pair in zip(state_names, state_places, strict=True)],
            "order": [str(name) for name in layout["order"]],
            "sets": [one.tree for one in sets],
            "tensors": tensors,
            "num_bytes": num_bytes,
            "slots": list(sets[0].slots),
        }
        return Reference(
            request=request,
            contents=self._contents,
            starts=starts,
            specs=self._chosen,
            sets=sets,
            is_sequence=layout["form"] == "list",
            operations=tuple((int(size), int(work)) for size, work in layout["operations"]),
            names=(names := frozenset(str(name) for name in layout["names"])),
            has_products=not names or int(layout["flops"]) > 0 or _is_recurrent(names),
        )

    def _set(self, one: dict[str, Any]) -> InputSet:
        parts: list[int] = []
        form = self._tree(one["inputs"], parts)
        specs = [self._specs[part] for part in parts]
        places = self._take(f"inputs {form} {specs}", parts)
        expected = tuple(
            self._expected(*pair) for pair in zip(one["outputs"], one["errors"], strict=True)
        )
        return InputSet(
            tree=_placed(form, places),
            places=places,
            contents=tuple(self._parts[part] for part in parts),
            slots=self._slots(expected),
            expected=expected,
            variant=str(one["variant"]),
            changed={
                position: self._expected(output, error)
                for position, output, error in one["changed"]
                if type(position) is int and 0 <= position < len(parts)
            },
            state={str(name): self._expected(part) for name, part in one["state"]},
        )

    def _tree(self, tree: Any, parts: list[int]) -> Tree:
        """The same tree with tensors numbered as they come; the oracle's indices go to `parts`.
        Refuses one that is not well-formed."""
        kind, value = tree
        if kind == "tensor":
            if type(value) is not int or not 0 <= value < len(self._specs):
                raise LayoutError(f"no tensor {str(value)[:40]}")
            parts.append(value)
            return ["tensor", len(parts) - 1]
        if kind == "permuted":
            tensor = self._tree(value[0], parts)
            return [kind, [tensor, parse_axes(value[1], self._specs[parts[-1]])]]
        if kind in ("list", "tuple"):
            return [kind, [self._tree(item, parts) for item in value]]
        if kind == "dict":
            return [kind, [[str(key), self._tree(item, parts)] for key, item in value]]
        if kind in ("value", "dtype", "config"):
            return [kind, value]
        raise LayoutError(f"unknown kind of argument {str(kind)[:40]}")

    def _take(self, key: str, parts: list[int]) -> tuple[int, ...]:
        """Places for these, the same ones for the same key."""
        if key not in self._places:
            taken = [self._append(self._specs[part], self._parts[part]) for part in parts]
            self._places[key] = tuple(taken)
        return self._places[key]

    def _append(self, spec: TensorSpec, content: Data | None) -> int:
        self._chosen.append(spec)
        self._contents.append(content)
        return len(self._chosen) - 1

    def _expected(self, output: int, error: int | None = None) -> Expected:
        return Expected.make(
            self._specs[output],
            self._parts[output],
            error=b"" if error is None else self._parts[error],
            precision=self._precision,
        )

    def _slots(self, expected: tuple[Expected, ...]) -> tuple[int, ...]:
        specs = [one.spec for one in expected]
        key = f"slots {specs}"
        if key not in self._places:
            self._places[key] = tuple(self._append(spec, None) for spec in specs)
        return self._places[key]


def _is_recurrent(names: Collection[str]) -> bool:
    """True if torch runs layers whose products are not counted by themselves."""
    return any(part in name for part in RECURRENT for name in names)


def _too_large(problem: ReferenceModule, words: str) -> ProblemTooLarge:
    return ProblemTooLarge(clean(f"{problem.problem_id} is too large for this judge: {words}"))


def _placed(tree: Tree, places: tuple[int, ...]) -> Tree:
    """A tree whose tensors are numbered, with their places instead."""
    kind, value = tree
    if kind == "tensor":
        return [kind, places[value]]
    if kind == "permuted":
        return [kind, [_placed(value[0], places), value[1]]]
    if kind in ("list", "tuple"):
        return [kind, [_placed(item, places) for item in value]]
    if kind == "dict":
        return [kind, [[key, _placed(item, places)] for key, item in value]]
    return tree


def parse_axes(data: Any, spec: TensorSpec) -> list[int]:
    """The order of a tensor's axes from an oracle's layout. Raises LayoutError."""
    if not isinstance(data, list) or sorted(data) != list(range(len(spec.shape))):
        raise LayoutError(f"no axes {str(data)[:40]}")
    return data


def parse_specs(data: Any) -> list[TensorSpec]:
    """Types and shapes from an oracle's layout. Raises LayoutError."""
    if not isinstance(data, list) or len(data) > MAX_TENSORS:
        raise LayoutError("no list of tensors")
    return [TensorSpec.parse(item) for item in data]
