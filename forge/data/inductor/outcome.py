"""Results of a rewrite: a plain module, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Policy = Literal["own", "hybrid"]
"""The judge's policy under which a module is honest; see `judge.policy`."""


class RewriteReason(StrEnum):
    """Reasons why an answer is not rewritten. Data cards count them."""

    NOT_PYTHON = "not_python"
    """A text does not parse."""
    NO_KERNEL = "no_kernel"
    """No Triton kernel is launched for a value that forward returns."""
    UNKNOWN_HEURISTIC = "unknown_heuristic"
    """A kernel's decorator or grid is none for which block sizes are known: split scans,
    cooperative and combined kernels."""
    UNKNOWN_HELPER = "unknown_helper"
    """A kernel calls a function of Inductor's runtime that has no counterpart here."""
    UNKNOWN_STATEMENT = "unknown_statement"
    """A statement of `call`, or of forward, has a form that is not known."""
    UNKNOWN_OPERATION = "unknown_operation"
    """`call` uses an external kernel of Inductor."""
    UNKNOWN_NAME = "unknown_name"
    """The module would use a name that nothing in it defines: constants folded into the graph."""
    RANDOM = "random"
    """A kernel or `call` draws random numbers, which no judge can compare."""


class NotRewritten(ValueError):
    """An answer cannot be rewritten."""

    def __init__(self, reason: RewriteReason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else str(reason))
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """A plain module."""

    code: str
    """Source that needs torch and triton only, and defines `ModelNew`."""
    policy: Policy
    """`hybrid` if torch computes part of the answer: matrix products, convolutions."""
    kernels: tuple[str, ...] = ()
    """Names of the kernels."""
    products: int = 0
    """How many kernels are matrix products and convolutions, with what follows them."""
