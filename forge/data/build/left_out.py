"""Rows and problems that a build or a harvest leaves out: `dropped.jsonl`, and the steps of the
manifest with reasons and examples."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MAX_EXAMPLES = 5
"""Examples of each reason that a manifest explains; all are in dropped.jsonl."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutRow:
    """A candidate that did not pass a step."""

    origin: str
    """Its place: `rows.jsonl:12`, `timm/layers/drop:DropPath`."""
    step: str
    reason: str
    """Few distinct words, by which such are counted."""
    detail: str = ""
    kind: str = ""
    """Group in which yields are counted."""

    def to_line(self) -> str:
        """Its line in dropped.jsonl."""
        row = {
            "origin": self.origin, "step": self.step, "reason": self.reason, "detail": self.detail,
        }  # fmt: skip
        return json.dumps(row) + "\n"


def describe_steps(
    dropped: Sequence[LeftOutRow],
    steps: Iterable[str],
    *,
    num: int,
    off: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Candidates in and out of each step with reasons and examples, in the order of the steps.

    Args:
        num: candidates before the first step.
        off: the steps that were not applied, and why.
    """
    listed: list[dict[str, Any]] = []
    for step in steps:
        gone = [one for one in dropped if one.step == step]
        counts = Counter(one.reason for one in gone)
        reasons = dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))
        entry: dict[str, Any] = {"step": str(step), "in": num, "out": num - len(gone)}
        if off and step in off:
            entry["off"] = off[step]
        listed.append({**entry, "reasons": reasons, "examples": _examples(gone)})
        num -= len(gone)
    return listed


def _examples(gone: Sequence[LeftOutRow]) -> list[dict[str, Any]]:
    """The first candidate of each reason and detail, with the number of such."""
    counts = Counter((one.reason, one.detail) for one in gone)
    shown = Counter[str]()
    examples: dict[tuple[str, str], dict[str, Any]] = {}
    for one in gone:
        key = (one.reason, one.detail)
        if key not in examples and shown[one.reason] < MAX_EXAMPLES:
            shown[one.reason] += 1
            examples[key] = {
                "row": one.origin, "reason": one.reason, "detail": one.detail, "rows": counts[key],
            }  # fmt: skip
    return list(examples.values())


def explained(steps: Iterable[Mapping[str, Any]]) -> list[str]:
    """The examples of the steps, a line each."""
    lines: list[str] = []
    for one in (each for step in steps for each in step.get("examples", ())):
        many = f"({one['rows']} rows)" if one["rows"] > 1 else ""
        said = ": ".join(filter(None, (one["row"], one["reason"], one["detail"])))
        lines.append(" ".join(f"{said} {many}".split()))
    return lines


def counted(steps: Iterable[Mapping[str, Any]]) -> str:
    """All reasons with their numbers, in one line."""
    return ", ".join(f"{num} {why}" for one in steps for why, num in one["reasons"].items())
