"""The reference in float64: the problem's narrowest float type and every wider one are widened.

Called by sets.py. Within a run every operation computes in float64 whatever type its source names:
explicit casts, types of new tensors and the default one. Casts to narrower types than the problem's
stay. Where the reference asks for a type it hears the problem's own, so that a bound like
`finfo(x.dtype).max` is the one that a kernel has. What has no float64 raises CannotWiden: bit casts
and what torch itself refuses.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from forge.evalpool.judge.numbers import called as calls
from forge.evalpool.judge.numbers.opcount import EXACT, Watching

RANKS = ({"float16", "bfloat16"}, {"float32"}, {"float64"})
"""Names of float types, the narrowest first."""
HALVES = {"fp16": "float16", "bf16": "bfloat16"}
ASKS = re.compile(r"\bdtype\b|finfo|rms_norm|RMSNorm|type_as|is_floating_point")
"""In a source that may ask for a type, or has an operation that does."""
GET_TYPE = torch.Tensor.dtype.__get__  # pyright: ignore[reportAttributeAccessIssue]
NOISE = 2.0**-48
"""Relative size of the roundings that a run with noise has: a kernel's own in float64, of as many
elements as one sums, are smaller."""
EXACT_TOO = {
    *("aminmax", "maximum", "minimum", "fmax", "fmin", "clamp", "clamp_", "clamp_min", "clamp_max"),
    *("hardtanh", "threshold", "nan_to_num", "sign", "cummax", "cummin", "unfold", "lift_fresh"),
    *("round", "floor", "ceil", "trunc", "kthvalue", "median", "mode", "fill_", "zero_", "full"),
    *("zeros", "ones", "arange", "eye", "scalar_tensor", "zeros_like", "ones_like", "full_like"),
    *("new_zeros", "new_ones", "new_full", "masked_select", "slice_scatter", "relu_", "neg_"),
    *("index_put", "scatter", "max_pool3d_with_indices", "argmax", "argmin", "leaky_relu"),
}
"""Operations that round nothing, beside EXACT."""
UNROUNDED = EXACT | EXACT_TOO
FUSED = re.compile("norm|softmax|logsumexp|var|std|attention|dist")
"""Operations within which more is rounded than their results."""
SENTINEL = 1e30
"""Magnitude of what stands for infinity, as masked scores: it is not computed."""
OPEN = {"sort", "topk", "kthvalue", "median", "nanmedian", "cummax", "cummin"}
"""Operations that leave open which of equal elements they take; max and argmax take the first."""
EXACT_BITS = 56
"""Bits of a result, beside those of a noise, that are 0 where nothing was rounded."""
CASTS = {"_to_copy", "copy_"}
PUTS = {
    *("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"),
    *("scatter", "scatter_", "index_copy", "index_copy_"),
}
ORDERS = {"lt", "le", "gt", "ge", "bucketize", "searchsorted"}
"""Operations whose results torch may leave open, where an honest kernel gives others: casts of what
is not finite to integers, as of a quotient by a scale that is 0 in fp16; different values put at
one place, of which any may be left; an order of NaN, as of 0 / 0 in a block of zeros."""
SAME_CONSTANT = 1e-4
"""Relative difference of a constant that a constructor computes in the problem's types."""


class CannotWiden(Exception):
    """The reference has no result in float64."""


class UndefinedResult(Exception):
    """Torch leaves open what an operation returns."""


def kinds_of(
    model: Any,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    halves: Collection[str],
    *,
    has_floats: bool = True,
) -> frozenset[str]:
    """The float types of a problem that become float64. Raises CannotWiden.

    Args:
        inputs: every tensor of the inputs.
        halves: precisions of half types that results have on the way (`OpCounter.halves`).
        has_floats: False if no result on the way is a float: a kernel that adds integers as floats
            has no other type to be right in than its own.
    """
    state = [*model.parameters(), *model.buffers()] if isinstance(model, torch.nn.Module) else []
    tensors = [*inputs, *outputs, *state]
    if any(one.is_complex() for one in tensors):
        raise CannotWiden("complex numbers")
    if any(one.layout is not torch.strided for one in tensors):
        raise CannotWiden("sparse tensors")
    names = {calls.dtype_name(one) for one in tensors if one.is_floating_point()}
    names |= {HALVES[one] for one in halves}
    if narrow := names.difference(*RANKS):
        raise CannotWiden(min(narrow))
    ranks = [rank for rank, one in enumerate(RANKS) if one & names] or [1 if has_floats else 2]
    return frozenset[str]().union(*RANKS[ranks[0] :])


