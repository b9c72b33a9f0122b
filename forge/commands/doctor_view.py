"""Findings on a terminal and as JSON. Called by `forge doctor`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from forge.commands.doctor import Finding


def render(findings: list[Finding]) -> Table:
    """A line a finding; what is wrong has a mark and what mends it."""
    table = Table("", "", "found", "what mends it", box=None, pad_edge=False)
    for finding in findings:
        mark = Text("ok", style="green") if finding.is_ok else Text("no", style="red")
        table.add_row(mark, finding.name, Text(finding.found), Text(finding.fix))
    return table


def to_json(findings: list[Finding]) -> dict[str, Any]:
    """For programs."""
    return {"ok": all(each.is_ok for each in findings), "findings": [asdict(e) for e in findings]}
