"""Watches torch in a forward call: its operations, FLOPs, and constants that they compare with.

Used by oracles on references, below autograd, where every way to call an operation looks the same.
Names of views, allocations and fills are left out: they read no data; so is a copy onto itself.
FLOPs are those of matrix products, convolutions and attention, which TF32 may make inexact. At the
constants a reference may behave otherwise. Not covered: a reference that leaves the mode or
computes elsewhere than in torch.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from forge.evalpool.judge.numbers.called import call_on, copied, leaves
from forge.evalpool.judge.numbers.protocols import TOLERANCE

FREE = {
    *("zeros", "ones", "full", "arange", "eye", "linspace", "scalar_tensor", "fill", "fill_"),
    *("zero_", "set_", "resize_", "lift_fresh", "detach", "_unsafe_view", "_reshape_alias"),
}
PRODUCTS = ("mm", "mv", "dot", "linear", "matmul", "bilinear")
"""Ends of the names: `addmm`, `baddbmm`, `_scaled_mm`."""
THRESHOLDS = {
    *("clamp", "clamp_min", "clamp_max", "hardtanh", "threshold", "softplus", "softshrink"),
    *("hardshrink", "smooth_l1_loss", "huber_loss", "nan_to_num", "eq", "ne", "lt", "le", "gt"),
    *("ge", "fmod", "remainder", "floor_divide", "minimum", "maximum", "fmin", "fmax"),
    *("bucketize", "searchsorted", "isin", "histc"),
}
"""Operations that compare their tensor with a number, or change it from a number on only."""
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
STEPS = {"round", "floor", "ceil", "trunc", "frac", "div", "fmod", "remainder", "floor_divide"}
"""Operations that jump at multiples of 1, or of the number that they divide by."""
CASTS = ("_to_copy", "copy_")
MAX_TABLE = 64
"""Elements of a tensor each of which is a number that an operation compares with."""
MIXING = ("softmax", "norm", "cum", "sort", "mm", "conv", "roll", "flip")
"""Parts of names of operations that keep a shape and are not elementwise."""
HALVES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
EXACT = {
    *("clone", "_to_copy", "copy", "copy_", "cat", "stack", "index", "index_select", "gather"),
    *("embedding", "constant_pad_nd", "repeat", "repeat_interleave", "roll", "flip", "where"),
    *("masked_fill", "masked_fill_", "index_put_", "scatter_", "relu", "neg", "abs"),
    *("tril", "triu"),
    *("max", "amax", "min", "amin", "sort", "topk", "max_pool2d_with_indices"),
}
"""Operations that give elements of theirs, or an exact function of one: they round nothing."""


RECURRENT = ("rnn", "lstm", "gru")
"""In names of operations whose matrix products have no FLOPs: cuDNN's layers."""


def count_work(model: Any, inputs: list[Any]) -> OpCounter | None:
    """Operations of torch in one call; None where it cannot be watched."""
    model, inputs = copied(model), copy.deepcopy(inputs)
    try:
        own = [*model.parameters(), *model.buffers()]
        with OpCounter(own, inputs=leaves(inputs)) as counter:
            call_on(model, inputs)
    except Exception:  # it ran before: some torch code refuses to run under a mode
        return None
    return counter


def has_products(counted: OpCounter | None) -> bool:
    """True if a call has products that TF32 may make inexact, or cannot be watched."""
    if counted is None:
        return True
    return counted.flops > 0 or any(part in name for name in counted.names for part in RECURRENT)


def rounding_of(counted: OpCounter | None, precision: str) -> str:
    """The coarsest precision that a reference rounds to: the problem's, or that of half-precision
    results that it has on the way to an output of fp32."""
    halves = set[str]() if counted is None else counted.halves
    return max({precision, *halves}, key=lambda one: (TOLERANCE[one], one == precision))


class Watching(TorchDispatchMode):
    """Within, sees every operation; those of a higher order by what they call."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keeps torch from wrapping `__torch_dispatch__`: that imports the compiler (0.9 s)."""
        return False