class WideReference:
    def __init__(
        self,
        model: Any,
        kinds: frozenset[str],
        *,
        source: str,
        own: torch.dtype,
        construct: Callable[[], Any] | None = None,
    ) -> None:
        """
        Args:
            source: of the problem.
            own: the float type that the problem computes in.
            construct: makes another model. What its constructor computes and no `state_dict` has
                is computed in float64, too, as by a candidate's constructor.
        """
        self._kinds = {getattr(torch, name) for name in kinds}
        self._own = own
        self._asks = ASKS.search(source) is not None
        self.model = calls.copied(model)
        """With its parameters and buffers in float64."""
        for one in [*self.model.parameters(), *self.model.buffers()]:
            if one.dtype in self._kinds:
                one.data = one.data.double()
        self._has_state = True
        """False once a call has left the model as it was: it needs no copy."""
        self._take_constants(construct)

    def _take_constants(self, construct: Callable[[], Any] | None) -> None:
        """Takes what another constructor computes in float64. What it draws stays as it is."""
        held = [one for one in calls.held_tensors(self.model) if one.tensor.dtype in self._kinds]
        if construct is None or not held:
            return
        try:
            with calls.unseeded(), self._arithmetic(noise=0.0, is_watched=False):
                made = {one.name: one.tensor for one in calls.held_tensors(construct())}
        except Exception:  # a constructor may run once alone
            return
        for one in held:
            other, own = made.get(one.name), one.tensor.double()
            if other is None or other.dtype is not torch.float64 or other.shape != own.shape:
                continue
            if torch.allclose(other, own, rtol=SAME_CONSTANT, atol=0.0, equal_nan=True):
                one.replace(other.detach())

    def run(
        self,
        inputs: list[Any],
        changed: Sequence[int],
        *,
        noise: float = 0.0,
        is_watched: bool = False,
    ) -> calls.Called:
        """One call on copies. Raises what the reference raises.

        Args:
            changed: numbers of the inputs that a call changes.
            noise: results of operations that round get other roundings, of this size, and of equal
                elements another one is taken.
            is_watched: raises it for what torch leaves open else.
        """
        model = calls.copied(self.model) if self._has_state else self.model
        given = calls.replaced(inputs, lambda at, one: self._widened(one, is_own=at in changed))
        before = _contents(model) if self._has_state else []
        with self._arithmetic(noise=noise, is_watched=is_watched):
            called = calls.call_on(model, given)
        # Inputs in float64 take as much memory as all else.
        called.before = called.after = [
            one if at in changed else one.new_zeros(0) for at, one in enumerate(called.after)
        ]
        if self._has_state and isinstance(model, torch.nn.Module):
            self._has_state = before != _contents(model)
            first = self.model.state_dict()
            called.state = {
                name: one
                for name, one in (model.state_dict() if self._has_state else {}).items()
                if name in first and not torch.equal(one, first[name])
            }
        return called

    def _widened(self, tensor: torch.Tensor, *, is_own: bool) -> torch.Tensor:
        if tensor.dtype in self._kinds and tensor.dtype is not torch.float64:
            return tensor.double()
        return tensor.clone() if is_own else tensor

    @contextmanager
    def _arithmetic(self, *, noise: float, is_watched: bool) -> Iterator[None]:
        before = torch.get_default_dtype()
        if before in self._kinds:
            torch.set_default_dtype(torch.float64)
        try:
            with _Wide(self._kinds, self._own, noise=noise, is_watched=is_watched):
                if self._asks:
                    with _OwnTypes(self._own):
                        yield
                else:
                    yield
        finally:
            torch.set_default_dtype(before)


