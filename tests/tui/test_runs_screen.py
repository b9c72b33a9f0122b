"""The Runs screen: all runs of a store directory, opening one, comparing two."""

import os
import shutil
import sqlite3
from contextlib import closing

import pytest
from textual.pilot import Pilot

from forge.store.layout import RunPaths
from tests.tui.watching import check_snapshot, press, settle, text_of, unwrapped, watching


@pytest.fixture
def runs(canned_run: RunPaths) -> RunPaths:
    """The canned run, a copy of it, and one that cannot be read."""
    store = canned_run.root.parent
    shutil.copytree(canned_run.root, store / "other-2", symlinks=True)
    (store / "broken-3").mkdir()
    (store / "broken-3" / "run.db").write_bytes(b"no database" * 1000)
    return canned_run


def looked_at(pilot: Pilot[None]) -> str:
    return pilot.app.watched.paths.name  # pyright: ignore[reportAttributeAccessIssue]


async def go_to(pilot: Pilot[None], name: str) -> None:
    """Moves the cursor to a run."""
    from forge.tui.widgets.texts import RowTable

    pilot.app.screen.query_one(RowTable).choose(name)
    await settle(pilot)


async def test_every_run_is_listed_including_an_unreadable_one(runs: RunPaths):
    for began, paths in enumerate(sorted(runs.root.parent.iterdir())):
        (paths / "experiment.toml").touch()
        os.utime(paths / "experiment.toml", (began, began))  # the order of the list
    async with watching(runs, keys=["6"]) as pilot:
        check_snapshot(pilot, "runs")


async def test_enter_opens_another_run_at_its_run_screen(runs: RunPaths):
    async with watching(runs, keys=["5", "6"]) as pilot:
        await go_to(pilot, "other-2")
        await press(pilot, "enter")
        assert looked_at(pilot) == "other-2"
        assert pilot.app.current_mode == "run"
        assert "other-2 ✔ done" in text_of(pilot)
        await press(pilot, "6")
        await go_to(pilot, "quickstart-1")
        await press(pilot, "enter")
        assert looked_at(pilot) == "quickstart-1"


async def test_runs_are_filtered_by_name_and_state(runs: RunPaths):
    async with watching(runs, keys=["6"]) as pilot:
        await press(pilot, "slash", *"OTHER", "enter")
        assert "other-2" in text_of(pilot)
        assert "broken-3" not in text_of(pilot)
        await press(pilot, "escape", "slash", *"unread", "enter")
        assert "broken-3" in text_of(pilot)
        assert "other-2" not in text_of(pilot)
        await press(pilot, "escape")
        assert "other-2" in text_of(pilot)


async def test_two_runs_are_compared_by_space_and_c(runs: RunPaths):
    async with watching(runs, keys=["6"]) as pilot:
        await go_to(pilot, "other-2")
        await press(pilot, "space")
        await go_to(pilot, "quickstart-1")
        await press(pilot, "c")
        text = text_of(pilot)
        assert "other-2 against quickstart-1, at equal step" in text
        assert "0 won, 0 lost" in " ".join(text.split())
        await press(pilot, "b")
        assert "at equal tokens" in text_of(pilot)
        await press(pilot, "r")
        assert "at equal tokens" in text_of(pilot)
        await press(pilot, "escape")
        assert "Enter opens a run" in text_of(pilot)


async def test_a_comparison_matches_its_snapshot(runs: RunPaths):
    with closing(sqlite3.connect(runs.root.with_name("other-2") / "run.db")) as connection:
        connection.executescript(
            "UPDATE runs SET experiment = replace(experiment, 'group_size = 8', 'group_size = 4');"
            "UPDATE verdicts SET status = 'wrong' WHERE group_id % 3 = 0;"
            "UPDATE verdicts SET status = 'correct' WHERE group_id % 3 = 1 AND rollout = 2;"
        )
    async with watching(runs, keys=["6"]) as pilot:
        await go_to(pilot, "other-2")
        await press(pilot, "c")
        check_snapshot(pilot, "compare")


async def test_a_run_that_cannot_be_compared_is_reported(runs: RunPaths):
    async with watching(runs, keys=["6"]) as pilot:
        await go_to(pilot, "broken-3")
        await press(pilot, "c")
        assert "not a database" in unwrapped(pilot)
