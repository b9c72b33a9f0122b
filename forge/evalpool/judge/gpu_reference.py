"""Reference results on a GPU, by problem: the GPU side of `references.py`.

Called by `gpu_trial.py`. One draw is a block of the judge's own GPU memory that an oracle filled
and has let go of: all input sets, parameters, expected outputs. No candidate ever maps it; each
call's inputs are copied from it to the one place that a candidate sees (`CandidateMemory`), so that
every call finds new contents at the same address.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch

from forge.evalpool.judge import frames
from forge.evalpool.judge.frames import Kind
from forge.evalpool.judge.gpu_compare import finite_rms
from forge.evalpool.judge.gpu_memory import Block, create_block
from forge.evalpool.judge.references import ReferenceFailed, parse_specs
from forge.evalpool.judge.shm import LayoutError, TensorSpec, offsets
from forge.evalpool.judge.torch_work import parse_work
from forge.evalpool.judge.trial import count
from forge.evalpool.judge.words import clean, without_paths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.evalpool.judge.spawner import SandboxedChild, Spawner
    from forge.records.problem import Problem

MAX_USES = 32
"""Candidates judged on one draw, as on a CPU."""
MAX_PROBLEMS = 16
CACHE_SHARE = 0.1
"""Of the card's memory that kept draws may take together; one draw may take more."""
MANY, MIX_BLOCK = 65_536, 256
"""Above so many elements coins are thrown for blocks of this many, not for each."""
DRAW_SHARE = 0.3
"""Of the card's memory that the sets of one draw may take: the oracle holds them twice."""
SMALL_SHARE, LARGE_SHARE = 1 / 32, 0.75
"""Of the card's memory that torch gives an oracle: small ones work beside each other, as many as
there are candidates; one that needs more is drawn again, while no other such is."""
NUM_TIMED_SETS = 2
"""Sets that no candidate has seen before it is timed."""

Tree = list[Any]


class NoRoom(ReferenceFailed):
    """Its tensors are more than its oracle was allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """An input of a problem that works in place."""

    number: int
    """Among the inputs."""
    output: int
    error: int
    """Indices of its content afterwards, and of eager's error there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Set:
    """Indices of one input set's tensors."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    errors: tuple[int, ...]
    changed: tuple[Changed, ...] = ()
    """Inputs that forward must change in place."""


@dataclass(slots=True, kw_only=True)
class GpuReference:
    """One draw of a problem, in the judge's memory."""

    request: dict[str, Any]
    """Body of the CANDIDATE frame, but for the code; all sets lie in the same place."""
    flops: int
    """Of its matrix products, convolutions and attention."""
    work: dict[str, int] | None
    """What torch does in one call, by operation."""
    precision: str
    block: Block
    tensors: list[torch.Tensor]
    sets: list[Set]
    state: tuple[int, ...]
    is_sequence: bool
    """Whether forward returns a list or tuple."""
    rms: dict[int, float]
    """Of expected outputs, by index."""
    num_uses: int = 0
    num_holders: int = 0
    """Judgements that read it now: it is freed when none does."""
    is_retired: bool = False

    @property
    def num_checked(self) -> int:
        """Sets for correctness; the ones behind are first seen when timed."""
        return max(1, len(self.sets) - NUM_TIMED_SETS)

    @property
    def unseen(self) -> list[int]:
        """Sets that no candidate has had in its checked calls."""
        return list(range(self.num_checked, len(self.sets)))

    @property
    def to_mix(self) -> tuple[int, int]:
        """Two sets of which timed contents are made: unseen ones, where there are two."""
        first, second = ([0] * 2 + self.unseen)[-2:]
        return first, second

    @property
    def input_bytes(self) -> int:
        return sum(self.tensors[index].nbytes for index in self.sets[0].inputs)

    @property
    def output_bytes(self) -> int:
        return sum(self.tensors[index].nbytes for index in self.sets[0].outputs)