def _contents(model: Any) -> list[Any]:
    """The parts of a model that a call may change: identities of its attributes and of what these
    hold, and how often a tensor was written."""
    found: list[Any] = []
    for module in model.modules():
        for value in vars(module).values():
            items = value.values() if isinstance(value, dict) else value
            held = list(items) if isinstance(value, dict | list | tuple) else []
            found += [
                (id(one), one._version if isinstance(one, torch.Tensor) else 0)
                for one in (value, *held)
            ]
    return found


class _Wide(Watching):
    """Within: what torch computes is computed in float64."""

    def __init__(
        self, kinds: set[torch.dtype], own: torch.dtype, *, noise: float, is_watched: bool
    ) -> None:
        super().__init__()
        self._is_watched = is_watched
        self._kinds = kinds - {torch.float64}
        self._own = own
        self._noise = noise

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if not isinstance(func, torch._ops.OpOverload):
            return func(*args, **(kwargs or {}))
        name = func._schema.name.rpartition("::")[2]
        is_writing = func._schema.is_mutable
        args = tuple(self._wide(one, is_writing) for one in args)
        kwargs = {key: self._wide(one, is_writing) for key, one in (kwargs or {}).items()}
        if name == "view" and func._overloadname == "dtype":
            if args[0].is_floating_point() or args[1].is_floating_point:
                raise CannotWiden("a bit cast")
        elif name == "nextafter":
            raise CannotWiden("nextafter")
        elif name.rstrip("_") == "nan_to_num":
            ends, (value, nan, high, low) = torch.finfo(self._own), (*args, *(None,) * 3)[:4]
            args = value, nan, ends.max if high is None else high, ends.min if low is None else low
        elif self._noise and name in OPEN and not kwargs.get("stable"):
            return _with_ties(func, args, kwargs, self._noise)
        elif self._noise and FUSED.search(name):
            args = (_noisy(args[0], self._noise, below=SENTINEL, is_rounded=True), *args[1:])
        # A whole transposed convolution on a card: cuDNN takes 0.4 s for one of 4 GB.
        is_own = name == "convolution" and len(args) == 9 and args[0].is_cuda
        is_own = is_own and bool(args[6]) and args[8] == 1
        with torch.backends.cudnn.flags(enabled=False) if is_own else nullcontext():
            out = func(*args, **kwargs)
        if self._is_watched:
            _require_defined(name, args, kwargs, out)
        if self._noise and name not in UNROUNDED and not func.is_view:
            given = {*map(_storage, [] if is_writing else calls.leaves([args, kwargs]))}
            return _with_noise(out, self._noise, given=given)
        return out if is_writing else self._wide(out, False)

    def _wide(self, value: Any, is_writing: bool) -> Any:
        if isinstance(value, torch.Tensor):
            if value.dtype not in self._kinds:
                return value
            if not is_writing:
                return value.double()
            value.data = value.data.double()  # a tensor that no operation has made, as a buffer's
            return value
        if isinstance(value, torch.dtype):
            return torch.float64 if value in self._kinds else value
        if isinstance(value, list | tuple):
            return type(value)([self._wide(one, is_writing) for one in value])
        return value


class _OwnTypes(TorchFunctionMode):
    """Within: a tensor in float64 has the problem's own type for who asks."""

    def __init__(self, own: torch.dtype) -> None:
        super().__init__()
        self._own = own

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if (
            getattr(func, "__name__", "") == "rms_norm"
            and len(args) < 4
            and kwargs.get("eps") is None
        ):
            kwargs["eps"] = torch.finfo(self._own).eps
        out = func(*args, **kwargs)
        return self._own if func == GET_TYPE and out is torch.float64 else out


