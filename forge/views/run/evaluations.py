"""Label of an evaluation on problems that the run had trained on; the same in every place."""

# pyright: strict
from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

NUM_TRAINED = "coalesce(json_extract(detail, '$.num_trained_problems'), 0)"
"""SQL for a row of `evaluations`; 0 in runs of earlier versions, which did not count."""


def trained_share(row: Mapping[str, Any]) -> str:
    """`3 of 64`; empty if no problem was trained on.

    Args:
        row: an evaluation with num_problems and num_trained_problems.
    """
    num = row["num_trained_problems"]
    return f"{num} of {row['num_problems']}" if num else ""


def trained_label(row: Mapping[str, Any]) -> str:
    """`trained on 3 of 64 problems`; empty if none."""
    share = trained_share(row)
    return share and f"trained on {share} problems"
