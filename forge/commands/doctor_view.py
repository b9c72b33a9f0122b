"""Output of `forge doctor`: a table, or JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from forge.commands.doctor import Finding


def render(findings: list[Finding]) -> Table:
    """One line per finding, with a mark and the fix."""
    table = Table("", "", "found", "fix", box=None, pad_edge=False)
    for finding in findings:
        mark = Text("ok", style="green") if finding.is_ok else Text("no", style="red")
        table.add_row(mark, finding.name, Text(finding.found), Text(finding.fix))
    return table


def to_json(findings: list[Finding]) -> dict[str, Any]:
    """The findings for programs."""
    return {"ok": all(each.is_ok for each in findings), "findings": [asdict(e) for e in findings]}