def _noisy(
    value: Any,
    noise: float,
    *,
    below: float = math.inf,
    is_rounded: bool = False,
    is_own: bool = False,
) -> Any:
    """A tensor with other roundings, in its own memory where asked. Elements from a magnitude on
    stay, and those that nothing has rounded, unless it is said: a sum of a few numbers of fewer
    digits is exact in any kernel."""
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.float64:
        return value
    made = value if is_own else torch.empty_like(value)
    bits = (1 << EXACT_BITS + round(math.log2(abs(noise)))) - 1
    for block in calls.blocks(
        tuple(value.shape), calls.limit_on(value.device)
    ):  # a large one has no room
        part = value[block]
        factor = torch.empty_like(part).uniform_(-1, 1).mul_(noise).add_(1)
        if not is_rounded:
            factor.masked_fill_(part.view(torch.int64).bitwise_and(bits) == 0, 1.0)
        if below < math.inf:
            factor.masked_fill_(part.abs() >= below, 1.0)
        torch.mul(part, factor, out=made[block])
    return made


def _with_ties(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], noise: float) -> Any:
    """Results of an operation that takes elements in an order, of equal ones in one that the sign
    of a noise turns round."""
    value, names = args[0], [one.name for one in func._schema.arguments]
    axis = (dict(zip(names, args, strict=False)) | kwargs).get("dim", -1)
    if not value.is_floating_point() or not value.numel() or len(func._schema.returns) < 2:
        return func(*args, **kwargs)
    largest = float(value.nan_to_num(0.0, 0.0, 0.0).abs().max()) or 1.0
    step = math.copysign(1024 * NOISE * largest, noise) * torch.rand_like(value)
    at = func(value + step, *args[1:], **kwargs)[1]
    if at.ndim < value.ndim:
        return value.gather(axis, at.unsqueeze(axis)).squeeze(axis), at
    return value.gather(axis, at), at


def _with_noise(out: Any, noise: float, *, given: set[int]) -> Any:
    """The results of an operation on tensors of `given` storages with other roundings, in their own
    memory unless it is one of those."""
    if isinstance(out, list | tuple):
        return type(out)(_with_noise(one, noise, given=given) for one in out)
    is_own = isinstance(out, torch.Tensor) and _storage(out) not in given
    return _noisy(out, noise, is_own=is_own)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else 0


def _require_defined(name: str, args: Sequence[Any], kwargs: Any, out: Any) -> None:
    """Raises UndefinedResult for a result of an operation that torch leaves open."""
    if name in CASTS and _is_undefined_cast(args, out):
        raise UndefinedResult("a number as an integer of a type that does not have it")
    if name in PUTS and _is_undefined_put(name, args, kwargs, out):
        raise UndefinedResult("different values at one place")
    if name in ORDERS and any(isinstance(o, torch.Tensor) and bool(o.isnan().any()) for o in args):
        raise UndefinedResult("an order of NaN")


def _is_undefined_cast(args: Sequence[Any], out: Any) -> bool:
    source = args[1] if len(args) > 1 and isinstance(args[1], torch.Tensor) else args[0]
    is_cast = source.is_floating_point() and not out.is_floating_point() and not out.is_complex()
    if not is_cast or out.dtype is torch.bool:
        return False
    limits, whole = torch.iinfo(out.dtype), source.detach().double().trunc()
    return not bool(((whole >= float(limits.min)) & (whole < float(limits.max) + 1)).all())


def _is_undefined_put(name: str, args: Sequence[Any], kwargs: Any, out: torch.Tensor) -> bool:
    """True if what was put is not there any more."""
    if "index_put" in name:
        is_sum = bool(kwargs.get("accumulate", args[3] if len(args) > 3 else False))
        where, values = args[1], args[2]
        left = None if is_sum else torch.ops.aten.index.Tensor(out, where)
    else:
        dim, where, values = args[1:4]
        is_value = not isinstance(values, torch.Tensor) or len(args) > 4 or bool(kwargs)
        if is_value:  # the same everywhere, or reduced
            return False
        if name.startswith("scatter"):
            values = values[tuple(slice(length) for length in where.shape)]
            left = out.gather(dim, where)
        else:
            left = out.index_select(dim, where)
    if left is None or not left.numel():
        return False
    same = (left == values) | ((left != left) & (values != values))
    return not bool(same.all())
