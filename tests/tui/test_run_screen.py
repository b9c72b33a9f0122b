"""The Run screen: a finished run from the store, a running one from its supervisor."""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING

import pytest
from textual.filter import Monochrome
from textual.widgets import Sparkline

from forge.store.ownership import open_run_lock, write_status
from forge.store.reader import open_run
from forge.views.run.monitor import Curve, Curves, load_processes
from tests.tui.supervisors import component, supervising
from tests.tui.watching import (
    LARGE,
    NOW,
    SMALL,
    check_snapshot,
    press,
    settle,
    text_of,
    watching,
)
from tui.widgets.processes import ProcessTable

if TYPE_CHECKING:
    from forge.store.layout import RunPaths

pytestmark = pytest.mark.anyio
NARROW = (40, 24)


@pytest.mark.parametrize("size", [SMALL, LARGE, NARROW])
async def test_a_finished_run(canned_run: RunPaths, size: tuple[int, int]):
    async with watching(canned_run, size=size) as pilot:
        check_snapshot(pilot, "run")


@pytest.mark.parametrize("size", [SMALL, LARGE, NARROW])
async def test_a_living_run(canned_run: RunPaths, size: tuple[int, int]):
    with supervising(canned_run):
        async with watching(canned_run, size=size) as pilot:
            check_snapshot(pilot, "run-live")


async def test_health_has_a_sign_a_word_and_a_reason(canned_run: RunPaths):
    with supervising(canned_run):
        async with watching(canned_run, size=LARGE) as pilot:
            text = text_of(pilot)
    assert "✘ bad judge-0 restarted 20 s ago" in text
    assert "▲ watch serve-0 memory 93 % of 80 GB" in text
    assert "● ok 2 of 4" in text


async def test_without_its_supervisor_the_run_is_shown_from_the_store(canned_run: RunPaths):
    async with watching(canned_run, size=LARGE) as pilot:
        with supervising(canned_run) as supervisor:
            pilot.app._tick()  # pyright: ignore[reportAttributeAccessIssue]
            await settle(pilot)
            assert "ETA 2m05" in text_of(pilot)
            supervisor.status["components"] = [component("judge-7", "judge")]
            pilot.app._tick()  # pyright: ignore[reportAttributeAccessIssue]
            await settle(pilot)
            assert "judge-7" in text_of(pilot)
        pilot.app._tick()  # pyright: ignore[reportAttributeAccessIssue]
        await settle(pilot)
        assert "no supervisor answers; the run is done" in text_of(pilot)
        assert "judge-7" not in text_of(pilot)


async def test_a_supervisor_of_another_version_that_reports_no_health(canned_run: RunPaths):
    with supervising(canned_run) as supervisor:
        supervisor.status |= {"components": [], "of a newer version": 1}
        async with watching(canned_run) as pilot:
            assert "its supervisor, of another version, does not report them" in text_of(pilot)
            assert "12/20 steps" in text_of(pilot)
            assert "judge-0" in text_of(pilot), "from the store"


async def test_a_run_that_ended_a_second_ago_has_no_rates(canned_run: RunPaths):
    for table in ("turns", "groups"):
        change(canned_run, f"UPDATE {table} SET recorded_at = {NOW - 1}")
    async with watching(canned_run, size=LARGE) as pilot:
        assert "the run is done" in text_of(pilot)
        for rate in ("rollouts/s", "tok/s", "judged/s", "turns/s"):
            assert f" {rate} " not in text_of(pilot).splitlines()[2], rate


async def test_without_a_supervisor_turns_are_counted_instead_of_verdicts(
    canned_run: RunPaths,
):
    change(canned_run, f"UPDATE turns SET recorded_at = {NOW - 10}")
    write_status(canned_run, {"pid": os.getpid()})
    with open_run_lock(canned_run):
        async with watching(canned_run, size=LARGE) as pilot:
            line = text_of(pilot).splitlines()[2]
            assert " turns/s " in line
            assert " judged/s " not in line


async def test_new_rows_are_shown(canned_run: RunPaths):
    async with watching(canned_run) as pilot:
        assert "0.987" not in text_of(pilot)
        change(
            canned_run,
            "UPDATE metrics SET value = 0.98712 WHERE key = 'train/entropy/mean' AND step = 20",
        )
        pilot.app._tick()  # pyright: ignore[reportAttributeAccessIssue]
        await settle(pilot)
        assert "entropy           0.987" in text_of(pilot)


async def test_the_output_of_a_process_is_made_printable(canned_run: RunPaths):
    with supervising(canned_run) as supervisor:
        words = "\x1b[31m[bold]red[/bold] \u202edrow"
        supervisor.status["components"] = [component("trainer", "trainer", last_words=words)]
        async with watching(canned_run, size=LARGE) as pilot:
            assert "␛[31m[bold]red[/bold] \\u202edrow" in text_of(pilot)


