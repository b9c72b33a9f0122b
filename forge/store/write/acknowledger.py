# pyright: strict
"""Counts the rows that each commit added, for `store.acknowledged`: a few indexed queries. Used on
the writer's thread."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from forge.store.acknowledged import Acknowledged, AcknowledgedFile, read_acknowledged

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

_ADDED = """
SELECT (SELECT count(*) FROM turns WHERE turn_row > :turn_row),
    (SELECT count(*) FROM samples WHERE sample_id > :sample_id),
    (SELECT count(*) FROM policies WHERE version > :version),
    (SELECT coalesce(max(turn_row), 0) FROM turns),
    (SELECT coalesce(max(sample_id), -1) FROM samples),
    (SELECT coalesce(max(group_id), -1) FROM turns),
    (SELECT coalesce(max(group_id), -1) FROM groups),
    (SELECT coalesce(max(max_version), -1) FROM turns WHERE turn_row > :turn_row),
    (SELECT coalesce(max(version), -1) FROM policies)
"""


class _Counted(NamedTuple):
    value: Acknowledged
    last: dict[str, int]
    """The highest ids, behind which the next count begins."""


class Acknowledger:
    """The acknowledged rows of one run, kept in their file."""

    def __init__(self, run: sqlite3.Connection, path: Path) -> None:
        """Counts the rows that are there; the highest ids are those of the file, if higher.

        Raises OSError if the file cannot be written.
        """
        self._run = run
        self._last = {"turn_row": 0, "sample_id": -1, "version": -1}
        self._written = read_acknowledged(path)
        self._counted = self._count(replace(self._written, turns=0, samples=0, policies=0))
        self._value, self._last = self._counted.value, self._counted.last
        self._file = AcknowledgedFile(path)

    def reserve(self) -> None:
        """Call before a commit. From then on the ids of its rows are not given out again, whatever
        becomes of the rows: a reader may see them before `acknowledge`."""
        self._counted = self._count(self._value)
        old = self._value
        numbers = {"turns": old.turns, "samples": old.samples, "policies": old.policies}
        self._write(replace(self._counted.value, **numbers))

    def acknowledge(self) -> None:
        """Call after the commit."""
        self._value, self._last = self._counted.value, self._counted.last
        self._write(self._value)

    def sync(self) -> None:
        """Returns when what was acknowledged survives a power cut."""
        self._file.sync()

    def close(self) -> None:
        """Syncs and closes the file."""
        self._file.sync()
        self._file.close()

    def _write(self, value: Acknowledged) -> None:
        if value != self._written:
            self._file.write(value)
            self._written = value

    def _count(self, old: Acknowledged) -> _Counted:
        """The old value and the rows added since it was counted, also in an open transaction. Ids
        of a transaction that was rolled back stay used."""
        used = self._written
        row: tuple[int, ...] = self._run.execute(_ADDED, self._last).fetchone()
        turns, samples, policies, turn_row, sample_id, *groups, sampled, published = row
        value = Acknowledged(
            turns=old.turns + turns,
            samples=old.samples + samples,
            policies=old.policies + policies,
            group_id=max(used.group_id, *groups),
            sample_id=max(used.sample_id, sample_id),
            policy_version=max(used.policy_version, sampled, published),
        )
        last = {"turn_row": turn_row, "sample_id": sample_id, "version": published}
        return _Counted(value, last)
