"""Constructs models from their entry points, and finds the tensors that they hold.

Called by oracles, examiners and captures. Some tensors are drawn by a reference's constructor and
are in no `state_dict`: `self.h0 = torch.randn(8)`. A candidate cannot draw the same random numbers,
so the oracle sends them. They are found by constructing another model: a tensor is drawn if it has
other values there. What is computed from numbers that another tensor of the model has as well, is
left to the candidate's constructor.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.channel.words import needs_card
from forge.evalpool.judge.numbers import called as calls
from forge.evalpool.judge.numbers.called import held_tensors
from forge.evalpool.judge.numbers.given import Arguments, call

DIGITS = 16
"""Length of the digest of a draw."""
MAX_BYTES = 64 << 20
"""Size of a tensor that a candidate may get."""
DTYPES = {
    *(torch.float32, torch.float16, torch.bfloat16, torch.float64),
    *(torch.int64, torch.int32, torch.bool),
}


class Bare(torch.nn.Module):
    """A function that is the entry point of a problem or an answer, as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def construct(entry_point: Any, arguments: Arguments) -> Any:
    return call(entry_point, arguments) if isinstance(entry_point, type) else Bare(entry_point)


@contextmanager
def parameters_made(note: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Calls `note` with every new nn.Parameter while inside."""
    original = torch.nn.Parameter.__new__

    def make(cls: Any, *args: Any, **kwargs: Any) -> Any:
        parameter = original(cls, *args, **kwargs)
        note(parameter)
        return parameter

    torch.nn.Parameter.__new__ = staticmethod(make)
    try:
        yield
    finally:
        torch.nn.Parameter.__new__ = staticmethod(original)


@contextmanager
def training_read(note: Callable[[], None]) -> Iterator[None]:
    """Calls `note` whenever a module is asked if it is trained, while inside."""

    def read(module: Any) -> bool:
        note()
        return vars(module)["training"]

    def write(module: Any, is_training: bool) -> None:
        vars(module)["training"] = is_training

    torch.nn.Module.training = property(read, write)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        del torch.nn.Module.training


OVERWRITING = ("copy_", "fill_", "zero_")
"""Operations in place after which nothing is left of a whole tensor's values."""
FILLS = ("empty", "fill", "full", "ones", "zero")
"""Beginnings of the names of operations whose results have none of a tensor's values."""
SAME_AS = {"rand": "uniform 0 1", "randn": "normal 0 1"}
"""Operations that draw the same numbers as others."""


class Origins(TorchDispatchMode):
    """Within, notes the random operations that each tensor's values come from."""

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[int, tuple[Any, frozenset[int]]] = {}
        """Storage, which is kept so that its address is not reused, and numbers of operations."""
        self.draws: list[str] = []
        """Digest of each random operation and of those before it: equal ones draw alike."""

    def by_name(self, model: Any) -> dict[str, str]:
        """Digest of the last random operation that each tensor comes from; "" for none."""
        held = {one.name: one.tensor for one in held_tensors(model)}
        saved = model.state_dict() if isinstance(model, torch.nn.Module) else {}
        found = {name: self.of(one) for name, one in (held | saved).items()}
        return {name: self.draws[max(made) - 1] if made else "" for name, made in found.items()}

    def of(self, tensor: torch.Tensor) -> frozenset[int]:
        if tensor.layout is not torch.strided:
            return frozenset()
        return self._found.get(tensor.untyped_storage()._cdata, (None, frozenset[int]()))[1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        is_whole = name in OVERWRITING or (is_random and name.endswith("_"))
        is_whole = is_whole and args[0].layout is torch.strided
        is_whole = is_whole and args[0].nbytes == args[0].untyped_storage().nbytes()
        is_fill = name.removeprefix("new_").startswith(FILLS)
        read = [] if is_fill else [*args, *kwargs.values()]
        found = frozenset[int]().union(*map(self.of, calls.leaves(read[1:] if is_whole else read)))
        made = calls.leaves([result])
        if is_random:
            before = self.draws[-1] if self.draws else ""
            sizes = [(one.numel(), one.dtype) for one in made]
            words = f"{before} {_draw(func, args, kwargs)} {sizes}"
            self.draws.append(hashlib.sha256(words.encode()).hexdigest()[:DIGITS])
            found |= {len(self.draws)}
        for one in made:
            if one.layout is torch.strided and (found or is_whole):
                storage = one.untyped_storage()
                self._found[storage._cdata] = storage, found if is_whole else found | self.of(one)
        return result


def _draw(func: Any, args: Any, kwargs: Any) -> str:
    """A random operation, its numbers and its own generator's seed."""
    name = func._schema.name.removeprefix("aten::").removesuffix("_").removesuffix("_like")
    given = dict(zip((one.name for one in func._schema.arguments), args, strict=False)) | kwargs
    values = [given.get(one.name, one.default_value) for one in func._schema.arguments]
    numbers = [f"{value:.6g}" for value in values if type(value) in (int, float)]
    own = [one.initial_seed() for one in values if isinstance(one, torch.Generator)]
    return f"{SAME_AS.get(name) or ' '.join([name, *numbers])} {own}"


def construct_noting(entry_point: Any, arguments: Arguments) -> tuple[Any, Origins]:
    """The model of an entry point, and what it draws. cuDNN would put the parameters of a
    recurrent layer into one storage."""
    with torch.backends.cudnn.flags(enabled=False), Origins() as origins:
        return construct(entry_point, arguments), origins


def drawn_tensors(
    model: Any, construct: Callable[[], Any], *, is_sketch: bool = False
) -> dict[str, torch.Tensor]:
    """Copies of the drawn tensors of a model, by name; `construct` makes another one. Of a model
    without values (`is_sketch`) a tensor is drawn if it comes from a random operation."""
    try:
        held = {
            one.name: one.tensor
            for one in held_tensors(model)
            if _is_plain(one.tensor) and one.tensor.is_meta in (False, is_sketch)
        }
        if not held:
            return {}
        with calls.unseeded(), Origins() as origins:
            other = construct()
        others = {one.name: one.tensor for one in held_tensors(other)}
        every = [*calls.saved_tensors(other), *others.values()]
        return {
            name: tensor.detach().clone()
            for name, tensor in held.items()
            if name in others
            and _is_other(others[name], tensor, is_drawn=bool(origins.of(others[name])))
            and not any(
                origins.of(others[name]) & origins.of(one)
                for one in every
                if one is not others[name]
            )
        }
    except Exception:  # a constructor may run once alone: then what it draws is unknown
        return {}


def _is_plain(tensor: torch.Tensor) -> bool:
    is_strided = tensor.layout is torch.strided
    return is_strided and tensor.dtype in DTYPES and 0 < tensor.nbytes <= MAX_BYTES


def _is_other(one: torch.Tensor, tensor: torch.Tensor, *, is_drawn: bool) -> bool:
    if (one.shape, one.dtype) != (tensor.shape, tensor.dtype):
        return False
    return is_drawn if tensor.is_meta else not torch.equal(one.to(tensor.device), tensor)


# --- stand-ins for what a sandbox lacks: a model hub and torch's compiler
#
# Called before a reference is run. Expected results are eager's; a baseline is timed as the source
# says. A sandbox reaches no hub; `sandbox/root.py` has put the configs that the reference names
# into the child's home directory, where transformers looks for them. `from_pretrained` then makes a
# model from its config: float32 unless the call names a type, in evaluation mode as that of a hub.
# A kernel is judged on the same weights, whatever they are.


NAME = "transformers"
DTYPE_KEYWORDS = ("dtype", "torch_dtype")
"""Arguments of `from_pretrained` that name the type of the weights."""


def replace_hub(source: str) -> None:
    """Makes `from_pretrained` of models need no weights, if the source mentions transformers and it
    can be imported; otherwise its own import says what is missing."""
    if NAME not in source:
        return
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    with suppress(ImportError):
        from transformers import AutoConfig, PreTrainedModel
        from transformers.models.auto.auto_factory import _BaseAutoModelClass

        def of_class(cls: Any, name: Any = None, *_: Any, config: Any = None, **how: Any) -> Any:
            config = cls.config_class.from_pretrained(name) if config is None else config
            return cls._from_config(config, dtype=_dtype(how)).eval()

        def of_auto(cls: Any, name: Any = None, *_: Any, config: Any = None, **how: Any) -> Any:
            config = AutoConfig.from_pretrained(name) if config is None else config
            return cls.from_config(config, dtype=_dtype(how)).eval()

        owners: list[tuple[Any, Any]] = [
            (PreTrainedModel, of_class),
            (_BaseAutoModelClass, of_auto),
        ]
        for owner, function in owners:
            owner.from_pretrained = classmethod(function)


def _dtype(how: dict[str, Any]) -> torch.dtype:
    found = next((how[name] for name in DTYPE_KEYWORDS if how.get(name) is not None), None)
    if isinstance(found, str):
        found = getattr(torch, found, None)
    return found if isinstance(found, torch.dtype) else torch.float32


def config_fields(value: object) -> dict[str, Any] | None:
    """Fields of a config of transformers that JSON can hold, and aliases; None for others."""
    if not type(value).__module__.startswith(f"{NAME}."):
        return None
    to_dict = getattr(value, "to_dict", None)
    if to_dict is None:
        return None
    fields = {str(name): each for name, each in to_dict().items() if _is_plain_value(each)}
    aliases = getattr(value, "attribute_map", {})
    return fields | {name: fields[own] for name, own in aliases.items() if own in fields}


def _is_plain_value(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain_value, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain_value(each) for key, each in value.items())
    return value is None or isinstance(value, bool | int | float | str)


def run_eagerly(source: str) -> None:
    """Makes `torch.compile` in a source do nothing. Torch's compiler takes a second to import, so
    other sources are left alone."""
    if "compile" in source:
        torch.compiler.set_stance("force_eager")


# --- reports of a reference's child to the judge: a failure, or that a draw goes on
#
# Progress is reported by the oracle on a CPU, with the time that the reference has computed. The
# judge's limit is one for the reference: passes over tensors that are ours do not count, nor does
# the time that other processes had the processor. A draw of less than EVERY_S sends nothing.


EVERY_S = 1.0
MAX_CHARACTERS = 1000


@contextmanager
def reported(sock: socket.socket) -> Generator[None]:
    """Reports before calls of the reference in the block, at most once in EVERY_S."""
    last = time.monotonic()

    def report(seconds: float) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY_S:
            frames.send(sock, Kind.PROGRESS, {"reference_s": round(seconds, 3)})
            last = time.monotonic()

    calls.CLOCK.start(report)
    try:
        yield
    finally:
        calls.CLOCK.stop()


def describe(error: BaseException) -> dict[str, str]:
    """Type and message of an error, for a FAILED frame."""
    kind, message = type(error).__name__, str(error)
    if needs_card(message):
        kind = calls.Unjudgeable.__name__
        message = (
            "its code asks for a GPU, and this judge computes on the CPU: leave devices out of the"
            " problem's file, or judge it on a GPU"
        )
    return {"type": kind, "message": message[:MAX_CHARACTERS]}
