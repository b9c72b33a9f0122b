"""Comparison of two results of a reference, as the judge would compare a candidate's with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.evalpool.judge.numbers.gpu_compare import Allowed, is_near

if TYPE_CHECKING:
    import torch


class Agreement:
    """True if the judge would accept some outputs for others; remembers the tolerances of the last
    ones, with which many are compared.

    Args:
        margin: of a difference, the part that must be within tolerance: own errors and typical
            sizes widen the judge's, and are not known here.
    """

    def __init__(self, precision: str, *, margin: float = 1.0) -> None:
        self._precision = precision
        self._margin = margin
        self._expected: list[torch.Tensor] = []
        self._allowed: list[Allowed] = []

    def __call__(self, expected: list[torch.Tensor], got: list[torch.Tensor]) -> bool:
        """True if the judge would accept `got` for `expected`."""
        if expected is not self._expected:
            self._expected = expected
            self._allowed = [
                Allowed.of(one, one.new_zeros(0), precision=self._precision) for one in expected
            ]
        return all(
            is_near(b, a, allowed=allowed, margin=self._margin)
            for b, a, allowed in zip(got, expected, self._allowed, strict=True)
        )
