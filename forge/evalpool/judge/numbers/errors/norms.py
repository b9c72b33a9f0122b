"""Norms whose statistics are rounded as kernels round them.

Called by own_error.py. Eager updates a mean and a variance with differences from the mean so far,
and loses less than a kernel that divides a sum: its mean is off by eps · |mean|. A variance that is
the mean of squares less the square of the mean, as in most published norms, is off by eps · mean².
The normalised values of a row lose as much where its mean is large beside its deviation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Iterable

LAYER_NORM, GROUP_NORM = "native_layer_norm", "native_group_norm"
BATCH_NORM = (
    *("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"),
    *("cudnn_batch_norm", "miopen_batch_norm"),
)
"""Operations below autograd that return mean and inverse deviation. Norms of instances are one of a
batch."""
EPS = torch.finfo(torch.float32).eps
MAX_LOSS = 0.125
"""Largest loss, in deviations: a row of equal values has nothing else."""


def has_norm(operations: Iterable[str]) -> bool:
    """True if there is a norm with a mean among names of operations below autograd."""
    return any(name in (LAYER_NORM, GROUP_NORM, *BATCH_NORM) for name in operations)


class RoundedNorms(TorchDispatchMode):
    """Within: each row of a norm is off by the last bit of its statistics in fp32, up or down."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The operation's results, of which a norm's first one is changed."""
        results = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name == LAYER_NORM:
            lost = _lost(args[0], *results[1:3])
            results[0].add_(lost if args[2] is None else lost.mul_(args[2]))
        elif name == GROUP_NORM or (name in BATCH_NORM and results[1].numel()):
            value, weight = args[:2]
            channels = (1, -1, *(1 for _ in value.shape[2:]))
            if name == GROUP_NORM:
                mean, scale = (one.unsqueeze(-1) for one in results[1:3])
                lost = _lost(value.reshape(*mean.shape[:2], -1), mean, scale).view(value.shape)
            else:
                lost = _lost(value, *(one.view(channels) for one in results[1:3]))
            results[0].add_(lost if weight is None else lost.mul_(weight.view(channels)))
        return results


def _lost(rows: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Losses of normalised `rows`, before their weight; mean and inverse deviation have one
    element a row."""
    ratio = (mean * scale).nan_to_num_(0.0, 0.0, 0.0)
    lost = (rows - mean).mul_(scale).mul_(ratio.square().mul_(EPS / 2).clamp_max_(MAX_LOSS))
    lost.add_(ratio.abs().mul_(EPS).clamp_max_(MAX_LOSS))
    return lost.mul_(torch.randint_like(ratio, 2).mul_(2).sub_(1))
