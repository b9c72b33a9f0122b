"""The Rollout screen: every key, every pane, both sizes, hostile texts."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from textual.pilot import Pilot
from textual.widgets import TabbedContent

from forge.records import Status
from forge.store.layout import RunPaths
from forge.tui.screens.rollout import PANES, RolloutScreen, answer_of
from tests.store.storefactory import attempt, edit, group, problem, timing, write_run
from tests.tui.watching import (
    LARGE,
    Keys,
    check_snapshot,
    press,
    settle,
    text_of,
    toast_text,
    try_keys,
    watching,
)

SOLVED = "g167.r7"
"""A rollout of the canned run with a wrong turn and a correct one."""


async def go(pilot: Pilot[None], place: str) -> None:
    await pilot.press("g", *place, "enter")
    await settle(pilot)


def head(pilot: Pilot[None]) -> str:
    return text_of(pilot).split("Answer")[0]


KEYS: Keys = {
    "G": (["G"], lambda text: "g376.r0.t0" in text or "sibling 1 of" in text),
    "g": (["g", *SOLVED, "enter"], lambda text: "g167.r7.t0 · turn 1 of 2" in text),
    "right": (["right"], lambda text: "g167.r7.t1 · turn 2 of 2" in text),
    "left": (["left"], lambda text: "g167.r7.t0 · turn 1 of 2" in text),
    "l": (["l"], lambda text: "g167.r7.t1 · turn 2 of 2" in text),
    "h": (["h"], lambda text: "g167.r7.t0 · turn 1 of 2" in text),
    "k": (["k"], lambda text: "g167.r6.t0" in text),
    "j": (["j"], lambda text: "g167.r7.t0" in text),
    "p": (["p"], lambda text: "g166.r0.t0" in text),
    "n": (["n"], lambda text: "g167.r0.t0" in text),
    "v": (["v"], lambda text: "judged in" in text),
    "s": (["s"], lambda text: ("advantage" in text and "r7.t0" in text) or "r1.t0" in text),
    "d": (["d"], lambda text: "the first turn has none before it" in text),
    "t": (["t"], lambda text: "<|im_start|>system" in text),
    "r": (["r"], lambda text: "class Model(" in text and "── prompt" not in text),
    "a": (["a"], lambda text: "── answer" in text),
    "slash": (["slash", *"NOT HERE", "enter"], lambda text: "Search in" not in text),
    "full_stop": (["full_stop"], lambda text: "── answer" in text),
    "z": (["z"], lambda text: "── answer" in text),
}


async def test_each_key_does_what_it_says(canned_run: RunPaths):
    async with watching(canned_run, keys=["3"]) as pilot:
        # the effects of these have tests of their own
        await try_keys(pilot, KEYS, known=("G", "slash", "full_stop", "z"))


async def test_a_search_marks_every_match_and_goes_from_one_to_the_next(canned_run: RunPaths):
    async with watching(canned_run, keys=["3"]) as pilot:
        await go(pilot, f"{SOLVED}.t1")
        await press(pilot, "slash", *"MODELNEW", "enter")
        assert "class ModelNew" in text_of(pilot)
        styles = [
            str(part.style)
            for strip in pilot.app.screen._compositor.render_strips()
            for part in strip
            if part.text == "ModelNew"
        ]
        assert styles
        assert all(" on " in style for style in styles)
        scroll = pilot.app.screen.query_one("#answer VerticalScroll")
        first = scroll.scroll_y
        await press(pilot, "slash", *["backspace"] * 8, *"import", "enter")
        assert scroll.scroll_y < first
        await press(pilot, "full_stop", "full_stop", "full_stop")  # three imports: the first again
        await press(pilot, "slash", *["backspace"] * 6, *"no such words", "enter")
        assert "no such words: not in this text" in toast_text(pilot)
        await press(pilot, "escape")
        screen = pilot.app.screen
        assert isinstance(screen, RolloutScreen)
        assert screen._words == ""


def test_long_thinking_is_folded_until_asked_for():
    thought = "".join(f"thought {n}\n" for n in range(40))
    completion = f"<think>{thought}</think>\nend"
    played = {"turn": 0, "num_prompt_tokens": 3, "is_truncated": 0, "completion": completion}
    found = SimpleNamespace(turns=(played,), thinking="think")
    console = Console(width=80)

    def lines(is_folded: bool) -> str:
        made = answer_of(found, played, is_folded=is_folded)  # pyright: ignore[reportArgumentType]
        drawn = console.render_lines(made, pad=False)
        return "\n".join("".join(part.text for part in line).rstrip() for line in drawn)

    assert "thought 39" in lines(False)
    assert "thought 39" not in lines(True)
    assert "more lines of thinking (z)" in lines(True)
    assert "end" in lines(True)


def test_every_key_is_tested():
    keys = {key for binding in RolloutScreen.BINDINGS for key in binding.key.split(",")}  # pyright: ignore[reportAttributeAccessIssue]
    assert keys == set(KEYS) | {"c", "escape"}
    assert {key for key, _ in PANES.values()} <= set(KEYS)


async def test_each_pane_matches_its_snapshot(canned_run: RunPaths):
    async with watching(canned_run, keys=["3"]) as pilot:
        await go(pilot, f"{SOLVED}.t1")
        for name, (key, _) in PANES.items():
            await press(pilot, key)
            assert pilot.app.screen.query_one(TabbedContent).active == name
            check_snapshot(pilot, f"rollout-{name}")


async def test_keys_faster_than_the_screen_end_at_the_last_pane(canned_run: RunPaths):
    async with watching(canned_run, keys=["3"]) as pilot:
        screen = pilot.app.screen
        assert isinstance(screen, RolloutScreen)
        for name in ("verdict", "siblings", "diff"):
            screen.action_pane(name)
        await settle(pilot)
        seen = set()
        for _ in range(5):
            await pilot.pause()
            seen.add(screen.query_one(TabbedContent).active)
        assert seen == {"diff"}


async def test_it_opens_at_the_latest_group_and_stays_there(canned_run: RunPaths):
    async with watching(canned_run, keys=["3"]) as pilot:
        before = head(pilot)
        edit(
            canned_run.run_db,
            "INSERT INTO turns (group_id, rollout, turn, recorded_at, num_prompt_tokens, "
            "num_completion_tokens, finish, min_version, max_version, reward_terms, "
            "generate_s, judge_s) VALUES (9999, 0, 0, 0, 1, 1, 'stop', 0, 0, '{}', 0, 0)",
        )
        screen = pilot.app.screen
        assert isinstance(screen, RolloutScreen)
        screen.ask_now()
        await settle(pilot)
        assert head(pilot) == before
        await press(pilot, "G")
        assert "g9999.r0.t0 · turn 1 of 1 · sibling 1 of 1" in text_of(pilot)
        assert "… not judged yet" in text_of(pilot)


async def test_an_unknown_rollout_is_a_one_line_error(canned_run: RunPaths):
    async with watching(canned_run, keys=["3"]) as pilot:
        before = head(pilot)
        await go(pilot, "x")
        await go(pilot, "[b]1")
        assert "x: not the name of a rollout" in toast_text(pilot)
        assert "[b]1: not the name of a rollout" in toast_text(pilot)
        assert head(pilot) == before
        await go(pilot, "999999")
        assert "no such group" in text_of(pilot)
        await press(pilot, "G")
        assert head(pilot) == before


async def test_the_code_is_copied(canned_run: RunPaths):
    async with watching(canned_run, keys=["3"]) as pilot:
        await go(pilot, f"{SOLVED}.t1")
        await press(pilot, "c")
        assert pilot.app.clipboard.startswith("import torch\nimport triton\n")
        assert toast_text(pilot) == "g167.r7.t1: copied"


async def test_escape_returns_to_the_opening_screen(canned_run: RunPaths):
    async with watching(canned_run, keys=["2", "enter", "enter"]) as pilot:
        assert isinstance(pilot.app.screen, RolloutScreen)
        await press(pilot, "escape")
        assert not isinstance(pilot.app.screen, RolloutScreen)
        await press(pilot, "3", "escape")
        assert isinstance(pilot.app.screen, RolloutScreen)


@pytest.mark.long
async def test_a_sibling_chosen_by_key_or_mouse_is_shown(canned_run: RunPaths):
    async with watching(canned_run, keys=["3"]) as pilot:
        await go(pilot, "g167")
        await press(pilot, "s", "down", "down", "enter")
        assert "g167.r2" in head(pilot)
        assert pilot.app.screen.query_one(TabbedContent).active == "answer"
        at = text_of(pilot).splitlines()[5].index("Siblings")
        await pilot.click(offset=(at, 5))
        await settle(pilot)
        assert pilot.app.screen.query_one(TabbedContent).active == "siblings"
        for _ in range(2):  # the first click moves the cursor there
            y = [line[:2] for line in text_of(pilot).splitlines()].index("r3")
            await pilot.click(offset=(2, y))
            await settle(pilot)
        assert "g167.r3" in head(pilot)


async def test_times_of_a_gpu_have_their_units(tmp_path: Path):
    played = group(0, [[Status.WRONG, Status.CORRECT]], speed=timing(2.5))
    await write_run(tmp_path / "toy-1", [attempt(), problem(), played])
    async with watching(RunPaths(tmp_path / "toy-1"), size=LARGE, keys=["3", "right"]) as pilot:
        text = text_of(pilot)
        assert "2.50x (at least 2.25x)" in head(pilot)
        assert "candidate    40 us ±1" in text
        assert "baseline     100 us ±1" in text


async def test_a_run_without_turns_says_so(tmp_path: Path):
    await write_run(tmp_path / "toy-1", [])
    async with watching(RunPaths(tmp_path / "toy-1"), keys=["3"]) as pilot:
        assert "no turn was played yet" in text_of(pilot)
        await pilot.press("n", "k", "right", "s", "d", "c", "G", "escape")
        await settle(pilot)
        assert isinstance(pilot.app.screen, RolloutScreen)
