"""How much of a problem a candidate leaves to torch: what the counters said, as one share.

Called by `trial.py`. The share is bytes + FLOPs of the candidate's torch operations over those of
the reference, or over the bytes of inputs and outputs where these are more (a reference of views
costs nothing). What `allow_ops` lists does not count.

Moving data as it is (a copy, a cast, padding, joining) does not count either, unless the reference
computes nothing: then moving is the problem. From the rest an eighth of the bytes of inputs and
outputs, at most `FLOOR_BYTES`, is taken off, so that a final sum of partials does not weigh more
than it is where the whole problem is tiny.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FLOOR_BYTES = 256
"""A torch operation on 32 floats, in and out: a launch costs more."""
MOVES = {
    *("copy_", "copy", "clone", "_to_copy", "cat", "stack", "constant_pad_nd", "contiguous"),
}
ALIASES = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "conv_transpose1d"), "convolution"),
    **dict.fromkeys(("conv_transpose2d", "conv_transpose3d", "conv"), "convolution"),
    **dict.fromkeys(("matmul", "linear", "einsum", "bmm", "addmm"), "mm"),
    **dict.fromkeys(("scaled_dot_product_attention", "sdpa"), "attention"),
}
"""What people call operations, to what they are by the time they are counted."""
MAX_OPS = 200
MAX_NAME_CHARACTERS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchShare:
    """`value` as a verdict stores it, and the operations behind it, costliest first."""

    value: float
    ops: tuple[str, ...] = ()

    def words(self, limit: float) -> str:
        """For the model: what was found, what to do."""
        names = ", ".join(self.ops[:3])
        return (
            f"torch does the work: {names} cost {self.value:.0%} of the reference, "
            f"{limit:.0%} are allowed; compute them in the kernel"
        )


def parse_work(data: Any) -> dict[str, int] | None:
    """Cost by operation as a child sent it; None where it is no such thing."""
    if not isinstance(data, dict) or len(data) > MAX_OPS:
        return None
    if not all(type(cost) is int and cost >= 0 for cost in data.values()):
        return None
    return {str(name)[:MAX_NAME_CHARACTERS]: cost for name, cost in data.items()}


def torch_share(
    work: Mapping[str, int],
    *,
    reference: Mapping[str, int],
    io_bytes: int,
    allow_ops: Iterable[str] = (),
) -> TorchShare:
    """What a candidate's operations cost, as a share of the reference's."""
    is_moving = not computes(reference)
    counted = {
        name: cost
        for name, cost in work.items()
        if (is_moving or name not in MOVES) and not is_allowed(name, allow_ops)
    }
    cost = max(0, sum(counted.values()) - min(FLOOR_BYTES, io_bytes // 8))
    whole = max(sum(reference.values()), io_bytes, 1)
    ops = sorted(counted, key=lambda name: -counted[name])
    return TorchShare(value=round(cost / whole, 4), ops=tuple(ops))


def computes(work: Mapping[str, int]) -> bool:
    """Whether it does more than move data as it is."""
    return any(name not in MOVES for name in work)


def is_allowed(name: str, allow_ops: Iterable[str]) -> bool:
    """Whether a list names an operation: `mm` means `addmm` and `bmm`, `convolution` any."""
    parts = name.strip("_").split("_")
    for allowed in allow_ops:
        word = allowed.removeprefix("aten.").removeprefix("torch.").strip("_")
        word = ALIASES.get(word, word)
        if name.strip("_").endswith(word) or word in parts:
            return True
    return False
