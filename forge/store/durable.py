"""Committed rows stay readable: damage of a database and its WAL is noticed, and repaired.

A resume repairs the WAL before anything opens the database. SQLite ends its reading of a WAL at the
first frame whose checksum is wrong, and says nothing; what a process was killed in the middle of
looks the same. Two things tell damage from a kill. A commit after that frame was written in full,
and is lost. And if the page had been copied into the database before, its frame can be written
again: then nothing is lost, and SQLite does not copy older pages of the same WAL over newer ones.
Format: https://sqlite.org/fileformat2.html#the_write_ahead_log

A resume and `forge doctor RUN` also check the pages and indexes of a database. Readers do not
import this file, which needs numpy.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import struct
import threading
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

from forge.errors import ConfigError, MachineError
from forge.store.read_only import is_damage, open_read_only
from forge.store.schema.create import check_version

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from forge.store.layout import RunPaths


HEADER = struct.Struct(">8I")
"""Magic, version, page size, number of the checkpoint, two salts, two checksums."""
FRAME = struct.Struct(">6I")
"""Page, size of the database in pages if the frame ends a commit, two salts, two checksums."""
LITTLE_ENDIAN, BIG_ENDIAN = 0x377F0682, 0x377F0683
"""The magic says how checksums read their words."""
CHECKSUMMED = 8
"""Bytes of a frame's header that its checksum covers, before the page."""

Checksum: TypeAlias = tuple[int, int]
Words: TypeAlias = "NDArray[np.uint32]"


@dataclass(frozen=True, slots=True)
class _Frame:
    offset: int
    page: int
    is_commit: bool
    """False for frames of an earlier checkpoint, whose salts differ from the header's."""
    seed: Checksum
    """Stored checksum of the frame before it."""
    checksum: Checksum
    is_whole: bool = False
    """Its checksum is right."""


class _Wal:
    """The frames of a WAL file."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes() if path.exists() else b""
        self.frames: list[_Frame] = []
        self.is_headed = False
        if len(self.data) < HEADER.size + FRAME.size:
            return
        magic, _, self.page_bytes, _, *salts, one, two = HEADER.unpack_from(self.data)
        self.words = ">u4" if magic == BIG_ENDIAN else "<u4"
        head = self.data[: HEADER.size - CHECKSUMMED]
        is_known = magic in (LITTLE_ENDIAN, BIG_ENDIAN)
        self.is_headed = is_known and self.checksum(head, (0, 0)) == (one, two)
        if self.is_headed:
            self._read_frames(tuple(salts), seed=(one, two))

    def checksum(self, data: bytes, seed: Checksum) -> Checksum:
        """SQLite's checksum of whole words, from the one before."""
        import numpy as np  # not for readers, which check no frame

        return _wal_checksum(np.frombuffer(data, self.words).astype(np.uint32), seed)

    def page(self, frame: _Frame) -> bytes:
        """The page in a frame."""
        begin = frame.offset + FRAME.size
        return self.data[begin : begin + self.page_bytes]

    def fits(self, frame: _Frame, page: bytes) -> bool:
        """True if the frame was written with this page."""
        head = self.data[frame.offset : frame.offset + CHECKSUMMED]
        is_full = len(page) == self.page_bytes
        return is_full and self.checksum(head + page, frame.seed) == frame.checksum

    def unread(self) -> list[_Frame]:
        """The frames from the first damaged one to the last commit; none if no commit follows."""
        first = next((i for i, frame in enumerate(self.frames) if not frame.is_whole), None)
        rest = [] if first is None else self.frames[first:]
        ends = [i for i, frame in enumerate(rest) if frame.is_commit]
        return rest[: ends[-1] + 1] if ends else []

    def _read_frames(self, salts: tuple[int, ...], *, seed: Checksum) -> None:
        step = FRAME.size + self.page_bytes
        for offset in range(HEADER.size, len(self.data) - step + 1, step):
            page, size, *found, one, two = FRAME.unpack_from(self.data, offset)
            is_ours = tuple(found) == salts
            frame = _Frame(offset, page, is_ours and size != 0, seed, (one, two))
            if is_ours and self.fits(frame, self.page(frame)):
                frame = replace(frame, is_whole=True)
            self.frames.append(frame)
            seed = frame.checksum


def count_unread_commits(database: Path) -> int:
    """Number of commits in the WAL of a database that SQLite does not read, at least.

    A WAL whose header is damaged counts as one. Call while no process writes to the database.
    """
    wal = _Wal(wal_of(database))
    if wal.data and not wal.is_headed and len(wal.data) > HEADER.size + FRAME.size:
        return 1
    unread = wal.unread()
    return max(sum(frame.is_commit and frame.is_whole for frame in unread), 1 if unread else 0)