async def test_enter_on_a_process_opens_its_log(canned_run: RunPaths):
    async with watching(canned_run) as pilot:
        pilot.app.screen.query_one(ProcessTable).focus()
        await press(pilot, "down", "down", "enter")
        name = load_names(canned_run)[2]
        assert pilot.app.current_mode == "logs"
        assert pilot.app.screen._wanted.process == name  # pyright: ignore[reportAttributeAccessIssue]


async def test_a_resize_changes_columns_and_plots(canned_run: RunPaths):
    async with watching(canned_run) as pilot:
        assert "role" not in text_of(pilot)
        await pilot.resize_terminal(*LARGE)
        await settle(pilot)
        check_snapshot(pilot, "run")
        await pilot.resize_terminal(*SMALL)
        await settle(pilot)
        check_snapshot(pilot, "run")
        await pilot.resize_terminal(20, 5)
        await settle(pilot)


async def test_no_color_leaves_signs_and_words(canned_run: RunPaths, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    with supervising(canned_run):
        async with watching(canned_run) as pilot:
            assert any(isinstance(each, Monochrome) for each in pilot.app._filters)
            check_snapshot(pilot, "run-live")


async def test_a_killed_run_says_so(canned_run: RunPaths):
    change(canned_run, "UPDATE attempts SET ended_at = NULL, exit_code = NULL, reason = NULL")
    change(canned_run, "UPDATE processes SET ended_at = NULL, reason = NULL WHERE name = 'serve-0'")
    async with watching(canned_run, size=LARGE) as pilot:
        assert "✘ killed" in text_of(pilot)
        assert "killed with its supervisor" in text_of(pilot)


async def test_cards_of_an_ended_run_are_named_by_their_first_digits(canned_run: RunPaths):
    uuids = "GPU-f675208f-0970-5f17-a726-b6857f4618c3,GPU-0a1b2c3d-0970-5f17-a726-b6857f4618c3"
    change(canned_run, f"UPDATE processes SET devices = '{uuids}' WHERE name = 'trainer'")
    async with watching(canned_run, size=(160, 40)) as pilot:
        assert " GPU-f675208f,GPU-0a1b2c3d ended " in text_of(pilot)


async def test_an_empty_run_is_shown(canned_run: RunPaths):
    for table in ("metrics", "groups", "turns", "verdicts", "processes", "events", "evaluations"):
        change(canned_run, f"DELETE FROM {table}")
    async with watching(canned_run) as pilot:
        assert "nothing was trained yet" in text_of(pilot)
        assert "none yet" in text_of(pilot)
        assert not any(line.display for line in pilot.app.screen.query(Sparkline) if line.data)


def test_curves_query_only_the_last_steps_and_keep_the_others(canned_run: RunPaths):
    with open_run(canned_run) as reader:
        whole = Curves().read(reader)
        curves = Curves()
        assert curves.read(reader) == whole
        change(canned_run, "UPDATE metrics SET value = 7 WHERE key = 'train/entropy/mean'")
        entropy = {curve.name: curve for curve in curves.read(reader)}["entropy"]
    assert entropy.steps == {curve.name: curve for curve in whole}["entropy"].steps
    assert entropy.values[-1] == 7, "the last steps are asked again"
    assert entropy.values[0] != 7, "the first are not"


def test_a_thin_curve_has_the_means_of_neighbours():
    curve = Curve(name="x", steps=tuple(range(10)), values=tuple(map(float, range(10))))
    thin = curve.thin(3)
    assert thin.steps == (2, 5, 9)
    assert thin.values == (1.0, 4.0, 7.5)
    assert curve.thin(10) is curve


def test_a_trainer_of_the_next_stage_is_no_restart(canned_run: RunPaths):
    with open_run(canned_run) as reader:
        rows = {row["name"]: row for row in load_processes(reader)}
    assert rows["trainer"]["num_restarts"] == 0
    change(canned_run, "UPDATE processes SET reason = 'killed by signal 9' WHERE name = 'trainer'")
    with open_run(canned_run) as reader:
        rows = {row["name"]: row for row in load_processes(reader)}
    assert rows["trainer"]["num_restarts"] == 1


def change(paths: RunPaths, sql: str) -> None:
    with sqlite3.connect(paths.run_db) as connection:
        connection.execute(sql)
    connection.close()


def load_names(paths: RunPaths) -> list[str]:
    with open_run(paths) as reader:
        return [row["name"] for row in load_processes(reader)]
