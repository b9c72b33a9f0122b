"""The lines around every screen, and its colours: all screens with their keys; name and state of
the run, and a problem with it, if any; the keys at the bottom.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text
from textual.theme import Theme
from textual.widgets import Footer, Static

from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from textual.events import Resize
    from textual.screen import Screen

    from forge.tui.frame.watched import Watched

STATE_SIGNS = {
    "running": "▶", "done": "✔", "stopped": "■", "failed": "✘", "killed": "✘", "new": "…",
}  # fmt: skip

STATE_STYLES = {
    "running": "bold cyan", "done": "bold green", "stopped": "bold yellow", "failed": "bold red",
    "killed": "bold red",
}  # fmt: skip

ROOM_FOR_NAMES = 60
"""Minimum width for all titles; below it only the current screen has one."""


class NavLine(Static):
    """`1 Run 2 Problems ...`, the current one in reverse. Titles are ours: they may be markup."""

    def __init__(self, places: Mapping[str, tuple[str, str]], *, shown: str) -> None:
        """`places` maps each mode to (key, title)."""
        super().__init__()
        self._places, self._mode = places, shown

    def on_resize(self, event: Resize) -> None:
        is_roomy = event.size.width >= ROOM_FOR_NAMES
        parts = []
        for mode, (key, title) in self._places.items():
            is_shown = mode == self._mode
            words = f" {key} {title} " if is_roomy or is_shown else f" {key} "
            style = "reverse bold" if is_shown else ""
            parts.append(f"[{style} @click=app.go('{mode}')]{words}[/]")
        self.update("".join(parts))


class TopLine(Static):
    """`▶ quickstart-1 running · stage 4/5 grpo · step 3/20 · policy 4`, and a problem below."""

    DEFAULT_CSS = """
    TopLine { height: auto; max-height: 3; background: $panel; padding: 0 1; }
    """

    def __init__(self, watched: Watched) -> None:
        super().__init__(markup=False)
        self._watched = watched
        self._headline: Text | None = None

    def on_mount(self) -> None:
        self.update_line()

    def update_line(self) -> None:
        """Updates the line if it changed."""
        line = headline(self._watched)
        if line != self._headline:
            self._headline = line
            self.update(line)


def headline(watched: Watched) -> Text:
    """The line, with the problem below it, if any."""
    run = watched.run
    line = Text(printable(watched.paths.name), style="bold")
    if run is not None:
        sign = STATE_SIGNS.get(run.state, "?")
        style = STATE_STYLES.get(run.state, "not bold")
        line.append(f" {sign} {run.state}", style=style)
        words = [""]
        if run.stage is not None:
            words.append(f"stage {run.stage + 1}/{run.num_stages} {run.stage_kind}")
        if run.step is not None:
            words.append(f"step {run.step}/{run.num_steps or '?'}")
        if run.policy_version is not None:
            words.append(f"policy {run.policy_version}")
        line.append(" · ".join(words), style="not bold")
    if watched.problem is not None:
        line.append(f"\n✘ {printable(watched.problem)}", style="reverse")
    return line


Shown = list[tuple[str, str, str, bool]]


class KeyFooter(Footer):
    """A footer that is composed again only when its keys have changed.

    Textual's is composed again whenever the focus moves: a fifth of the time of a key press.
    """

    _shown: Shown | None = None

    def bindings_changed(self, screen: Screen[object]) -> None:
        """Compose again if a key, its description, its action or its state has changed."""
        if screen.app.app_focus:
            shown = [
                (binding.key, binding.description, binding.action, is_enabled)
                for _, binding, is_enabled, _ in screen.active_bindings.values()
                if binding.show
            ]
            if shown == self._shown:
                return
            self._shown = shown
        super().bindings_changed(screen)


FORGE = Theme(
    name="forge",
    primary="#4aa3ff",
    secondary="#39c5cf",
    accent="#f0883e",
    foreground="#e6edf3",
    background="#0c0c0c",
    surface="#12161c",
    panel="#1b2430",
    success="#3fb950",
    warning="#e3b341",
    error="#ff6b62",
    dark=True,
    variables={
        "block-cursor-text-style": "none",
        "footer-key-foreground": "#f0883e",
        "input-selection-background": "#4aa3ff 35%",
    },
)
