"""Support of the screen tests: an app on a run, its settled text, snapshots of it.

A snapshot is the screen as text, so that a change is readable as a diff. `FORGE_SNAPSHOTS=write
pytest tests/tui` rewrites them.
"""

import difflib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from textual._context import visible_screen_stack
from textual.pilot import Pilot

from forge.store.layout import RunPaths
from forge.tui.app import PLACES, WatchApp

NOW = 1_795_291_200.0
"""Some hours after the canned run ended."""
SMALL, LARGE = (80, 24), (200, 60)
MAX_LOOKS = 100
SNAPSHOTS = Path(__file__).with_name("snapshots")


@asynccontextmanager
async def watching(
    paths: RunPaths, *, size: tuple[int, int] = SMALL, keys: Sequence[str] = (), now: float = NOW
) -> AsyncIterator[Pilot[None]]:
    """The app on a run, settled after each of the keys.

    A leading number selects the first screen directly, since drawing the Run screen first would
    double a test's time. `test_each_number_shows_its_screen` covers the keys themselves.
    """
    app = WatchApp(paths, clock=lambda: now)
    modes = {key: mode for mode, (key, _, _) in PLACES.items()}
    if keys and keys[0] in modes:
        app.first_mode, keys = modes[keys[0]], keys[1:]
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        await press(pilot, *keys)
        yield pilot


async def press(pilot: Pilot[None], *keys: str) -> None:
    """Presses keys, each after the previous one took effect."""
    for key in keys:
        await pilot.press(key)
        await settle(pilot)


Keys = dict[str, tuple[list[str], Callable[[str], bool]]]
"""Key to the keys pressed, and a check of the terminal's text afterwards."""


async def try_keys(pilot: Pilot[None], tried: Keys, *, known: Sequence[str] = ()) -> None:
    """Fails if a check holds before its keys are pressed, except for the known ones, or does not
    hold afterwards."""
    for key, (keys, claim) in tried.items():
        assert key in known or not claim(text_of(pilot)), key
        await press(pilot, *keys)
        assert claim(text_of(pilot)), f"{key}:\n{text_of(pilot)}"


async def settle(pilot: Pilot[None]) -> None:
    """Waits until no query is running and every result is drawn.

    `pause` mistakes a process without CPU time for an idle one: on a busy machine a terminal has
    settled only if it was equal twice.
    """
    before = None
    for _ in range(MAX_LOOKS):
        await pilot.app.workers.wait_for_complete()
        await pilot._wait_for_screen()
        await pilot.pause()
        is_asking = any(not worker.is_finished for worker in pilot.app.workers)
        for asking in ("_is_asking", "_is_polling"):  # a result is a message, not handled yet
            is_asking |= any(getattr(one, asking, False) for one in (pilot.app, pilot.app.screen))
        text = text_of(pilot)
        if text == before and not is_asking:
            return
        before = text
    raise AssertionError(f"the terminal does not settle:\n{before}")


async def tick(pilot: Pilot[None]) -> None:
    """Lets the monitor look at its run, as it does every second."""
    pilot.app._tick()  # pyright: ignore[reportAttributeAccessIssue]
    await settle(pilot)


async def until(pilot: Pilot[None], condition: Callable[[], object]) -> None:
    """Settles until the condition holds; for effects that are not drawn."""
    for _ in range(MAX_LOOKS):
        if condition():
            return
        await settle(pilot)
    raise AssertionError(f"it does not come to hold:\n{text_of(pilot)}")


def toasts(pilot: Pilot[None]) -> list[tuple[str, str]]:
    """Title and text of notifications, which tests do not draw."""
    return [(each.title, each.message) for each in pilot.app._notifications]


def toast_text(pilot: Pilot[None]) -> str:
    """Texts of all notifications, one per line."""
    return "\n".join(words for _, words in toasts(pilot))


def text_of(pilot: Pilot[None]) -> str:
    """The terminal, one line each, without trailing blanks."""
    visible_screen_stack.set(pilot.app._background_screens)  # a dialog shows what is behind it
    strips = pilot.app.screen._compositor.render_strips()
    return "\n".join("".join(part.text for part in strip).rstrip() for strip in strips)


def unwrapped(pilot: Pilot[None]) -> str:
    """The terminal's words with single blanks between them."""
    return " ".join(text_of(pilot).split())


def check_snapshot(pilot: Pilot[None], name: str) -> None:
    """Fails if the terminal differs from `snapshots/<name>-<columns>x<rows>.txt`."""
    size = pilot.app.size
    path = SNAPSHOTS / f"{name}-{size.width}x{size.height}.txt"
    found = text_of(pilot) + "\n"
    if os.environ.get("FORGE_SNAPSHOTS") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8")
    assert path.is_file(), f"no {path.name}; FORGE_SNAPSHOTS=write pytest tests/tui makes it"
    kept = path.read_text(encoding="utf-8")
    both = kept.splitlines(), found.splitlines()
    assert found == kept, "\n".join(difflib.unified_diff(*both, path.name, "found", lineterm=""))
