"""A damaged WAL is noticed by its frames, and repaired from pages that the database has."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from forge.store.durable import HEADER, count_unread_commits, restore_pages, wal_of

STEP = 24 + 4096


def number_of_rows(database: Path) -> int:
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        return connection.execute("SELECT count(*) FROM t").fetchone()[0]


def written(folder: Path, *, commits: int = 5, is_copied: bool = False) -> Path:
    """A database as a killed process leaves it: each commit of 40 rows is in its WAL."""
    made, killed = folder / "made.db", folder / "run.db"
    connection = sqlite3.connect(made, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT)")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for _ in range(commits):
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO t (b) VALUES (?)", [("x" * 500,)] * 40)
        connection.execute("COMMIT")
    if is_copied:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    shutil.copy(made, killed)
    shutil.copy(wal_of(made), wal_of(killed))
    connection.close()
    return killed


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)


def test_a_whole_wal_is_read_to_its_end(tmp_path: Path) -> None:
    database = written(tmp_path)
    assert count_unread_commits(database) == 0
    assert restore_pages(database) == 0
    assert number_of_rows(database) == 200


def test_without_a_wal_nothing_is_unread(tmp_path: Path) -> None:
    database = written(tmp_path)
    wal_of(database).write_bytes(b"")
    assert count_unread_commits(database) == 0
    wal_of(database).unlink()
    assert count_unread_commits(database) == 0


@pytest.mark.parametrize("within", [2000, 9, 2, 6], ids=["page", "salt", "number", "commit"])
def test_a_flipped_byte_loses_the_commits_behind_it(tmp_path: Path, within: int) -> None:
    database = written(tmp_path)
    frames = (wal_of(database).stat().st_size - HEADER.size) // STEP
    flip(wal_of(database), HEADER.size + frames // 2 * STEP + within)
    unread = count_unread_commits(database)
    assert 1 <= unread < 5
    assert restore_pages(database) == 0
    assert number_of_rows(database) in (200 - 40 * unread, 160 - 40 * unread)


def test_a_flipped_byte_in_the_only_commit_is_noticed(tmp_path: Path) -> None:
    database = written(tmp_path, commits=1)
    flip(wal_of(database), wal_of(database).stat().st_size // 2)
    assert count_unread_commits(database) == 1
    assert number_of_rows(database) == 0


def test_a_damaged_header_is_noticed(tmp_path: Path) -> None:
    database = written(tmp_path)
    flip(wal_of(database), 17)
    assert count_unread_commits(database) == 1


def test_a_page_that_the_database_has_is_written_again(tmp_path: Path) -> None:
    database = written(tmp_path, is_copied=True)
    whole = wal_of(database).read_bytes()
    frames = (len(whole) - HEADER.size) // STEP
    flip(wal_of(database), HEADER.size + (frames - 1) * STEP + 2000)
    assert count_unread_commits(database) == 1
    assert restore_pages(database) == 1
    assert wal_of(database).read_bytes() == whole
    assert number_of_rows(database) == 200


def test_a_commit_that_a_kill_cut_is_no_damage(tmp_path: Path) -> None:
    database = written(tmp_path)
    wal = wal_of(database)
    with wal.open("r+b") as file:
        file.truncate(wal.stat().st_size - STEP - 100)
    assert count_unread_commits(database) == 0
    assert number_of_rows(database) == 160


def test_frames_of_an_earlier_checkpoint_are_no_damage(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "made.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT)")
    for _ in range(5):
        connection.execute("INSERT INTO t (b) VALUES (?)", ("x" * 20_000,))
    connection.execute("PRAGMA wal_checkpoint(RESTART)")
    connection.execute("INSERT INTO t (b) VALUES ('y')")  # over the first frames
    assert count_unread_commits(tmp_path / "made.db") == 0
    connection.close()