def restore_pages(database: Path) -> int:
    """Writes damaged pages of a WAL again, from the database; the number of pages.

    Does nothing unless all of them are there. Call before the database is opened. Raises OSError.
    """
    wal = _Wal(wal_of(database))
    damaged = [frame for frame in wal.unread() if not frame.is_whole]
    if not damaged or not database.exists():
        return 0
    with database.open("rb") as file:
        pages = [_read_page(file.fileno(), frame.page, wal.page_bytes) for frame in damaged]
    if not all(wal.fits(frame, page) for frame, page in zip(damaged, pages, strict=True)):
        return 0
    with wal_of(database).open("r+b") as file:
        for frame, page in zip(damaged, pages, strict=True):
            os.pwrite(file.fileno(), page, frame.offset + FRAME.size)
        os.fsync(file.fileno())
    return len(damaged)


def wal_of(database: Path) -> Path:
    """The WAL file of a database."""
    return database.with_name(f"{database.name}-wal")


def _read_page(descriptor: int, number: int, num_bytes: int) -> bytes:
    return os.pread(descriptor, num_bytes, (number - 1) * num_bytes) if number else b""


def _wal_checksum(words: Words, seed: Checksum) -> Checksum:
    """SQLite's checksum, a linear map of seed and words: `a += word + b; b += word + a` in turn."""
    by_seed, by_word = _weights(len(words) // 2)
    one, two = (int((words * weights).sum(dtype="uint32")) for weights in by_word)
    (p, q), (r, s) = by_seed
    return (one + p * seed[0] + q * seed[1]) % 2**32, (two + r * seed[0] + s * seed[1]) % 2**32


@cache
def _weights(num_pairs: int) -> tuple[tuple[Checksum, Checksum], tuple[Words, Words]]:
    """Weights of the seed and of each word in the two numbers of a checksum, modulo 2**32."""
    import numpy as np

    p, q, r, s = 1, 0, 0, 1  # the map of the pairs that follow
    one: list[int] = []
    two: list[int] = []
    for _ in range(num_pairs):  # from the last pair; a pair adds (x, x + y) to (a + b, a + 2 b)
        one[:0] = ((p + q) % 2**32, q)
        two[:0] = ((r + s) % 2**32, s)
        p, q, r, s = (v % 2**32 for v in (p + q, p + 2 * q, r + s, r + 2 * s))
    return ((p, q), (r, s)), (np.array(one, np.uint32), np.array(two, np.uint32))


logger = logging.getLogger(__name__)

MAX_FAULTS = 5
"""Maximum number of faults that are listed."""
QUICK_S = 3.0
"""Maximum delay of a resume; 2 GB of a database are read in that time."""


def find_faults(path: Path) -> list[str]:
    """The first faults of a database: `PRAGMA integrity_check` and `foreign_key_check`."""
    try:
        with closing(open_read_only(path)[0]) as connection:
            found = _check(connection, "integrity_check")
            broken = connection.execute("PRAGMA foreign_key_check").fetchmany(MAX_FAULTS)
            return found + [f"{table} row {row}: refers to nothing" for table, row, *_ in broken]
    except sqlite3.DatabaseError as error:
        if is_damage(error):
            return [str(error)]
        raise


def restore_wals(paths: RunPaths) -> None:
    """Repairs damaged WALs from pages that their databases have, before anything opens these."""
    for database in (paths.run_db, paths.tokens_db):
        if number := restore_pages(database):
            logger.warning(
                "%s-wal: damaged pages, written again from %s: %d; no row is lost",
                database, database.name, number,
            )  # fmt: skip


def refuse_damage(paths: RunPaths) -> None:
    """Looks for damage in run.db for at most QUICK_S.

    Raises:
        ConfigError: run.db is absent or has another schema.
        MachineError: it is damaged.
    """
    if not paths.run_db.exists():
        raise ConfigError(f"{paths.root}: no run.db in it, so nothing was recorded")
    connection, _ = open_read_only(paths.run_db)
    timer = threading.Timer(QUICK_S, connection.interrupt)
    with closing(connection):
        timer.start()
        try:
            check_version(connection, path=paths.run_db)
            faults = _check(connection, "quick_check")
        except sqlite3.DatabaseError as error:
            if not is_damage(error):  # interrupted: found none in time
                return
            faults = [str(error)]
        finally:
            timer.cancel()
            timer.join()
    if faults:
        raise MachineError(
            f"{paths.run_db}: damaged: {faults[0]}; put a copy of it there, without a run.db-wal: "
            f'"forge resume {paths.name}" says what the copy lacks. "forge doctor {paths.name}" '
            "lists the damage"
        )


def _check(connection: sqlite3.Connection, name: str) -> list[str]:
    rows = connection.execute(f"PRAGMA {name}({MAX_FAULTS})").fetchall()
    lines = [line for (text,) in rows for line in str(text).splitlines()]
    return [line for line in lines if line != "ok" and not line.startswith("*** in database")]
