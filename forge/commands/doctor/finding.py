"""Findings of `forge doctor`, and their form as a table and as JSON.

An error means that a run could not start; a warning, that it would be slower, less safe, or fail
under some settings.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA = 1
"""Version of the JSON. A new name or field keeps it; a removed or changed one raises it."""


class Severity(StrEnum):
    """Weight of a finding."""

    OK = "ok"
    WARNING = "warning"
    """A run starts, but is slower, less safe, or fails under some settings."""
    ERROR = "error"
    """A run could not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one check."""

    name: str
    found: str
    severity: Severity = Severity.OK
    fix: str = ""
    """Command, docker flag or setting that solves the problem."""


def warning(name: str, found: str, *, fix: str) -> Finding:
    """A finding that does not stop a run."""
    return Finding(name=name, found=found, severity=Severity.WARNING, fix=fix)


def error(name: str, found: str, *, fix: str) -> Finding:
    """A finding with which a run could not start."""
    return Finding(name=name, found=found, severity=Severity.ERROR, fix=fix)


def docker(*flags: str) -> str:
    """The fix that restarts the container with flags."""
    return f"docker run {' '.join(flags)}"


def can_run(findings: Sequence[Finding]) -> bool:
    """True if a run could start."""
    return all(finding.severity is not Severity.ERROR for finding in findings)


def to_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """The findings for programs. docs/how-to/machine.md describes the fields."""
    return {
        "schema": SCHEMA,
        "ok": can_run(findings),
        "findings": [asdict(finding) for finding in findings],
    }


MARKS = {
    Severity.OK: Text("ok", style="green"),
    Severity.WARNING: Text("warn", style="yellow"),
    Severity.ERROR: Text("NO", style="bold red"),
}


def render(findings: Sequence[Finding]) -> Table:
    """One line per finding, with a mark and the fix."""
    table = Table("", "", "found", "fix", box=None, pad_edge=False)
    for finding in findings:
        cells = (Text(printable(text)) for text in (finding.name, finding.found, finding.fix))
        table.add_row(MARKS[finding.severity], *cells)
    return table


def summarize(findings: Sequence[Finding]) -> str:
    """The last line: numbers of errors and warnings, and what they mean."""
    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    warnings = sum(finding.severity is Severity.WARNING for finding in findings)
    counts = f"{_count(errors, 'error')}, {_count(warnings, 'warning')}"
    return f"{counts}: a run {'could not' if errors else 'can'} start on this machine"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
