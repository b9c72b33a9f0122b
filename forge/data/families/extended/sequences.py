"""Families with one program per row: `scan` and `masked_softmax`.

scan             a chain, then running sums along each row: forwards, backwards, without the own
                 element, or their means
masked_softmax   a chain, then softmax of each row: of the elements that a mask keeps, of those
                 behind a padding, with a bias added, or with a temperature
"""

from __future__ import annotations

from forge.data.families.rows import RowFamily, RowVariant

_KEPT = "x = tl.where(mask, {c}, 0.0)"
_SCAN = {
    "cumsum": RowVariant(
        result="torch.cumsum({c}, dim=1)", after=(_KEPT, "x = tl.cumsum(x, axis=0)")
    ),
    "reversed": RowVariant(
        result="{c}.flip(1).cumsum(dim=1).flip(1)",
        after=(_KEPT, "x = tl.cumsum(x, axis=0, reverse=True)"),
    ),
    "exclusive": RowVariant(
        result="torch.cumsum({c}, dim=1) - {c}",
        after=(_KEPT, "x = tl.cumsum(x, axis=0) - x"),
    ),
    "running_mean": RowVariant(
        result="torch.cumsum({c}, dim=1) / torch.arange(1, x.shape[1] + 1, device=x.device)",
        after=(_KEPT, "x = tl.cumsum(x, axis=0) / (cols + 1)"),
    ),
}
SCAN = RowFamily(name="scan", variants=tuple(_SCAN), lines=_SCAN)

_SOFTMAX = ("x = x - tl.max(x, axis=0)", "x = tl.exp(x)", "x = x / tl.sum(x, axis=0)")
_FINITE = 'x = tl.where(mask, {c}, float("-inf"))'
_HIDDEN = 'torch.softmax({{c}}.masked_fill({hidden}, float("-inf")), dim=1)'
_MASKED = {
    "masked": RowVariant(
        inputs=("torch.rand(ROWS, COLS) > 0.3",),
        operands=("x", "keep"),
        result=_HIDDEN.format(hidden="~keep"),
        before=("keep = tl.load(keep_ptr + row * {n} + cols, mask=mask, other=0) != 0",),
        after=('x = tl.where(mask & keep, {c}, float("-inf"))', *_SOFTMAX),
    ),
    "padded": RowVariant(
        inputs=("torch.randint(0, COLS // 2, (ROWS, 1))",),
        operands=("x", "i"),
        result=_HIDDEN.format(hidden="torch.arange(x.shape[1], device=x.device) < i"),
        before=("i = tl.load(i_ptr + row)",),
        after=('x = tl.where(mask & (cols >= i), {c}, float("-inf"))', *_SOFTMAX),
    ),
    "biased": RowVariant(
        inputs=("torch.randn(COLS)",),
        operands=("x", "y"),
        result="torch.softmax({c} + y, dim=1)",
        before=("y = tl.load(y_ptr + cols, mask=mask, other=0.0)",),
        after=(_FINITE.replace("{c}", "{c} + y"), *_SOFTMAX),
    ),
    "temperature": RowVariant(
        result="torch.softmax({c} / 0.5, dim=1)",
        after=(_FINITE.replace("{c}", "{c} / 0.5"), *_SOFTMAX),
    ),
}
MASKED_SOFTMAX = RowFamily(name="masked_softmax", variants=tuple(_MASKED), lines=_MASKED)
