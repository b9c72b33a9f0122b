"""Properties of an input's values that a reference may rely on, and inputs moved back into them.

Called by variants.py. A property counts where the inputs as given have it: probabilities sum to
one, matrices have a Cholesky factor, rows are sorted or repeat themselves. Signs and the unit
interval are kept only where the reference fails without (input_sets.py). Large tensors are looked
at in a sample of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch

from forge.evalpool.judge.numbers.called import is_categorical, rows_of
from forge.evalpool.judge.numbers.finite import widened

MIN_SORTED = 8
"""Elements of a row that are not sorted by chance."""
MIN_REPEATED = 4
"""Elements of a row that do not repeat each other by chance."""
SIMPLEX_ERROR = 1e-3
"""Largest difference of a sum of probabilities from one; half precision has no better ones."""


class Form(StrEnum):
    """Kinds of values."""

    FREE = "free"
    CATEGORICAL = "categorical"
    """One or two values only: a mask, labels, zeros that stand for a state."""
    PROBABILITIES = "probabilities"
    """Rows are non-negative and sum to one."""
    LOG_PROBABILITIES = "log probabilities"
    DEFINITE = "definite"
    """Symmetric positive definite matrices."""
    SYMMETRIC = "symmetric"
    LOWER = "lower triangular"
    UPPER = "upper triangular"
    ASCENDING = "ascending"
    DESCENDING = "descending"
    HALVES = "equal halves"
    """The second half of each row repeats the first: sines and cosines of rotary embeddings."""
    PAIRS = "equal pairs"
    """The elements of each row are equal in pairs, for the interleaved kind of them."""


REPEATED = frozenset({Form.HALVES, Form.PAIRS})
"""Forms whose rows repeat themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """Properties of one floating tensor."""

    form: Form
    axis: int = -1
    """Axis of the rows, where the form has rows."""
    is_non_negative: bool = False
    is_unit: bool = False
    """Within [0, 1]."""
    is_open: bool = False
    """No element is 0 (or 1, if within [0, 1])."""

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Domain:
        """The domain of a floating tensor with at least one element."""
        tensor = widened(tensor)
        low, high = (float(one) for one in torch.aminmax(tensor))
        form, axis = _form(tensor)
        return cls(
            form=form,
            axis=axis,
            is_non_negative=low >= 0,
            is_unit=low >= 0 and high <= 1,
            is_open=low > 0 and high != 1,
        )


def _form(tensor: torch.Tensor) -> tuple[Form, int]:
    if tensor.numel() > 2 and is_categorical(tensor):
        return Form.CATEGORICAL, -1
    if tensor.ndim == 0 or tensor.numel() < 3:
        return Form.FREE, -1
    for axis in (-1, 1) if tensor.ndim > 2 else (-1,):
        if (form := _simplex(tensor.movedim(axis, -1))) is not None:
            return form, axis
    if tensor.ndim >= 2 and tensor.shape[-1] == tensor.shape[-2] > 2:
        form = _matrix(tensor)
        if form is not None:
            return form, -1
    if (form := _repeated(tensor)) is not None:
        return form, -1
    return _sorted(tensor)


def _simplex(tensor: torch.Tensor) -> Form | None:
    rows = rows_of(tensor, is_whole=True).float()
    if rows.shape[-1] < 2:
        return None
    is_positive = all(bool((part >= 0).all()) for part in (rows[:1], rows))  # most end at once
    if is_positive and bool(((rows.sum(-1) - 1).abs() < SIMPLEX_ERROR).all()):
        return Form.PROBABILITIES
    is_low = all(bool((part <= SIMPLEX_ERROR).all()) for part in (rows[:1], rows))
    if is_low and bool((rows.logsumexp(-1).abs() < SIMPLEX_ERROR).all()):
        return Form.LOG_PROBABILITIES
    return None


def _matrix(tensor: torch.Tensor) -> Form | None:
    sample = tensor.reshape(-1, *tensor.shape[-2:])[:4]
    if sample.numel() <= 1 << 24 and torch.equal(sample, sample.mT):
        _, info = torch.linalg.cholesky_ex(sample.float())
        return Form.DEFINITE if not bool(info.any()) else Form.SYMMETRIC
    corner = sample[..., :256, :256]
    if not bool(corner.triu(1).any()):
        return Form.LOWER
    return Form.UPPER if not bool(corner.tril(-1).any()) else None


def _repeated(tensor: torch.Tensor) -> Form | None:
    length = tensor.shape[-1]
    if length % 2 or length < MIN_REPEATED:
        return None
    for form in REPEATED:  # most end at a few rows
        parts = (_copies(rows, form) for rows in (rows_of(tensor)[:4], tensor))
        if all(torch.equal(one, other) for one, other in parts):
            return form
    return None


def _copies(tensor: torch.Tensor, form: Form) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of the elements of each row that are repeated, and of those that repeat them."""
    half = tensor.shape[-1] // 2
    if form is Form.HALVES:
        return tensor[..., :half], tensor[..., half:]
    return tensor[..., ::2], tensor[..., 1::2]


def _sorted(tensor: torch.Tensor) -> tuple[Form, int]:
    for axis in range(tensor.ndim - 1, -1, -1):
        if tensor.shape[axis] < MIN_SORTED:
            continue
        rows = rows_of(tensor.movedim(axis, -1))
        steps = rows[..., 1:] - rows[..., :-1]
        if bool((steps >= 0).all()):
            return Form.ASCENDING, axis
        if bool((steps <= 0).all()):
            return Form.DESCENDING, axis
    return Form.FREE, -1


def settle(value: torch.Tensor, domain: Domain, *, signs: bool, unit: bool) -> torch.Tensor:
    """`value` moved into `domain`, in place where the form allows it.

    Args:
        value: [shape] as a variant made it.
        signs, unit: keep values non-negative, or in [0, 1], where the given ones were.
    """
    axis = domain.axis
    match domain.form:
        case Form.PROBABILITIES:
            return value.copy_(torch.softmax(value.float(), axis))
        case Form.LOG_PROBABILITIES:
            return value.copy_(torch.log_softmax(value.float(), axis))
        case Form.SYMMETRIC | Form.DEFINITE:
            value.copy_((value + value.mT) / 2)
        case Form.LOWER:
            value.tril_()
        case Form.UPPER:
            value.triu_()
        case Form.ASCENDING | Form.DESCENDING:
            is_down = domain.form is Form.DESCENDING
            value.copy_(value.sort(dim=axis, descending=is_down).values)
        case Form.HALVES | Form.PAIRS:
            first, second = _copies(value, domain.form)
            second.copy_(first)
        case Form.FREE | Form.CATEGORICAL:
            pass
    if unit and domain.is_unit:
        value.remainder_(2.0).sub_(1.0).abs_().neg_().add_(1.0)  # folded, or many would be equal
        if domain.is_open:
            value.mul_(1 - 2e-3).add_(1e-3)  # small values stay different
    elif (signs or unit) and domain.is_non_negative:
        value.abs_()
        if domain.is_open:
            value.clamp_(min=1e-6)
    return value
