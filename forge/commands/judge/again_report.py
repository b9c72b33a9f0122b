"""Report of `forge judge --run`: what a pass over a run's answers changed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from forge.records import Status
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from forge.store.reader import RunReader

MAX_CHANGED = 40
"""Changed turns that are listed; --json has all."""
MAX_DETAIL = 80

_CHANGED = """
SELECT turn_id, problem_id, own_status, own_reason, status, reason, detail FROM v_judged_again
WHERE judging = ? AND is_changed ORDER BY group_id, rollout, turn
"""
_COUNTS = """
SELECT own_status, status, count(*) AS num_turns FROM v_judged_again WHERE judging = ?
GROUP BY own_status, status
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusCount:
    """Turns with one pair of statuses."""

    own_status: str
    """Status in the run."""
    status: str
    """Status now."""
    num_turns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainReport:
    """The result of a pass."""

    run: str
    judging: int
    protocol: str
    policy: str
    device: str
    counts: Sequence[StatusCount]
    changed: Sequence[dict[str, Any]]
    """Turns whose status changed, in order."""
    num_without_code: int
    """Turns without a candidate, which no pass judges."""
    num_failed: int
    """Candidates that the machine prevented from being judged."""

    @property
    def num_turns(self) -> int:
        """Turns with a verdict of this pass."""
        return sum(each.num_turns for each in self.counts)

    def to_json(self) -> dict[str, Any]:
        """The output of `--json`."""
        numbers = {"num_turns": self.num_turns, "num_changed": len(self.changed)}
        return {**asdict(self), **numbers}

    def render(self) -> RenderableType:
        """The table of statuses, and the changed turns."""
        head = (
            f"{self.run}: {self.num_turns} turns judged again (pass {self.judging}: protocol "
            f"{self.protocol}, policy {self.policy}, on {self.device}); {len(self.changed)} "
            f"changed; {self.num_without_code} without a candidate"
        )
        parts: list[RenderableType] = [Text(printable(head)), Text("")]
        if self.counts:
            parts += [self._matrix(), Text("")]
        if self.changed:
            parts.append(self._list())
        if len(self.changed) > MAX_CHANGED:
            more = len(self.changed) - MAX_CHANGED
            parts.append(Text(f"{more} more: --json, or forge sql {self.run} (v_judged_again)"))
        if self.num_failed:
            words = "the machine could not judge; the same command judges them"
            parts.append(Text(f"{self.num_failed} candidates that {words}", style="yellow"))
        return Group(*parts)

    def _matrix(self) -> Table:
        found = {(each.own_status, each.status): each.num_turns for each in self.counts}
        rows = _in_order({own for own, _ in found})
        columns = _in_order({now for _, now in found})
        table = Table("in the run \\ now", *columns, box=None, pad_edge=False)
        for column in table.columns[1:]:
            column.justify = "right"
        for own in rows:
            cells = [str(found.get((own, now), "")) for now in columns]
            table.add_row(own, *cells)
        return table

    def _list(self) -> Table:
        table = Table("turn", "problem", "in the run", "now", "", box=None, pad_edge=False)
        table.columns[-1].no_wrap = True
        for row in self.changed[:MAX_CHANGED]:
            cells = (
                row["turn_id"], row["problem_id"], f"{row['own_status']} ({row['own_reason']})",
                f"{row['status']} ({row['reason']})",
                " | ".join(row["detail"].split("\n"))[:MAX_DETAIL],
            )  # fmt: skip
            table.add_row(*(Text(printable(str(cell))) for cell in cells))
        return table


def read_report(reader: RunReader, judging: int, *, num_failed: int) -> AgainReport:
    """The report of a pass, from the store."""
    (about,) = reader.rows(
        "SELECT protocol, policy, device FROM judgings WHERE judging = ?", (judging,)
    )
    return AgainReport(
        run=reader.paths.name,
        judging=judging,
        **about,
        counts=[StatusCount(**row) for row in reader.rows(_COUNTS, (judging,))],
        changed=reader.rows(_CHANGED, (judging,)),
        num_without_code=reader.value("SELECT count(*) FROM turns WHERE code_id IS NULL"),
        num_failed=num_failed,
    )


def _in_order(names: set[str]) -> list[str]:
    """Statuses in the order of `Status`; those of another version last."""
    known = [str(status) for status in Status]
    return sorted(names, key=lambda name: (name not in known, [*known, name].index(name)))
