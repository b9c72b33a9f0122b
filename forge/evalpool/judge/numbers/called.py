"""One call of a reference and its results, and the tensors of nested values and of a model: those
that a `state_dict` has, and those that none has.

Called by the oracle. Everything runs on copies, since a reference may work in place.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
import random
import struct
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch

from forge.evalpool.judge.channel.nesting import Keywords, nesting_of, spread
from forge.records.examination import Flag

# --- index ranges that cover a tensor, and values of every floating type
#
# Each range is of as many elements as are cheap at once. On a card a block is as large as memory
# allows; on a CPU it is as small as a core's cache, since a pass over fresh memory costs five times
# one over memory that is at hand. torch computes little in types of one byte.


CHUNK = 1 << 25
"""Elements at once on a card: their squares and differences in float64 take about 1 GB."""
CACHED = 1 << 17
"""Elements at once on a CPU: 1 MB in float64."""

Block = tuple[slice, ...]


def limit_on(device: torch.device) -> int:
    return CACHED if device.type == "cpu" else CHUNK


def blocks(shape: Sequence[int], limit: int) -> Iterator[Block]:
    """Index ranges that cover `shape`, each of at most `limit` elements, in order."""
    if math.prod(shape) <= limit or not shape:
        yield tuple(slice(0, size) for size in shape)
        return
    inner = math.prod(shape[1:])
    if inner > limit:
        for index in range(shape[0]):
            for rest in blocks(shape[1:], limit):
                yield (slice(index, index + 1), *rest)
        return
    step = max(1, limit // inner)
    for start in range(0, shape[0], step):
        yield (slice(start, min(start + step, shape[0])), *(slice(0, n) for n in shape[1:]))


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in float32 if the tensor's type is a float of one byte; else the tensor."""
    is_narrow = tensor.is_floating_point() and tensor.itemsize == 1
    return tensor.float() if is_narrow else tensor


def is_finite(tensor: torch.Tensor) -> bool:
    """True if no element is NaN or infinite."""
    tensor = widened(tensor)
    if not tensor.is_floating_point() or not tensor.numel():
        return bool(torch.isfinite(tensor).all())
    least_and_largest = torch.stack(torch.aminmax(tensor))  # NaN where one is; a tenth of the time
    return bool(torch.isfinite(least_and_largest).all())


def is_any_finite(tensor: torch.Tensor) -> bool:
    """True if an element is finite, as one of the first block is in most tensors."""
    found = blocks(tuple(tensor.shape), limit_on(tensor.device))
    return any(bool(torch.isfinite(tensor[block]).any()) for block in found)


Made = TypeVar("Made")


class Unjudgeable(Exception):
    """The problem's reference cannot be run or described."""

    def __init__(self, message: str, *, flag: Flag = Flag.UNSUPPORTED) -> None:
        """`flag`: the fault, as an examination names it."""
        super().__init__(message)
        self.flag = flag


@dataclass(slots=True, kw_only=True)
class Called:
    """One call of the reference, on copies: it may work in place."""

    outputs: list[torch.Tensor]
    before: list[torch.Tensor]
    after: list[torch.Tensor]
    """The tensors among the inputs."""
    form: str
    """`tensor`; `list` for several outputs, behind it their nesting (`nesting_of`)."""
    state: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    """Parameters and buffers that the call changed, as it left them; only where they were asked
    for. One of another shape than before is not among them: no program makes one."""

    def changed(self) -> list[int]:
        pairs = enumerate(zip(self.before, self.after, strict=True))
        return [number for number, (old, new) in pairs if not is_equal(old, new)]

    def results(self, changed: list[int] | None = None) -> list[torch.Tensor]:
        numbers = self.changed() if changed is None else changed
        return [*self.outputs, *(self.after[number] for number in numbers)]


