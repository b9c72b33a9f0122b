"""Softmaxes whose logits are computed twice, each time with another rounding.

Called by own_error.py. A softmax in one pass is exp(x_i - max x), and exact for the largest logit,
whatever its size. A kernel may compute x a second time in another order: attention that keeps the
logarithm of the sum alone does, and so does Triton's compiler, which repeats a product of few
elements in a second layout rather than moving it. Then the difference is off by the rounding of
the logits, eps · |x|, and a whole row of the result by exp of that: 1 % for logits of 1e5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Iterable

SOFTMAX, LOG_SOFTMAX = ("_softmax", "_safe_softmax"), ("_log_softmax",)
"""Operations below autograd. Attention is computed with them in float64."""
MAX_SHIFT = 0.125
"""Largest error of a difference of logits. In masked rows they are a constant, which both have."""
EPS = torch.finfo(torch.float32).eps


def has_softmax(operations: Iterable[str]) -> bool:
    """True if there is a softmax among names of operations below autograd."""
    return any("softmax" in name or "attention" in name for name in operations)


def has_attention(operations: Iterable[str]) -> bool:
    """True if there is a softmax beside products: kernels scale one operand by log2 e / sqrt(d) and
    round it to half precision again before the product."""
    names = list(operations)
    return has_softmax(names) and any("mm" in name or "attention" in name for name in names)


class RoundedTwice(TorchDispatchMode):
    """Within: each row of a softmax is off by the last bit of its logits in fp32, up or down."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The operation's result, changed if it is a softmax."""
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in SOFTMAX:
            result.mul_(_shift(args[0], args[1]).exp_())
        elif name in LOG_SOFTMAX:
            result.add_(_shift(args[0], args[1]))
        return result


def _shift(logits: torch.Tensor, axis: int) -> torch.Tensor:
    """[rows, 1] plus or minus eps · |largest logit| of each row."""
    shift = logits.amax(axis, keepdim=True).abs_().mul_(EPS).nan_to_num_(0.0, 0.0, 0.0)
    sign = torch.randint_like(shift, 2).mul_(2).sub_(1)
    return shift.clamp_max_(MAX_SHIFT).mul_(sign)
