# pyright: strict
"""Number of rows and highest ids that the writer acknowledged, in a file beside run.db.

The writer replaces the numbers after each commit and the ids before it (`store.write`), and syncs
them at each step end: numbers never exceed what was committed, and no id that anyone has seen is
given out again. A run.db with fewer rows has lost its WAL, or is an older copy.

    acknowledged    two slots of 256 bytes, written in turn: {"turns": 25, ...} and its CRC-32
"""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import asdict, dataclass
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
