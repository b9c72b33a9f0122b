"""Gives a candidate the reference's parameters while it is constructed, and those left afterwards.

A kernel may pack, transpose or fold its weights in `__init__`, so each new `nn.Parameter` *is* the
reference's next one of the same shape, in the order in which the reference made its own; a buffer
is the one with its own name. Functions that initialise (torch.nn.init, the filling methods) leave
such tensors alone, and so does any other operation in place that reads no second parameter. The
rest is matched by name, then by order among those of equal shape.

Not covered: another order among equal shapes than the reference's: `Session` notices it and
constructs again without values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import init

from forge.evalpool.judge.capture.building import Parts, storages_of
from forge.evalpool.judge.capture.pretence.card import Pretence
from forge.evalpool.judge.program.dataflow import written_in_place
from forge.evalpool.judge.program.format import Node, Op, Origin, TensorUse
from forge.evalpool.judge.program.ops import KINDS, Kind, packet
from forge.evalpool.judge.program.walk import tensor_bytes
from forge.evalpool.judge.reference.construct import held_tensors

FILLS = ("uniform_", "normal_", "zero_", "fill_", "random_", "bernoulli_", "exponential_")
"""Methods of tensors that initialise."""


class Weights:
    """The reference's values on the card, and which tensors of the candidate have taken them."""

    def __init__(self, state: dict[str, Any], *, order: list[str]) -> None:
        """`state`: fake tensors by the reference's names, which made them in this order."""
        names = dict.fromkeys([*(name for name in order if name in state), *state])
        self._left = {name: state[name] for name in names}
        self._taken: dict[int, tuple[Any, str]] = {}
        """Tensor and name by torch's storage. The tensor is kept, so that its storage is not
        reused."""

    @property
    def sources(self) -> set[str]:
        return {name for _, name in self._taken.values()}

    @property
    def tensors(self) -> list[Any]:
        return [tensor for tensor, _ in self._taken.values()]

    def name_of(self, tensor: torch.Tensor) -> str | None:
        kept = self._taken.get(tensor.untyped_storage()._cdata)
        return kept[1] if kept is not None and kept[0].shape == tensor.shape else None

    def names_in(self, model: Any) -> dict[str, str]:
        """The reference's names of the values in a model, by the model's names."""
        own = state_of(model)
        return {name: found for name, one in own.items() if (found := self.name_of(one))}

    def taken(self, tensor: torch.Tensor, *, name: str | None = None) -> Any:
        """The tensor to use instead: the next value of its shape (and of its name, if it has one),
        or a copy of it where type or strides differ; the tensor itself if there is none. Integers
        and bools are taken by name and type alone: a counter of batches, a mask."""
        if not _is_plain(tensor) or self.name_of(tensor) is not None:
            return tensor
        is_float = tensor.is_floating_point()
        if name is None and not is_float:
            return tensor
        for key, value in self._left.items():
            is_named = name is None or key.rpartition(".")[2] == name
            is_typed = value.is_floating_point() if is_float else value.dtype is tensor.dtype
            if is_named and is_typed and value.shape == tensor.shape:
                del self._left[key]
                found = _like(tensor, value)
                self._taken[found.untyped_storage()._cdata] = (found, key)
                return found
        return tensor

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Constructs models with the reference's values while inside."""
        register, make = torch.nn.Module.register_buffer, torch.nn.Parameter.__new__

        def register_buffer(module: Any, name: str, tensor: Any, *args: Any, **kwargs: Any) -> None:
            if isinstance(tensor, torch.Tensor):
                tensor = self.taken(tensor, name=name)
            register(module, name, tensor, *args, **kwargs)

        def parameter(cls: Any, data: Any = None, *args: Any, **kwargs: Any) -> Any:
            if isinstance(data, torch.Tensor):
                data = self.taken(data)
            return make(cls, data, *args, **kwargs)

        patches = Pretence()
        try:
            patches.set(torch.nn.Parameter, "__new__", staticmethod(parameter))
            patches.set(torch.nn.Module, "register_buffer", register_buffer)
            functions = [n for n in vars(init) if n.endswith("_") and not n.startswith("_")]
            initialisers = [*((init, n) for n in functions), *((torch.Tensor, n) for n in FILLS)]
            for owner, name in initialisers:
                kept = self._unless_taken(getattr(owner, name))
                patches.set(owner, name, kept)
            yield
        finally:
            patches.undo()

    def _unless_taken(self, fill: Callable[..., Any]) -> Callable[..., Any]:
        """The function `fill`, without effect on tensors that have taken values."""

        @functools.wraps(fill)
        def filled(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(tensor, torch.Tensor) and self.name_of(tensor) is not None:
                return tensor
            return fill(tensor, *args, **kwargs)

        return filled


def _is_plain(tensor: torch.Tensor) -> bool:
    """True if a tensor can take values: memory of its own for each element."""
    is_strided = tensor.layout is torch.strided and not tensor.is_meta
    return is_strided and tensor.numel() > 0 and 0 not in tensor.stride()


def _like(tensor: torch.Tensor, value: Any) -> Any:
    """The value itself, or a copy with the type and strides of a tensor."""
    if tensor.dtype == value.dtype and tensor.stride() == value.stride():
        return value
    stride = tensor.stride() if _is_plain(tensor) else value.stride()
    empty = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=value.device)
    return empty.copy_(value)