def call(model: Any, inputs: list[Any], *, has_state: bool = False) -> Called:
    """One call on copies of the model and the inputs; `has_state` asks for `Called.state`."""

    def run() -> tuple[Any, Called]:
        given, own = copy.deepcopy(inputs), copied(model)
        return own, _called(own, given)

    own, called = on_device(_device_of(model, inputs), run)
    called.before = leaves(inputs)
    if has_state:
        after = own.state_dict()
        called.state = {
            name: after[name]
            for name, before in model.state_dict().items()
            if name in after
            and (before.shape, before.dtype) == (after[name].shape, after[name].dtype)
            and not is_equal(before, after[name])
        }
    return called


def copied(model: Any) -> Any:
    """A deep copy of a model, whose functions refer to the copy, too: a lambda that `__init__` made
    over a layer has that of the model otherwise."""
    known: dict[int, Any] = {}
    made = copy.deepcopy(model, known)
    for module in made.modules() if isinstance(made, torch.nn.Module) else ():
        for name, value in list(vars(module).items()):
            if isinstance(value, types.FunctionType) and value.__closure__:
                vars(module)[name] = _copied_function(value, known)
    return made


def _copied_function(given: types.FunctionType, known: dict[int, Any]) -> types.FunctionType:
    """The same function over copies of what it refers to; `known` has copies by identity."""
    cells = tuple(_copied_cell(cell, known) for cell in given.__closure__ or ())
    made = types.FunctionType(
        given.__code__, given.__globals__, given.__name__, given.__defaults__, cells
    )
    made.__kwdefaults__ = given.__kwdefaults__
    return made


def _copied_cell(cell: types.CellType, known: dict[int, Any]) -> types.CellType:
    try:
        return types.CellType(copy.deepcopy(cell.cell_contents, known))
    except Exception:
        return cell


class Clock:
    """Processor time that the calls of references have taken, while somebody follows them."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._report: Callable[[float], None] | None = None

    def start(self, report: Callable[[float], None]) -> None:
        """From now on each call is measured, and `report` gets the sum before it."""
        self.seconds, self._report = 0.0, report

    def stop(self) -> None:
        self._report = None

    @contextmanager
    def measured(self) -> Iterator[None]:
        if self._report is None:
            yield
            return
        self._report(self.seconds)
        began = time.process_time()
        try:
            yield
        finally:
            self.seconds += time.process_time() - began


CLOCK = Clock()
"""The clock of this process, which serves one problem at a time."""


def call_on(model: Any, inputs: list[Any]) -> Called:
    """One call on a model and inputs that may change: `before` is unknown, taken for `after`."""
    return on_device(_device_of(model, inputs), lambda: _called(model, inputs))


def call_again(model: Any, inputs: list[Any], first: Any) -> Called:
    """One more call on a model, whose tensors become those of `first` again: parameters, buffers
    and those that its constructor made."""
    if isinstance(model, torch.nn.Module):
        known = first.state_dict()
        for name, one in model.state_dict().items():
            if name in known and known[name].shape == one.shape:
                one.copy_(known[name])
        held = {one.name: one.tensor for one in held_tensors(first)}
        for one in list(held_tensors(model)):
            if one.name in held:
                one.replace(held[one.name].clone())
    return call_on(model, copy.deepcopy(inputs))


def _called(model: Any, inputs: list[Any]) -> Called:
    by_place, by_name = spread(inputs)
    with CLOCK.measured():
        result = model(*by_place, **by_name)
    after = leaves(inputs)
    return Called(
        outputs=flatten(result),
        before=after,
        after=after,
        form="tensor" if isinstance(result, torch.Tensor) else f"list{nesting_of(result)}",
    )


def on_device(device: str, run: Callable[[], Made]) -> Made:
    """The result of a problem's code that makes its tensors on a device: to copy them there takes
    longer than all else. Code that needs some on the host, for a generator, numpy or pinned memory,
    runs again, as on the CPU.

    For code of a problem alone: each of torch's functions takes twice as long there.
    """
    if device != "cpu":
        try:
            with torch.device(device):
                return run()
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError) as error:
            if torch.device(device).type not in str(error).lower():
                raise
    return run()


def _device_of(model: Any, inputs: list[Any]) -> str:
    """The device of a call's tensors: an input's, else a parameter's or a buffer's."""
    state = (*model.parameters(), *model.buffers()) if isinstance(model, torch.nn.Module) else ()
    return next((one.device.type for one in (*leaves(inputs), *state)), "cpu")


def flatten(result: Any) -> list[torch.Tensor]:
    """The tensors of a result, in order; none for None. Raises Unjudgeable for other types."""
    if result is None:
        return []
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, list | tuple):
        return [leaf for item in result for leaf in flatten(item)]
    raise Unjudgeable(f"the reference returns a {type(result).__name__}; tensors are judged")


def leaves(value: Any) -> list[torch.Tensor]:
    """Its tensors, in the order of `Describer.tree`."""
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value
    has_items = isinstance(value, list | tuple | dict)
    return [leaf for item in items for leaf in leaves(item)] if has_items else []


def memory_order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The axes of a dense tensor in the order of memory, the slowest first; None for a contiguous
    one, and for one with gaps or overlaps, which is handed over contiguous."""
    if tensor.layout is not torch.strided or tensor.is_contiguous():
        return None
    strides = tensor.stride()
    order = tuple(sorted(range(tensor.ndim), key=lambda axis: -strides[axis]))
    return order if tensor.permute(order).is_contiguous() else None


