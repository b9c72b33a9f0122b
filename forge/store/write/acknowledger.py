# pyright: strict
"""Counts the rows that each commit added, for `store.acknowledged`: a few indexed queries. Used on
the writer's thread."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from forge.store.acknowledged import Acknowledged, AcknowledgedFile, read_acknowledged

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

_ADDED = """
SELECT (SELECT count(*) FROM turns WHERE turn_row > :turn_row),
    (SELECT count(*) FROM samples WHERE sample_id > :sample_id),
    (SELECT coalesce(max(turn_row), 0) FROM turns),
    (SELECT coalesce(max(sample_id), -1) FROM samples),
    (SELECT coalesce(max(group_id), -1) FROM turns),
    (SELECT coalesce(max(group_id), -1) FROM groups),
    (SELECT coalesce(max(max_version), -1) FROM turns WHERE turn_row > :turn_row),
    (SELECT coalesce(max(version), -1) FROM policies)
"""


class Acknowledger:
    """The acknowledged rows of one run, kept in their file."""

    def __init__(self, run: sqlite3.Connection, path: Path) -> None:
        """Counts the rows that are there; the highest ids are those of the file, if higher.

        Raises OSError if the file cannot be written.
        """
        self._run = run
        self._last = {"turn_row": 0, "sample_id": -1}
        self._written = read_acknowledged(path)
        self._value = self._count(replace(self._written, turns=0, samples=0))
        self._file = AcknowledgedFile(path)

    def acknowledge(self) -> None:
        """Call after a commit."""
        self._value = self._count(self._value)
        if self._value != self._written:
            self._file.write(self._value)
            self._written = self._value

    def sync(self) -> None:
        """Returns when what was acknowledged survives a power cut."""
        self._file.sync()

    def close(self) -> None:
        """Syncs and closes the file."""
        self._file.sync()
        self._file.close()

    def _count(self, old: Acknowledged) -> Acknowledged:
        """The old value and the rows added since it was counted."""
        row: tuple[int, ...] = self._run.execute(_ADDED, self._last).fetchone()
        turns, samples, turn_row, sample_id, *groups, sampled, published = row
        self._last = {"turn_row": turn_row, "sample_id": sample_id}
        return Acknowledged(
            turns=old.turns + turns,
            samples=old.samples + samples,
            group_id=max(old.group_id, *groups),
            sample_id=max(old.sample_id, sample_id),
            policy_version=max(old.policy_version, sampled, published),
        )