class CandidateMemory:
    """What one candidate shares with the judge: inputs, parameters, output slots, in one block."""

    def __init__(self, reference: GpuReference) -> None:
        self._reference = reference
        first = reference.sets[0]
        chosen = [*first.inputs, *reference.state, *first.outputs]
        likes = [reference.tensors[index] for index in chosen]
        starts, num_bytes = offsets([_spec(tensor) for tensor in likes])
        self.block = create_block(num_bytes)
        try:
            self._arrange(likes, starts)
        except BaseException:
            self.block.close()
            raise

    def _arrange(self, likes: list[torch.Tensor], starts: Sequence[int]) -> None:
        reference = self._reference
        first = reference.sets[0]
        memory = self.block.bytes()
        tensors = [
            _view(memory, _spec(like), start) for like, start in zip(likes, starts, strict=True)
        ]
        num_inputs, num_state = len(first.inputs), len(reference.state)
        self.inputs = tensors[:num_inputs]
        self.state = tensors[num_inputs : num_inputs + num_state]
        self.slots = tensors[num_inputs + num_state :]
        self.layout = [
            [_dtype(tensor), list(tensor.shape), start]
            for tensor, start in zip(tensors, starts, strict=True)
        ]
        for target, index in zip(self.state, reference.state, strict=True):
            target.copy_(reference.tensors[index])

    def load(self, number: int) -> None:
        """Puts input set `number` in place, and NaN into the slots."""
        for target, index in zip(self.inputs, self._reference.sets[number].inputs, strict=True):
            target.copy_(self._reference.tensors[index])
        self._clear()

    def load_mixed(self, first: int, second: int) -> None:
        """The same with blocks of two sets, by fresh coins: contents that nobody has seen, yet of
        the same values. Right outputs are not known."""
        sets, tensors = self._reference.sets, self._reference.tensors
        for target, a, b in zip(self.inputs, sets[first].inputs, sets[second].inputs, strict=True):
            mix(tensors[a].view(-1), tensors[b].view(-1), out=target.view(-1))
        self._clear()

    def _clear(self) -> None:
        for slot in self.slots:
            slot.view(-1).view(torch.uint8).fill_(0xFF)

    def are_inputs_same(self, number: int) -> bool:
        """Whether inputs and parameters are as they were loaded."""
        one = self._reference.sets[number]
        changed = {change.number for change in one.changed}
        pairs = [
            *(
                pair
                for at, pair in enumerate(zip(self.inputs, one.inputs, strict=True))
                if at not in changed
            ),
            *zip(self.state, self._reference.state, strict=True),
        ]
        return all(_same_bytes(ours, self._reference.tensors[index]) for ours, index in pairs)

    def close(self) -> None:
        self.block.close()


