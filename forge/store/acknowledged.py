"""Acknowledged rows stay: what was committed is counted beside run.db, and a run.db that lacks some
of it is noticed before a run goes on.

The writer counts commits and turns in the file `acknowledged`, and writes the highest ids there
before the commit; it syncs them at each step end. So the counts never exceed what was committed,
and no id that anyone has seen is given out again. run.db has the number of its commits too
(`runs.num_commits`): one with fewer has lost its WAL, or is an older copy (`runner.past` compares
them). A resume and `forge doctor RUN` also check pages and indexes (`reader.refuse_damage`).

    acknowledged    two slots of 256 bytes, written in turn: {"turns": 25, ...} and its CRC-32
"""

from __future__ import annotations

import json
import os
import sqlite3
import zlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

SLOT_BYTES = 256
"""Length of a slot, padded with spaces. If a power cut tears one, the other is whole."""
NUM_SLOTS = 2

_COUNTS = "SELECT num_commits, (SELECT coalesce(max(turn_row), 0) FROM turns) FROM runs"
_IDS = """
SELECT max((SELECT coalesce(max(group_id), -1) FROM turns),
    (SELECT coalesce(max(group_id), -1) FROM groups)),
    (SELECT coalesce(max(sample_id), -1) FROM samples),
    max((SELECT coalesce(max(max_version), -1) FROM turns WHERE turn_row > ?),
        (SELECT coalesce(max(version), -1) FROM policies))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    commits: int = 0
    turns: int = 0
    group_id: int = -1
    """Highest id ever used, as the next two; -1 for none. Lost rows do not lower it."""
    sample_id: int = -1
    policy_version: int = -1


def read_acknowledged(path: Path) -> Acknowledged:
    """The newest whole slot of the file; without one, nothing is acknowledged."""
    return _newest(path).value


class Acknowledger:
    """The file, open for the writer of a run, and the counts in it."""

    def __init__(self, run: sqlite3.Connection, path: Path) -> None:
        """The file is left as it is until the next commit. Raises OSError if it cannot be
        written."""
        self._run = run
        self._number, self._written = _newest(path)
        self._turns = 0
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def reserve(self) -> None:
        """Call before a commit, in its transaction, which this counts. From then on the ids of its
        rows are not given out again, whatever becomes of the rows: a reader may see them before
        `acknowledge`."""
        self._run.execute("UPDATE runs SET num_commits = num_commits + 1")
        used = self._written
        group_id, sample_id, version = self._run.execute(_IDS, (self._turns,)).fetchone()
        self._write(
            replace(
                used,
                group_id=max(used.group_id, group_id),
                sample_id=max(used.sample_id, sample_id),
                policy_version=max(used.policy_version, version),
            )
        )

    def acknowledge(self) -> None:
        """Call after the commit."""
        commits, self._turns = self._run.execute(_COUNTS).fetchone()
        self._write(replace(self._written, commits=commits, turns=self._turns))

    def sync(self) -> None:
        """Returns when what was acknowledged survives a power cut."""
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)

    def _write(self, value: Acknowledged) -> None:
        """Replaces the older slot. It survives the process at once, a power cut after `sync`."""
        if value == self._written:
            return
        self._number, self._written = self._number + 1, value
        body = json.dumps({"number": self._number, **asdict(value)})
        line = f"{body} {_checksum(body)}".ljust(SLOT_BYTES - 1) + "\n"
        os.pwrite(self._descriptor, line.encode(), self._number % NUM_SLOTS * SLOT_BYTES)


class _Slot(NamedTuple):
    number: int
    """Number of the write: the highest is the newest."""
    value: Acknowledged


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
