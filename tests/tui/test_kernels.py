"""The Kernels screen: every key, both sizes, copies and files, hostile code."""

from dataclasses import replace
from pathlib import Path

import pytest
from textual.widgets import Input

from forge.records import Status
from forge.store.layout import RunPaths
from forge.tui.frame.asking import Confirm
from forge.tui.screens.kernels import KernelsScreen
from forge.tui.screens.rollout import RolloutScreen
from forge.tui.widgets.texts import MAX_COPIED, RowTable
from tests.store.storefactory import attempt, group, problem, timing, turn, with_turns, write_run
from tests.tui.hostile import assert_harmless, write_hostile_run
from tests.tui.watching import (
    LARGE,
    Keys,
    check_snapshot,
    press,
    text_of,
    toast_text,
    try_keys,
    watching,
)

BEST = "elementwise-residual-cos-elu-square-tanh"

KEYS: Keys = {
    "j": (["j", "j", "j"], lambda text: "class ModelNew(torch.nn.Module):" in text),
    "k": (["k", "k", "k"], lambda text: f"{BEST}\nfound by" in text),
    "slash": (["slash", *"softm", "enter"], lambda text: f"{BEST}" not in text),
    "escape": (["escape"], lambda text: f"{BEST}" in text),
    "enter": (["enter"], lambda text: "· turn " in text),
}


async def test_each_key_does_what_it_says(canned_run: RunPaths):
    async with watching(canned_run, keys=["4"]) as pilot:
        await try_keys(pilot, KEYS)


def test_every_key_is_tested():
    keys = {binding.key for binding in KernelsScreen.BINDINGS}  # pyright: ignore[reportAttributeAccessIssue]
    assert keys == set(KEYS) | {"c", "w"}


async def test_the_screen_matches_its_snapshot(canned_run: RunPaths):
    async with watching(canned_run, keys=["4"]) as pilot:
        check_snapshot(pilot, "kernels")


async def test_the_code_belongs_to_the_row_and_enter_opens_its_turn(canned_run: RunPaths):
    async with watching(canned_run, size=LARGE, keys=["4", "down", "down"]) as pilot:
        chosen = pilot.app.screen.query_one(RowTable).chosen
        assert f"found by quickstart-1, {chosen} (train), grpo-3 step" in text_of(pilot)
        await press(pilot, "c")
        copied = pilot.app.clipboard
        await press(pilot, "enter")
        assert isinstance(pilot.app.screen, RolloutScreen)
        assert f"{chosen} · turn" in text_of(pilot)
        await press(pilot, "c")
        assert pilot.app.clipboard == copied


async def test_a_kernel_is_saved_and_a_file_replaced_only_after_confirmation(
    canned_run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"{BEST}.py"
    async with watching(canned_run, keys=["4", "w"]) as pilot:
        assert pilot.app.screen.query_one(Input).value == path.name
        await press(pilot, "escape")
        assert not path.exists()
        await press(pilot, "w", "enter")
        assert "class ModelNew" in path.read_text()
        assert toast_text(pilot) == str(path)
        path.write_text("mine")
        for answer, left in (("n", "mine"), ("escape", "mine")):
            await press(pilot, "w", "enter")
            assert isinstance(pilot.app.screen, Confirm)
            await press(pilot, answer)
            assert path.read_text() == left
        await press(pilot, "w", "enter", "y")
        assert "class ModelNew" in path.read_text()
    assert {p.name for p in tmp_path.iterdir()} == {"runs", path.name}


async def test_times_speedup_and_number_of_measurements_are_shown(tmp_path: Path):
    best, again = (group(n, [[Status.CORRECT]], speed=timing(x)) for n, x in ((0, 2.5), (1, 2.0)))
    first = best.trajectories[0].turns[0]
    again = with_turns(again, lambda t: replace(t, code=first.code))
    records = [attempt(), problem(), best, again, turn(9, speed=timing(3.0))]
    await write_run(tmp_path / "toy-1", records)
    async with watching(RunPaths(tmp_path / "toy-1"), size=LARGE, keys=["4"]) as pilot:
        text = text_of(pilot)
        assert "speed-up 2.50x (at least 2.25x) · candidate 40 us ±1" in text
        assert "measured 2 times: 40 us to 50 us" in text
        assert "the same code was found 2 times" in text
        assert "3.00x" not in text, "of a turn without a group nobody knows the problem"


async def test_a_run_without_a_correct_kernel_says_so_and_its_keys_do_nothing(tmp_path: Path):
    records = [attempt(), problem(), group(0, [[Status.WRONG]])]
    await write_run(tmp_path / "toy-1", records)
    async with watching(RunPaths(tmp_path / "toy-1"), keys=["4"]) as pilot:
        assert "no correct kernel" in text_of(pilot)
        await press(pilot, "c", "w", "enter", "j")
        assert isinstance(pilot.app.screen, KernelsScreen)
        assert pilot.app.clipboard == ""


async def test_code_too_long_for_a_terminal_is_not_copied(tmp_path: Path):
    code = "# x\n" * (MAX_COPIED // 4 + 1)
    records = [attempt(), problem(), turn(1, code=code)]
    await write_run(tmp_path / "toy-1", records)
    async with watching(RunPaths(tmp_path / "toy-1"), keys=["3", "c"]) as pilot:
        assert f"{len(code)} characters; a terminal accepts {MAX_COPIED}" in toast_text(pilot)
        assert pilot.app.clipboard == ""


async def test_hostile_code_is_shown_and_copied_printable_but_saved_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    paths = await write_hostile_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    async with watching(paths, size=LARGE, keys=["4"]) as pilot:
        assert_harmless(pilot)
        assert "[bold red]loud[/]" in text_of(pilot)
        await press(pilot, "c")
        assert "\x1b" not in pilot.app.clipboard
        assert "␛[2J" in pilot.app.clipboard
        await press(pilot, "w")
        assert_harmless(pilot)
        assert "/" not in pilot.app.screen.query_one(Input).value
        await press(pilot, "enter")
        assert_harmless(pilot)
    saved = next(path for path in tmp_path.iterdir() if path.suffix == ".py")
    assert "\x1b[2J" in saved.read_text()
    assert all(c.isascii() and c.isprintable() for c in saved.name)