class GpuReferences:
    """What oracles gave, kept. Safe to call from several threads."""

    def __init__(
        self, spawner: Spawner, *, num_sets: int, timeout_s: float, uid: int | None, is_tf32: bool
    ) -> None:
        self._spawner = spawner
        self._num_sets = num_sets + NUM_TIMED_SETS
        self._timeout_s = timeout_s
        self._uid = uid
        self._is_tf32 = is_tf32
        self._lock = threading.Lock()
        self._drawing: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        self._large = threading.Lock()
        self._cache: OrderedDict[str, GpuReference] = OrderedDict()
        self._memory_bytes = torch.cuda.get_device_properties().total_memory

    def hold(self, problem: Problem) -> GpuReference:
        """A draw that stays until `let_go`. Raises ReferenceFailed, ZygoteGone, GpuMemoryError."""
        text = f"{problem.entry_point}\0{problem.precision}\0{problem.source}"
        key = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
        with self._lock:
            drawing = self._drawing.setdefault(key, threading.Lock())
        with drawing:  # two candidates of one problem wait for one oracle; two problems do not
            with self._lock:
                cached = self._cache.get(key)
                if cached is not None and cached.num_uses < MAX_USES:
                    return self._held(key, cached)
                self._retire(key)
            drawn = self._draw(problem)
            with self._lock:
                self._cache[key] = drawn
                return self._held(key, drawn)

    def let_go(self, reference: GpuReference) -> None:
        with self._lock:
            reference.num_holders -= 1
            self._free_unheld(reference)

    def _held(self, key: str, reference: GpuReference) -> GpuReference:
        reference.num_uses += 1
        reference.num_holders += 1
        self._cache.move_to_end(key)
        limit = CACHE_SHARE * self._memory_bytes
        while len(self._cache) > 1 and (
            len(self._cache) > MAX_PROBLEMS
            or sum(one.block.num_bytes for one in self._cache.values()) > limit
        ):
            self._retire(next(iter(self._cache)))
        return reference

    def _retire(self, key: str) -> None:
        reference = self._cache.pop(key, None)
        if reference is not None:
            reference.is_retired = True
            self._free_unheld(reference)

    def _free_unheld(self, reference: GpuReference) -> None:
        if reference.is_retired and reference.num_holders == 0:
            reference.tensors.clear()
            reference.block.close()

    def _draw(self, problem: Problem) -> GpuReference:
        try:
            return self._draw_within(problem, memory_share=SMALL_SHARE)
        except NoRoom:
            with self._large:
                return self._draw_within(problem, memory_share=LARGE_SHARE)

    def _draw_within(self, problem: Problem, *, memory_share: float) -> GpuReference:
        """Where the reference fails on inputs that it does not give itself, from those alone."""
        deadline = time.monotonic() + self._timeout_s
        asked = {"memory_share": memory_share, "plain": False}
        try:
            return self._draw_as(asked, problem, deadline=deadline)
        except NoRoom:
            raise
        except ReferenceFailed:
            return self._draw_as({**asked, "plain": True}, problem, deadline=deadline)

    def _draw_as(self, asked: dict[str, Any], problem: Problem, *, deadline: float) -> GpuReference:
        oracle = self._spawner.spawn(role="oracle", uid=self._uid)
        try:
            return self._ask(oracle, asked, problem, deadline=deadline)
        except (frames.PeerGone, frames.DeadlinePassed, frames.FrameError) as error:
            raise _failed(problem, f"ended its oracle: {type(error).__name__}: {error}") from error
        except LayoutError as error:
            raise _failed(problem, f"cannot be used: {type(error).__name__}: {error}") from error
        finally:
            self._spawner.end(oracle)

    def _ask(
        self, oracle: SandboxedChild, asked: dict[str, Any], problem: Problem, *, deadline: float
    ) -> GpuReference:
        body = {
            **asked,
            "source": problem.source,
            "entry_point": problem.entry_point,
            "precision": problem.precision,
            "num_sets": self._num_sets,
            "device": "cuda",
            "tf32": self._is_tf32,
            "max_bytes": int(DRAW_SHARE * self._memory_bytes),
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
            tensors = [_view(memory, spec, at) for spec, at in zip(specs, starts, strict=True)]
            return arrange(answer.body, tensors, block=block, precision=problem.precision)
        except BaseException as error:
            block.close()
            if isinstance(error, KeyError | TypeError | ValueError | IndexError | RecursionError):
                raise LayoutError(f"{type(error).__name__}: {error}") from error
            raise


def arrange(
    layout: dict[str, Any], tensors: list[torch.Tensor], *, block: Block, precision: str
) -> GpuReference:
    """Checks an oracle's layout. Raises LayoutError, or what a malformed one leads to."""
    sets, trees = [], []
    for one in layout["sets"]:
        found: list[int] = []
        trees.append(_tree(one["inputs"], found, count=len(tensors)))
        outputs, errors = _indices(one["outputs"], tensors), _indices(one["errors"], tensors)
        if len(outputs) != len(errors):
            raise LayoutError("outputs without errors")
        changed = tuple(_changed(item, found, tensors) for item in one["changed"])
        sets.append(Set(inputs=tuple(found), outputs=outputs, errors=errors, changed=changed))
    if not sets:
        raise LayoutError("no input set")
    shapes = [[_spec(tensors[index]) for index in (*one.inputs, *one.outputs)] for one in sets]
    if any(tree != trees[0] for tree in trees) or any(one != shapes[0] for one in shapes):
        raise LayoutError("get_inputs gives other shapes or arguments from call to call")
    names = [(str(name), index) for name, index in layout["state"]]
    state = _indices([index for _, index in names], tensors)
    num_inputs = len(sets[0].inputs)
    init: list[int] = []
    init_tree = _tree(layout["init"], init, count=len(tensors))
    if init:
        raise LayoutError("tensors among get_init_inputs are not supported on a GPU")
    request = {
        "init": init_tree,
        "state": [[name, num_inputs + number] for number, (name, _) in enumerate(names)],
        "order": [str(name) for name in layout["order"]],
        "sets": [trees[0]] * len(sets),
        "slots": [num_inputs + len(state) + i for i in range(len(sets[0].outputs))],
    }
    outputs = [index for one in sets for index in one.outputs]
    outputs += [change.output for one in sets for change in one.changed]
    return GpuReference(
        request=request,
        work=parse_work(layout["work"]),
        flops=count(layout["flops"]),
        precision=precision,
        block=block,
        tensors=tensors,
        sets=sets,
        state=state,
        is_sequence=layout["form"] == "list",
        rms={index: finite_rms(tensors[index]) for index in outputs},
    )


def _changed(item: Any, found: list[int], tensors: list[torch.Tensor]) -> Changed:
    number, output, error = item
    _indices([output, error], tensors)
    if type(number) is not int or not 0 <= number < len(found):
        raise LayoutError(f"no input {str(number)[:40]}")
    return Changed(number=number, output=output, error=error)


def _tree(tree: Any, found: list[int], *, count: int) -> Tree:
    """The same tree with tensors numbered as they come; their indices go to `found`."""
    kind, value = tree
    if kind == "tensor":
        if type(value) is not int or not 0 <= value < count:
            raise LayoutError(f"no tensor {str(value)[:40]}")
        found.append(value)
        return ["tensor", len(found) - 1]
    if kind in ("list", "tuple"):
        return [kind, [_tree(item, found, count=count) for item in value]]
    if kind == "dict":
        return [kind, [[str(key), _tree(item, found, count=count)] for key, item in value]]
    if kind in ("value", "dtype"):
        return [kind, value]
    raise LayoutError(f"unknown kind of argument {str(kind)[:40]}")


def _indices(value: Any, tensors: list[torch.Tensor]) -> tuple[int, ...]:
    if not all(type(index) is int and 0 <= index < len(tensors) for index in value):
        raise LayoutError(f"no tensors {str(value)[:80]}")
    return tuple(value)


def _failed(problem: Problem, words: str) -> ReferenceFailed:
    return ReferenceFailed(clean(without_paths(f"the reference of {problem.problem_id} {words}")))


def _view(memory: torch.Tensor, spec: TensorSpec, start: int) -> torch.Tensor:
    kind = getattr(torch, spec.dtype)
    return memory[start : start + spec.num_bytes].view(kind).view(spec.shape)


def _spec(tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(_dtype(tensor), tuple(tensor.shape))


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def mix(first: torch.Tensor, second: torch.Tensor, *, out: torch.Tensor) -> None:
    """Blocks of either, [n] each; what is left over is of the first."""
    block = 1 if out.numel() <= MANY else MIX_BLOCK
    whole = out.numel() // block * block
    coins = torch.rand(whole // block, 1, device=out.device) < 0.5
    a, b, mixed = (one[:whole].view(-1, block) for one in (first, second, out))
    torch.where(coins, a, b, out=mixed)
    out[whole:].copy_(first[whole:])


def _same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    wide = torch.int64 if a.nbytes % 8 == 0 else torch.uint8  # torch.equal makes a bool a number
    return torch.equal(a.reshape(-1).view(wide), b.reshape(-1).view(wide))