class OpCounter(Watching):
    def __init__(
        self, own: Iterable[torch.Tensor] = (), *, inputs: Iterable[torch.Tensor] = ()
    ) -> None:
        """`own` are parameters and buffers, whose least and greatest numbers are constants, too;
        `inputs` the tensors of the call."""
        super().__init__()
        self._own = {one.data_ptr() for one in own if one.numel()}
        self._inputs = {one.untyped_storage().data_ptr() for one in inputs if one.numel()}
        self._alike: dict[int, int | None] = {
            address: n for n, address in enumerate(map(_address, inputs)) if address
        }
        """Memory of inputs and of elementwise functions of them: the input, None of several."""
        self._fixed = set[int]()
        """Memory of tensors that are made of none."""
        self.names: dict[str, int] = {}
        """Operations that read or write data, and how often."""
        self.flops = 0
        self.made_bytes = 0
        """Bytes of all results."""
        self.constants: set[float] = set()
        """Numbers that THRESHOLDS compare with."""
        self.compared: set[float] = set()
        """Numbers that COMPARISONS compare with."""
        self.units: set[float] = set()
        """Units to multiples of which STEPS round an input itself. (What rounds an intermediate
        result jumps where another kernel's last bit may be another one.)"""
        self.integers: set[int] = set()
        """Numbers that integers are compared with; with neighbours where the order counts."""
        self.specials: set[float] = set()
        """NaN and infinities that operations look for in an input itself."""
        self.is_comparing = False
        """True if two tensors with axes were compared."""
        self.is_gating = False
        """True if something was decided once, for all of a tensor."""
        self.is_truncating = False
        """True if floats were cast to integers, which is undefined for NaN."""
        self.halves: set[str] = set()
        """Half precisions that results were rounded to."""
        self.has_floats = False
        """True if an operation made floats."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if not isinstance(func, torch._ops.OpOverload):
            return out
        name = func._schema.name.rpartition("::")[2]
        if name.rstrip("_") in THRESHOLDS or (kwargs or {}).get("rounding_mode"):
            is_search = name in ("bucketize", "searchsorted", "isin")
            self.is_comparing |= is_search or (
                name in COMPARISONS and sum(one.ndim > 0 for one in leaves(args)) == 2
            )
            left = [one.default_value for one in func._schema.arguments[len(args) :]]
            found = set(self._numbers([*args, *(kwargs or {}).values(), *left]))
            self.constants |= found
            self.compared |= found if name in COMPARISONS else set()
            if not any(one.is_floating_point() or one.is_complex() for one in leaves(args)):
                steps = (0,) if name in ("eq", "ne", "isin") else (-1, 0, 1)
                whole = [round(one) for one in found if math.isfinite(one)]
                self.integers |= {one + step for one in whole for step in steps}
            if name in ("eq", "ne") and _is_same(*leaves(args)):
                self.constants.add(math.nan)  # x != x is a NaN
        self.specials |= self._looked_for(name, args, out)
        is_fixed = all(_address(one) in self._fixed for one in leaves(args))
        change = self._fixed.update if is_fixed else self._fixed.difference_update
        change(map(_address, leaves((out,))))
        if name.rstrip("_") in STEPS:
            self.units |= self._units(name.rstrip("_"), args, kwargs or {})
        is_free = name in FREE or name.startswith(("empty", "new_")) or name.endswith("_like")
        if not func.is_view and not is_free:
            given = [*leaves(args), *leaves(kwargs or {})]
            if name != "copy_" or not _is_same(*given[:2]):
                made = leaves((out,))
                self.has_floats |= any(one.is_floating_point() for one in made)
                whole = any(not o.is_floating_point() and o.dtype is not torch.bool for o in made)
                is_cast = name in CASTS and any(one.is_floating_point() for one in given)
                self.is_truncating |= is_cast and whole
                self.is_gating |= any(o.dtype is torch.bool and o.numel() == 1 for o in made)
                types = {one.dtype for one in made if given}
                types -= {one.dtype for one in given if name in EXACT}
                self.halves |= {HALVES[one] for one in types & HALVES.keys()}
                self.names[name] = self.names.get(name, 0) + 1
                self.flops += _flops(name, given, made)
                self.made_bytes += sum(one.nbytes for one in made)
        return out

    def _looked_for(self, name: str, args: tuple[Any, ...], out: Any) -> set[float]:
        """NaN and infinities that an operation looks for in an input, or in an elementwise function
        of one: what is there after a sum or a softmax is the reference's own."""
        given = [_address(one) for one in leaves(args)]
        is_input = any(one in self._alike for one in given[:1])
        for one in leaves((out,)):
            is_alike = is_input and one.shape == leaves(args)[0].shape
            if is_alike and not any(part in name for part in MIXING):
                found = {self._alike.get(other) for other in given}
                self._alike[_address(one)] = found.pop() if len(found) == 1 else None
            elif _address(one) not in given:  # memory that is used again
                self._alike.pop(_address(one), None)
        if not is_input:
            return set()
        infinities = {math.inf, -math.inf} if name.startswith(("isinf", "nan_to_num")) else set()
        if name in COMPARISONS:
            infinities |= {one for one in self._numbers([*args]) if math.isinf(one)}
        is_itself = name in ("eq", "ne") and _is_same(*leaves(args))
        return {math.nan} | infinities if "nan" in name or is_itself else infinities

    def _units(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[float]:
        """Units of a step of an input; none for a step of anything else."""
        is_step = name != "div" or kwargs.get("rounding_mode") is not None
        first = next(iter(leaves(args)), None)
        if not is_step or first is None or first.layout is not torch.strided:
            return set()
        if first.untyped_storage().data_ptr() not in self._inputs or not first.is_floating_point():
            return set()
        others = args[1:] if name in ("div", "fmod", "remainder", "floor_divide") else ()
        return {abs(one) for one in self._numbers([*others])} or {1.0}

    def _numbers(self, values: list[Any]) -> Iterator[float]:
        """The numbers among the arguments of an operation, also those in tensors without axes, and
        the ends of the range of a parameter or buffer."""
        for value in values:
            if isinstance(value, torch.Tensor):
                if value.is_complex() or value.device.type == "meta" or not value.numel():
                    continue
                if not value.ndim:
                    yield float(value)
                elif value.data_ptr() in self._own:
                    yield from (float(one) for one in torch.aminmax(value))
                elif value.numel() <= MAX_TABLE and _address(value) in self._fixed:
                    found = [float(one) for one in value.flatten()]
                    is_places = found == [found[0] + n for n in range(len(found))]
                    yield from [] if is_places else found
            elif isinstance(value, int | float) and not isinstance(value, bool):
                yield float(value)


def _address(tensor: torch.Tensor) -> int:
    """Address of its memory; 0 without one."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def _flops(name: str, given: list[torch.Tensor], made: list[torch.Tensor]) -> int:
    """FLOPs: two for each multiplication with its addition."""
    if not made or len(given) < 2:
        return 0
    if name == "_trilinear":
        return 2 * made[0].numel() * (given[1].numel() // max(1, given[1].shape[0]))
    if name.rstrip("_").endswith(PRODUCTS):
        left = given[1] if name.startswith(("add", "badd")) else given[0]
        num_summed = left.shape[0] if name.startswith("addbmm") else 1
        return 2 * made[0].numel() * num_summed * (left.shape[-1] if left.ndim else 1)
    if "conv" in name:
        data, weight = given[0], given[1]
        # The larger side: a transposed convolution multiplies each of its inputs.
        return 2 * max(data.numel(), made[0].numel()) * (weight.numel() // max(1, weight.shape[0]))
    if "attention" in name and len(given) > 2:
        query, key, value = given[:3]
        return 2 * query[..., 0].numel() * key.shape[-2] * (query.shape[-1] + value.shape[-1])
    return 0


def _is_same(target: torch.Tensor, source: torch.Tensor | None = None) -> bool:
    return (
        source is not None
        and target.layout is source.layout is torch.strided
        and target.data_ptr() == source.data_ptr()
        and target.shape == source.shape
        and target.dtype == source.dtype
        and target.device == source.device
    )
