"""Family `loss`: a chain, then a loss of each row against targets.

mse, l1, huber   mean over the row, against numbers
bce              the same of logits, against probabilities
kl               divergence of a softmax from a target in logarithms
cross_entropy    of logits against the row's label
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.data.families.ops import (
    Chain,
    is_sound,
    is_sound_in_half,
    mean_square_of,
    spread_of,
)
from forge.data.families.rows import RowFamily, RowVariant

if TYPE_CHECKING:
    from collections.abc import Sequence

_F = "torch.nn.functional."
_MATRIX = "y = tl.load(y_ptr + row * {n} + cols, mask=mask, other=0.0)"
_LOG_SOFTMAX = (
    'x = tl.where(mask, {c}, float("-inf"))',
    "x = x - tl.max(x, axis=0)",
    "x = x - tl.log(tl.sum(tl.exp(x), axis=0))",
)


def _mean(reference: str, *lines: str, targets: str = "torch.randn(ROWS, COLS)") -> RowVariant:
    """The mean over a row of what the lines leave in `x`."""
    return RowVariant(
        inputs=(targets,),
        operands=("x", "y"),
        result=f'{_F}{reference}({{c}}, y, reduction="none").mean(dim=1)',
        before=(_MATRIX,),
        after=(*lines[:-1], _kept(lines[-1:]), "x = tl.sum(x, axis=0) / {n}"),
    )


def _kept(lines: Sequence[str]) -> str:
    return f"x = tl.where(mask, {lines[0]}, 0.0)"


_LINES = {
    "mse": _mean("mse_loss", "({c} - y) * ({c} - y)"),
    "l1": _mean("l1_loss", "tl.abs({c} - y)"),
    "huber": _mean(
        "huber_loss",
        "x = tl.abs({c} - y)",
        "tl.where(x < 1.0, 0.5 * x * x, x - 0.5)",
    ),
    "bce": _mean(
        "binary_cross_entropy_with_logits",
        "x = tl.maximum({c}, 0.0) + tl.log(1.0 + tl.exp(-tl.abs({c})))",
        "x - {c} * y",
        targets="torch.rand(ROWS, COLS)",
    ),
    "kl": RowVariant(
        inputs=("torch.log_softmax(torch.randn(ROWS, COLS), dim=1)",),
        operands=("x", "y"),
        result=(
            f"{_F}kl_div(torch.log_softmax({{c}}, dim=1), y, "
            'reduction="none", log_target=True).sum(dim=1)'
        ),
        before=(_MATRIX,),
        after=(
            *_LOG_SOFTMAX,
            "x = tl.where(mask, tl.exp(y) * (y - x), 0.0)",
            "x = tl.sum(x, axis=0)",
        ),
    ),
    "cross_entropy": RowVariant(
        inputs=("torch.randint(0, COLS, (ROWS,))",),
        operands=("x", "i"),
        result=f'{_F}cross_entropy({{c}}, i, reduction="none")',
        before=("i = tl.load(i_ptr + row)",),
        after=(*_LOG_SOFTMAX, "x = -tl.sum(tl.where(cols == i, x, 0.0), axis=0)"),
    ),
}
_MIN_SPREAD = 0.15
"""Least standard deviation of logits: of flatter ones a few columns hardly count."""
_MIN_SHIFT = 0.05
"""Least change of a loss in half precision from leaving out a step, relative to the loss."""


class Loss(RowFamily):
    """A family whose chains must show in a mean over a row."""

    def accepts(self, variant: str, chain: Chain) -> bool:
        """True for a sound chain that varies enough."""
        return is_sound(chain) and spread_of(chain) > _MIN_SPREAD

    def accepts_half(self, variant: str, chain: Chain) -> bool:
        """True if each step changes the mean of squares, on which all losses against independent
        targets depend."""
        if variant in self.fp32_only or not is_sound_in_half(chain):
            return False
        whole = mean_square_of(chain)
        fewer = (mean_square_of(chain[:i] + chain[i + 1 :]) for i in range(len(chain)))
        return all(abs(whole - one) > _MIN_SHIFT * (1.0 + whole) for one in fewer)


LOSS = Loss(
    name="loss",
    variants=tuple(_LINES),
    lines=_LINES,
    reduces=True,
    fp32_only=("kl", "cross_entropy"),
)
