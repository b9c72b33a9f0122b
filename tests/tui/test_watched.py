"""Watching a run that another process owns: anything that happens to it is a line, never an
error.
"""

import re
import sqlite3
from collections.abc import Iterator

import pytest

from forge.store.layout import RunPaths
from forge.tui.frame.watched import Watched
from tests.tui.supervisors import supervising


@pytest.fixture
def watched(canned_run: RunPaths) -> Iterator[Watched]:
    watched = Watched(canned_run)
    yield watched
    watched.close()


def write_row(paths: RunPaths) -> None:
    with sqlite3.connect(paths.run_db) as connection:
        connection.execute(
            "INSERT INTO events (attempt, at, kind, message, data) VALUES (1, 2, 'x', 'y', '{}')"
        )
    connection.close()


def num_events(watched: Watched) -> int | None:
    return watched.ask(lambda reader: reader.value("SELECT count(*) FROM events"))


def test_a_run_is_changed_at_first_and_then_only_after_a_write(watched: Watched):
    assert watched.changed()
    assert not watched.changed()
    before = num_events(watched)
    write_row(watched.paths)
    assert watched.changed()
    assert num_events(watched) == (before or 0) + 1
    assert not watched.changed()
    assert watched.run.state == "done"


def test_a_supervisor_that_starts_or_ends_is_a_change(watched: Watched):
    assert watched.changed()
    assert watched.client() is None
    with supervising(watched.paths):
        assert watched.changed()
        assert watched.run.state == "running"
        assert watched.poll_live()
        assert [each.name for each in watched.run.live.components][:2] == ["supervisor", "trainer"]
    assert watched.changed()
    assert watched.poll_live(), "that it is gone is to be shown"
    assert watched.run.live is None
    assert not watched.poll_live()


def test_a_half_copied_run_is_reported_and_read_once_complete(canned_run: RunPaths):
    whole = canned_run.run_db.read_bytes()
    canned_run.run_db.write_bytes(whole[: len(whole) // 3])
    watched = Watched(canned_run)
    watched.changed()
    num_events(watched)
    assert watched.problem is not None
    assert re.search("damaged|malformed", watched.problem)
    assert "\n" not in watched.problem
    canned_run.run_db.with_name("spare").write_bytes(whole)
    canned_run.run_db.with_name("spare").replace(canned_run.run_db)
    assert watched.changed()
    assert watched.problem is None
    assert num_events(watched)
    watched.close()
