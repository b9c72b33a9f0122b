"""Acknowledged rows: number of rows and highest ids that were committed, in a file beside run.db.

The writer counts the rows of each commit and writes the numbers, and the ids before the commit, to
the file `acknowledged`; it syncs them at each step end. So numbers never exceed what was committed,
and no id that anyone has seen is given out again. A run.db with fewer rows has lost its WAL, or is
an older copy (`runner.prepare` compares them).

    acknowledged    two slots of 256 bytes, written in turn: {"turns": 25, ...} and its CRC-32
"""

from __future__ import annotations

import json
import os
import sqlite3
import zlib
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


SLOT_BYTES = 256
"""Length of a slot, padded with spaces. If a power cut tears one, the other is whole."""
NUM_SLOTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """Rows that were committed at one moment, and ids used by then."""

    turns: int = 0
    """Number of rows."""
    samples: int = 0
    """Number of rows."""
    policies: int = 0
    """Number of rows."""
    group_id: int = -1
    """Highest id ever used, as the next two; -1 for none. Lost rows do not lower it."""
    sample_id: int = -1
    policy_version: int = -1


class _Slot(NamedTuple):
    number: int
    """Number of the write: the highest is the newest."""
    value: Acknowledged


def read_acknowledged(path: Path) -> Acknowledged:
    """The newest whole slot of the file; without one, nothing is acknowledged."""
    return _newest(path).value


class AcknowledgedFile:
    """The file, open for the writer of the run."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if it cannot be written."""
        self._number = _newest(path).number
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, value: Acknowledged) -> None:
        """Replaces the older slot. It survives the process at once, a power cut after `sync`."""
        self._number += 1
        body = json.dumps({"number": self._number, **asdict(value)})
        line = f"{body} {_checksum(body)}".ljust(SLOT_BYTES - 1) + "\n"
        os.pwrite(self._descriptor, line.encode(), self._number % NUM_SLOTS * SLOT_BYTES)

    def sync(self) -> None:
        """Returns when the last slot is on disk."""
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)


def _newest(path: Path) -> _Slot:
    content = path.read_bytes() if path.exists() else b""
    slots = [_parse(content[i * SLOT_BYTES : (i + 1) * SLOT_BYTES]) for i in range(NUM_SLOTS)]
    return max(slots, key=lambda slot: slot.number)


def _parse(slot: bytes) -> _Slot:
    """A slot; one without a number if it is absent or torn."""
    body, _, checksum = slot.decode(errors="replace").strip().rpartition(" ")
    if not body or checksum != _checksum(body):
        return _Slot(0, Acknowledged())
    values: dict[str, int] = json.loads(body)
    return _Slot(values.pop("number"), Acknowledged(**values))


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"


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