def laid_out(tensor: torch.Tensor, order: tuple[int, ...] | None) -> torch.Tensor:
    """The same values with the axes in this order of memory; the tensor itself for None."""
    if order is None:
        return tensor
    back = sorted(range(len(order)), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(back)


def is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if two tensors have the same values; NaN equals NaN."""
    return torch.equal(one, other) or torch.equal(
        widened(one).nan_to_num(), widened(other).nan_to_num()
    )


def dtype_name(tensor: torch.Tensor) -> str:
    """`float32`: the type without its module."""
    return str(tensor.dtype).removeprefix("torch.")


def replaced(value: Any, change: Callable[[int, torch.Tensor], torch.Tensor]) -> Any:
    """The same with every tensor changed; `change` gets its place in the order."""
    numbers = itertools.count()

    def visit(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return change(next(numbers), value)
        if isinstance(value, list | tuple):
            items = [visit(item) for item in value]
            return items if isinstance(value, list) else tuple(items)
        if isinstance(value, dict):
            made = {key: visit(item) for key, item in value.items()}
            return Keywords(made) if isinstance(value, Keywords) else made
        return value

    return visit(value)


SAMPLE_ROWS, SAMPLE_LENGTH = 64, 1 << 16
"""Rows of a tensor that are looked at, and elements of each."""


def rows_of(tensor: torch.Tensor) -> torch.Tensor:
    """[rows, length] a sample of the rows along the last axis, cut."""
    lead = tensor[..., :SAMPLE_LENGTH]
    while lead.ndim > 2:
        lead = lead[: SAMPLE_ROWS // max(1, lead.shape[1]) + 1].flatten(0, 1)
    lead = lead if lead.ndim == 2 else lead.reshape(1, -1)
    step = max(1, lead.shape[0] // SAMPLE_ROWS)
    return lead[::step][:SAMPLE_ROWS]


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor of a model that no `state_dict` has: an attribute of a module, an element of a list,
    tuple or dict that is one, or a buffer that is not saved."""

    name: str
    """As in a `state_dict`: `layers.0.h0`, `states.1`."""
    tensor: torch.Tensor
    owner: dict[str, Any]
    attribute: str
    key: Any = None
    """Its place in the attribute; None for the attribute itself."""

    def replace(self, tensor: torch.Tensor) -> None:
        within = self.owner[self.attribute]
        if self.key is None:
            self.owner[self.attribute] = tensor
        elif isinstance(within, tuple):
            self.owner[self.attribute] = (*within[: self.key], tensor, *within[self.key + 1 :])
        else:
            within[self.key] = tensor


def held_tensors(model: Any) -> Iterator[Held]:
    """The tensors of a model that no `state_dict` has by any name."""
    modules = dict(modules_of(model))
    saved = {id(one) for one in saved_tensors(model)}
    known = vars(torch.nn.Module())
    for prefix, module in modules.items():
        own = vars(module)
        places = [(own, key, value) for key, value in own.items() if key not in known]
        places += [(module._buffers, key, value) for key, value in module._buffers.items()]
        for owner, attribute, value in places:
            name = f"{prefix}.{attribute}" if prefix else attribute
            found = [Held(name, value, owner, attribute)]
            if type(value) in (list, tuple, dict):
                pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
                found = [Held(f"{name}.{at}", one, owner, attribute, at) for at, one in pairs]
            for one in found:
                if isinstance(one.tensor, torch.Tensor) and id(one.tensor) not in saved:
                    yield one


def saved_tensors(model: Any) -> Iterator[torch.Tensor]:
    """Parameters and saved buffers of a model, whatever methods of its class are replaced."""
    for _, module in modules_of(model):
        yield from (one for one in module._parameters.values() if one is not None)
        for name, one in module._buffers.items():
            if one is not None and name not in module._non_persistent_buffers_set:
                yield one


def modules_of(model: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    """A model and the modules within it, each once, by name: torch's walk is a method, which may be
    replaced."""
    left: list[tuple[str, Any]] = [("", model)]
    seen: set[int] = set()
    while left:
        prefix, module = left.pop(0)
        if isinstance(module, torch.nn.Module) and id(module) not in seen:
            seen.add(id(module))
            yield prefix, module
            start = f"{prefix}." if prefix else ""
            left += [(f"{start}{name}", one) for name, one in vars(module)["_modules"].items()]


# --- seeds of 128 bits for torch's generators, Python's and numpy's
#
# `torch.manual_seed` keeps 32 bits on a CPU, few enough to be tried out; here the whole state of
# the CPU's generator comes from the seed, and on a GPU Philox' offset takes the second half. (It
# also records a traceback for each call while no GPU is in use, which takes longer than a small
# draw.)


SEED_BYTES = 16
WORDS = 624
"""State of the Mersenne twister in 32-bit words; torch stores each in eight bytes."""
HEADER = 24
"""Bytes before them: seed, number of words left, a flag and the next word's index."""
MASK = (1 << 62) - 4
"""Philox' offset is a multiple of four."""


seeds: random.Random = random.SystemRandom()
"""The operating system's numbers. A harvest's children have others, which begin anew with each
request: what is judged again has the same words."""


def seed_everything(seed: bytes) -> None:
    """Sets every generator that a `get_inputs` may use. The same seed gives the same values on the
    same kind of device."""
    low, high = struct.unpack("<QQ", hashlib.sha256(seed).digest()[:16])
    random.seed(seed)
    if "numpy.random" in sys.modules:  # numpy imports it late, and a sandbox may have no files
        np.random.seed(list(hashlib.sha256(b"numpy" + seed).digest()))
    torch.default_generator.manual_seed(low)
    words = random.Random(b"cpu" + seed).randbytes(4 * WORDS)
    state = torch.get_rng_state().numpy().copy()
    state[HEADER : HEADER + 8 * WORDS].view(np.uint64)[:] = np.frombuffer(words, np.uint32)
    torch.set_rng_state(torch.from_numpy(state))
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(low)
        state = torch.cuda.get_rng_state().numpy().copy()
        state[:16] = np.frombuffer(struct.pack("<QQ", low, high & MASK), np.uint8)
        torch.cuda.set_rng_state(torch.from_numpy(state))


@contextmanager
def unseeded() -> Iterator[None]:
    """Within, `torch.manual_seed` does nothing: code that seeds torch draws other numbers."""
    kept = torch.manual_seed
    torch.manual_seed = torch.random.manual_seed = lambda seed: torch.default_generator
    try:
        yield
    finally:
        torch.manual_seed = torch.random.manual_seed = kept
