"""The Problems screen and all attempts at a problem: every key, both sizes, hostile names."""

from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from forge.store.layout import RunPaths
from forge.tui.frame.asking import PacedScreen
from forge.tui.screens.problems import AttemptsScreen, ProblemsScreen
from forge.tui.widgets.texts import RowTable
from tests.store.storefactory import edit, write_run
from tests.tui.watching import (
    LARGE,
    SMALL,
    Keys,
    check_snapshot,
    press,
    settle,
    text_of,
    try_keys,
    watching,
)


def table(pilot: Pilot[None]) -> RowTable:
    return pilot.app.screen.query_one(RowTable)


def column(pilot: Pilot[None], key: str) -> list[str]:
    return [str(value).strip() for value in table(pilot).get_column(key)]


PROBLEMS_KEYS: Keys = {
    "o": (["o"], lambda text: "76 problems · by pass" in text),
    "r": (["r"], lambda text: "by pass, reversed" in text),
    "p": (["p"], lambda text: "60 problems · by pass" in text and "for train" in text),
    "u": (["u"], lambda text: "for train · never solved" in text),
    "slash": (["slash", *"norm-", "enter"], lambda text: "“norm-” · never solved" in text),
    "escape": (["escape"], lambda text: "76 problems · by pass, reversed · pass of" in text),
    "enter": (["end", "enter"], lambda text: "attempts · all · by latest" in text),
}
ATTEMPTS_KEYS: Keys = {
    "o": (["o"], lambda text: "by reward" in text),
    "f": (["f"], lambda text: "0 attempts · solved" in text),
    "r": (["r"], lambda text: "class Model(torch.nn.Module):" in text),
    "enter": (["r", "f", "down", "enter"], lambda text: "turn 1 of 3 · sibling 2 of 8" in text),
    "escape": (["escape", "escape"], lambda text: "76 problems" in text),
}


async def test_each_key_of_the_table_does_what_it_says(canned_run: RunPaths):
    async with watching(canned_run, keys=["2"]) as pilot:
        await try_keys(pilot, PROBLEMS_KEYS)


async def test_each_key_of_the_attempts_does_what_it_says(canned_run: RunPaths):
    async with watching(canned_run, keys=["2", "enter"]) as pilot:
        await try_keys(pilot, ATTEMPTS_KEYS)


@pytest.mark.parametrize(
    ("screen", "tried"), [(ProblemsScreen, PROBLEMS_KEYS), (AttemptsScreen, ATTEMPTS_KEYS)]
)
def test_every_key_is_tested(screen: type, tried: Keys):
    assert {binding.key for binding in screen.BINDINGS} == set(tried)


@pytest.mark.parametrize("size", [SMALL, (40, 24)])
async def test_the_table_matches_its_snapshot(canned_run: RunPaths, size: tuple[int, int]):
    async with watching(canned_run, size=size, keys=["2"]) as pilot:
        check_snapshot(pilot, "problems")


async def test_a_wide_terminal_has_more_columns(canned_run: RunPaths):
    async with watching(canned_run, size=LARGE, keys=["2"]) as pilot:
        heads = text_of(pilot).splitlines()[3]
        assert all(name in heads for name in ("family", "reward", "solved at", "played at"))


async def test_the_attempts_match_their_snapshot(canned_run: RunPaths):
    keys = ["2", "p", "p", "o", "enter"]
    async with watching(canned_run, keys=keys) as pilot:
        assert isinstance(pilot.app.screen, AttemptsScreen)
        check_snapshot(pilot, "attempts")


async def test_a_click_on_a_heading_sorts_and_a_second_one_reverses(canned_run: RunPaths):
    async with watching(canned_run, keys=["2"]) as pilot:
        at = text_of(pilot).splitlines()[3].index("tries")
        await pilot.click(RowTable, offset=(at, 0))
        await settle(pilot)
        assert "by attempts" in text_of(pilot)
        await pilot.click(RowTable, offset=(at + 1, 0))
        await settle(pilot)
        assert "by attempts, reversed" in text_of(pilot)


async def test_the_cursor_stays_on_its_problem_in_another_order(canned_run: RunPaths):
    async with watching(canned_run, keys=["2", "down", "down"]) as pilot:
        chosen = table(pilot).chosen
        await press(pilot, "o")
        assert table(pilot).chosen == chosen
        await press(pilot, "enter", "escape")
        assert table(pilot).chosen == chosen


async def test_letters_go_into_the_open_filter(canned_run: RunPaths):
    async with watching(canned_run, keys=["2"]) as pilot:
        await pilot.press("slash", *"sou1")
        await settle(pilot)
        assert pilot.app.screen.query_one(Input).value == "sou1"
        assert "none; Escape shows all" in text_of(pilot)
        await pilot.press(*["backspace"] * 4, *"softmax-", "enter")
        await settle(pilot)
        assert {name.split("-")[0] for name in column(pilot, "name")} == {"softmax"}
        assert table(pilot).has_focus


async def test_new_rows_are_shown_and_an_equal_query_is_not_repeated(
    canned_run: RunPaths, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("forge.tui.frame.asking.PACE", 0.0)
    asked = []
    answer = ProblemsScreen.answer
    monkeypatch.setattr(
        ProblemsScreen, "answer",
        lambda self, reader, question: asked.append(1) or answer(self, reader, question),
    )  # fmt: skip
    async with watching(canned_run, keys=["2"]) as pilot:
        screen = pilot.app.screen
        assert isinstance(screen, PacedScreen)
        screen.refresh_data()
        await settle(pilot)
        assert len(asked) == 1
        edit(canned_run.run_db, "UPDATE problems SET level = 77")
        screen.refresh_data()
        await settle(pilot)
        assert len(asked) == 2
        assert set(column(pilot, "level")) == {"77"}


async def test_a_run_without_a_problem_says_so(tmp_path: Path):
    await write_run(tmp_path / "toy-1", [])
    async with watching(RunPaths(tmp_path / "toy-1"), keys=["2"]) as pilot:
        assert "0 problems" in text_of(pilot)
        await press(pilot, "enter", "o", "r")
        assert isinstance(pilot.app.screen, ProblemsScreen)


async def test_only_the_first_of_many_attempts_are_listed(
    canned_run: RunPaths, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("forge.tui.screens.problems.MAX_ROWS", 3)
    async with watching(canned_run, keys=["2", "enter"]) as pilot:
        assert table(pilot).row_count == 3
        assert "8 attempts, 3 listed · all · by latest" in text_of(pilot)
        await press(pilot, "o")
        rewards = [float(reward) for reward in column(pilot, "reward")]
        assert rewards == sorted(rewards, reverse=True)
