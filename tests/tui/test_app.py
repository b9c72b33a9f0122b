"""The application: keys of every screen, palette, mouse, actions on a run."""

import re
import shutil
from pathlib import Path

import pytest

from forge.store.layout import RunPaths
from forge.tui.app import ACTIONS, PLACES, WatchApp
from forge.tui.frame.asking import Confirm, Help, Palette
from forge.tui.screens.run import RunScreen
from tests.tui.supervisors import supervising
from tests.tui.watching import (
    NOW,
    SMALL,
    check_snapshot,
    press,
    settle,
    text_of,
    tick,
    toasts,
    until,
    unwrapped,
    watching,
)


async def test_each_number_shows_its_screen(canned_run: RunPaths):
    async with watching(canned_run) as pilot:
        for mode, (key, _, _) in PLACES.items():
            await press(pilot, key)
            assert pilot.app.current_mode == mode
            assert not pilot.app.watched.problem  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.long
async def test_a_screen_keeps_its_position_while_another_is_shown(canned_run: RunPaths):
    async with watching(canned_run, keys=["5", "l", "1", "5"]) as pilot:
        assert "level INFO and above" in text_of(pilot)


async def test_help_names_the_keys_of_the_screen_and_opens_by_a_click(canned_run: RunPaths):
    async with watching(canned_run, keys=["5", "question_mark"]) as pilot:
        assert isinstance(pilot.app.screen, Help)
        check_snapshot(pilot, "help")
        await press(pilot, "question_mark")
        assert not isinstance(pilot.app.screen, Help)
        for words in ("?", "Help"):
            await pilot.click("KeyLine", offset=(text_of(pilot).split("\n")[-1].index(words), 0))
            await settle(pilot)
            assert isinstance(pilot.app.screen, Help)
            await press(pilot, "question_mark")


async def test_q_quits_with_0(canned_run: RunPaths):
    app = WatchApp(canned_run, clock=lambda: NOW)
    async with app.run_test() as pilot:
        await settle(pilot)
        await pilot.press("q")
    assert app.return_code == 0
    assert app.watched.reader is None, "the files are closed"


async def test_the_palette_finds_screens_and_actions(canned_run: RunPaths):
    async with watching(canned_run, keys=["ctrl+p"]) as pilot:
        await press(pilot, *"logs")
        await until(pilot, lambda: "Go to Logs" in text_of(pilot))  # it searches on its own
        await press(pilot, "down", "enter")
        await until(pilot, lambda: pilot.app.current_mode == "logs")
        titles = {command.title for command in pilot.app.get_system_commands(pilot.app.screen)}
        assert {title for _, title, _ in ACTIONS.values()} <= titles


@pytest.mark.long
@pytest.mark.parametrize("wanted", ["action_command_palette", "search_themes"])
async def test_the_palette_survives_any_key_in_a_tiny_terminal(canned_run: RunPaths, wanted: str):
    async with watching(canned_run) as pilot:
        getattr(pilot.app, wanted)()
        await press(pilot, "down")
        for size in ((80, 5), (80, 1), (1, 24), (7, 3), SMALL):
            await pilot.resize_terminal(*size)
            await pilot.press("pagedown", "pageup", "ctrl+end", "up", "ctrl+home", "down")
        await settle(pilot)
        assert isinstance(pilot.app.screen, Palette)


async def test_an_action_is_sent_only_after_confirmation(canned_run: RunPaths):
    with supervising(canned_run) as supervisor:
        async with watching(canned_run) as pilot:
            for no in ("n", "escape", "enter"):
                await press(pilot, "S")
                assert isinstance(pilot.app.screen, Confirm)
                await press(pilot, no)
                assert not isinstance(pilot.app.screen, Confirm)
            assert supervisor.asked == []
            for num, (key, path) in enumerate(
                {"S": "/stop", "C": "/save", "E": "/evaluate"}.items(), start=1
            ):
                await press(pilot, key, "y")
                await until(pilot, lambda num=num: len(toasts(pilot)) == num)
                assert supervisor.asked[-1] == path
                assert toasts(pilot)[-1][0] == "Requested", toasts(pilot)


async def test_ctrl_z_suspends_to_the_shell(canned_run: RunPaths, monkeypatch):
    suspended: list[bool] = []
    monkeypatch.setattr(WatchApp, "action_suspend_process", lambda _: suspended.append(True))
    async with watching(canned_run, keys=["ctrl+z"]):
        assert suspended == [True]


async def test_a_refusal_of_the_supervisor_is_shown_in_its_words(canned_run: RunPaths):
    with supervising(canned_run) as supervisor:
        supervisor.refuses["/save"] = "eval-0 trains nothing: there is no checkpoint to save"
        async with watching(canned_run, keys=["C", "y"]) as pilot:
            await until(pilot, lambda: toasts(pilot))
            assert toasts(pilot)[-1] == ("Failed", supervisor.refuses["/save"])


@pytest.mark.parametrize("key", ["S", "C", "E"])
async def test_a_run_that_has_ended_is_asked_nothing(canned_run: RunPaths, key: str):
    async with watching(canned_run, keys=[key]) as pilot:
        assert isinstance(pilot.app.screen, RunScreen), "no dialog opens"
        assert toasts(pilot) == [("Failed", "quickstart-1 is not running")]


async def test_a_run_deleted_while_watched_is_reported_on_every_screen(
    canned_run: RunPaths, tmp_path: Path
):
    async with watching(canned_run) as pilot:
        shutil.rmtree(canned_run.root)
        await tick(pilot)
        assert "deleted; showing the last data read" in unwrapped(pilot)
        assert "pass@1 54.7 %" in text_of(pilot), "what was read stays"
        for key, _, _ in PLACES.values():
            await press(pilot, key)
            assert "deleted" in text_of(pilot)


async def test_a_half_copied_run_opens_with_the_reason_and_is_read_once_complete(
    canned_run: RunPaths,
):
    whole = canned_run.run_db.read_bytes()
    canned_run.run_db.write_bytes(whole[:100_000])
    async with watching(canned_run) as pilot:
        assert re.search("damaged|malformed", unwrapped(pilot))
        canned_run.run_db.with_name("spare").write_bytes(whole)
        canned_run.run_db.with_name("spare").replace(canned_run.run_db)
        await tick(pilot)
        assert not re.search("damaged|malformed", unwrapped(pilot))
        assert "pass@1 54.7 %" in text_of(pilot)