def without_initialising(nodes: Iterable[Node], parts: Parts, own: set[int]) -> list[Node]:
    """The nodes of a constructor that do not initialise a parameter in place.

    `weight[padding].fill_(0)` and `weight.mul_(0.02)` are left out: the reference's constructor has
    done so, and its values, which are in the storages `own`, were drawn afterwards. So is a copy of
    one whole parameter to another, by which an encoder and its average begin alike. Any other
    operation that reads another parameter folds one into the other, and stays.
    """
    derived = {at for at, one in enumerate(parts.storages) if one.origin is Origin.PARAMETER} | own
    kept: list[Node] = []
    for node in nodes:
        touched = storages_of(node, parts)
        updated, overwritten = written_in_place(node) if isinstance(node, Op) else ((), ())
        written = {parts.tensors[number].storage for number in (*updated, *overwritten)}
        is_alone = not (touched - written) & derived or _is_whole_copy(node, parts, own)
        if written and written <= own and is_alone:
            continue
        if touched & derived:
            derived |= touched
        kept.append(node)
    return kept


def _is_whole_copy(node: Node, parts: Parts, own: set[int]) -> bool:
    """True for a copy of all of one value of the reference to all of another, as it lies."""
    if not isinstance(node, Op) or node.name != "aten.copy_.default":
        return False
    used = [one.tensor for one in node.arguments if isinstance(one, TensorUse)]
    into, source = (parts.tensors[number] for number in used[:2])
    sizes = [tensor_bytes(into), tensor_bytes(source)]
    lengths = [parts.storages[one.storage].num_bytes for one in (into, source)]
    return source.storage in own and into.strides == source.strides and sizes == lengths


def targets(
    own: dict[str, torch.Tensor], state: dict[str, Any], taken: dict[str, str], used: set[str]
) -> dict[str, str]:
    """The reference's name for each of a model's own tensors, by the model's names. `taken`: names
    of values that these were constructed with; `used`: that any tensor was, which may lie packed
    elsewhere."""
    found = {name: name for name in own if name in state and own[name].shape == state[name].shape}
    for name, source in taken.items():
        if name not in found and source not in found.values():
            found[name] = source
    left = [source for source in state if source not in found.values() and source not in used]
    for name, tensor in own.items():
        source = next((one for one in left if state[one].shape == tensor.shape), None)
        if name not in found and source is not None:
            found[name] = source
            left.remove(source)
    return found


def load(own: dict[str, torch.Tensor], state: dict[str, Any], found: dict[str, str]) -> None:
    """Copies the reference's values into a model's tensors that are not those values already."""
    for name, source in found.items():
        target, value = own[name], state[source]
        if target.untyped_storage()._cdata != value.untyped_storage()._cdata:
            target.copy_(value)


def state_of(model: Any) -> dict[str, torch.Tensor]:
    return model.state_dict() if isinstance(model, torch.nn.Module) else {}


def drawn_storages(nodes: Iterable[Node], parts: Parts) -> set[int]:
    """Storages of random numbers, and of what is computed from them."""
    found: set[int] = set()
    for node in nodes:
        touched = storages_of(node, parts)
        if isinstance(node, Op):
            written = {parts.tensors[number].storage for number in node.results}
            for numbers in written_in_place(node):
                written |= {parts.tensors[number].storage for number in numbers}
            kind = KINDS.get(packet(node.name))
        else:
            written, kind = touched, None
        if kind is Kind.RANDOM or (touched & found and kind is not Kind.FILL):
            found |= written
    return found


def load_held(
    model: Any, values: dict[str, Any], *, is_drawn: Callable[[torch.Tensor], bool]
) -> set[str]:
    """Gives a model the reference's values, of tensors that no `state_dict` has, in place of random
    numbers of its constructor: `self.h0 = torch.randn(8)`. By name, then by order among equal types
    and shapes; a parameter or saved buffer by its name alone. Returns the names of these."""
    if not values:
        return set()
    left, state = dict(values), state_of(model)
    same = {
        name: name
        for name in state
        if name in left and _are_alike(left[name], state[name]) and is_drawn(state[name])
    }
    load(state, left, same)
    own = [one for one in held_tensors(model) if is_drawn(one.tensor)]
    for one in sorted(own, key=lambda one: one.name not in left):
        names = [one.name, *left] if one.name in left else [*left]
        found = next((name for name in names if _are_alike(left[name], one.tensor)), None)
        if found is not None:
            one.replace(_like(one.tensor, left.pop(found)))
    return set(same)


def _are_alike(value: torch.Tensor, tensor: torch.Tensor) -> bool:
    are_floats = value.is_floating_point() and tensor.is_floating_point()
    return value.shape == tensor.shape and (are_floats or value.dtype is tensor.dtype)
