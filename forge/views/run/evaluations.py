"""Labels of an evaluation, the same in every place: how many of its problems were judged, and how
many the run had trained on."""

# pyright: strict
from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

NUM_TRAINED = "coalesce(json_extract(detail, '$.num_trained_problems'), 0)"
"""SQL for a row of `evaluations`; 0 in runs of earlier versions, which did not count."""
JUDGED = """coalesce(json_extract(detail, '$.num_judged_problems'), num_problems)
        AS num_judged_problems,
    coalesce(json_extract(detail, '$.unjudgeable'), '{}') AS unjudgeable"""
"""SQL columns for a row of `evaluations`; all problems in runs of earlier versions, which did not
count."""


def judged_share(row: Mapping[str, Any]) -> str:
    """`95 of 100`: the denominator of the rates; empty if all problems were judged.

    Args:
        row: an evaluation with num_problems and num_judged_problems.
    """
    if not is_judged_in_part(row):
        return ""
    return f"{row['num_judged_problems']} of {row['num_problems']}"


def unjudgeable_reasons(row: Mapping[str, Any]) -> str:
    """`5 (3 reference_failed, 2 problem_too_large)`; empty if none.

    Args:
        row: an evaluation with unjudgeable: number of problems by reason, also as JSON.
    """
    found = row["unjudgeable"]
    reasons: dict[str, int] = json.loads(found) if isinstance(found, str) else found
    if not reasons:
        return ""
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    listed = ", ".join(f"{count} {reason}" for reason, count in ordered)
    return f"{sum(reasons.values())} ({listed})"


def is_judged_in_part(row: Mapping[str, Any]) -> bool:
    """True if some of the problems of an evaluation were not judged."""
    return row["num_judged_problems"] < row["num_problems"]


def judged_label(row: Mapping[str, Any]) -> str:
    """`95 of 100 problems judged; 5 unjudgeable (5 reference_failed)`."""
    judged = f"{row['num_judged_problems']} of {row['num_problems']} problems judged"
    found = unjudgeable_reasons(row)
    number, _, reasons = found.partition(" ")
    return f"{judged}; {number} unjudgeable {reasons}" if found else judged


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
