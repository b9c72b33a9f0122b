"""Operations of a reference whose results torch leaves open: sets of inputs with one are not used.

Called by wide/reference.py. An honest kernel gives another result there:

    casts   of NaN and infinities to integers, as of a quotient by a scale that is 0 in fp16
    puts    of different values at one place, of which any may be left
    orders  of NaN, as of 0 / 0 in a block of zeros: torch finds nothing less or greater, a kernel
            that bounds it before makes it a number
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from forge.evalpool.judge.numbers.finite import are_finite

if TYPE_CHECKING:
    from collections.abc import Sequence

CASTS = {"_to_copy", "copy_"}
PUTS = {
    *("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"),
    *("scatter", "scatter_", "index_copy", "index_copy_"),
}
ORDERS = {"lt", "le", "gt", "ge", "bucketize", "searchsorted"}


class UndefinedResult(Exception):
    """Torch leaves open what an operation returns."""


def require_defined(name: str, args: Sequence[Any], kwargs: Any, out: Any) -> None:
    """Raises UndefinedResult for a result of an operation that torch leaves open."""
    if name in CASTS and _is_undefined_cast(args, out):
        raise UndefinedResult("a number that is not finite as an integer")
    if name in PUTS and _is_undefined_put(name, args, kwargs, out):
        raise UndefinedResult("different values at one place")
    if name in ORDERS and any(_has_nan(one) for one in args):
        raise UndefinedResult("an order of NaN")


def _has_nan(value: Any) -> bool:
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return is_float and bool(value.isnan().any())


def _is_undefined_cast(args: Sequence[Any], out: Any) -> bool:
    source = args[1] if len(args) > 1 and isinstance(args[1], torch.Tensor) else args[0]
    is_cast = source.is_floating_point() and not out.is_floating_point() and not out.is_complex()
    return is_cast and out.dtype is not torch.bool and not are_finite([source])


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
