"""Two runs side by side, like `forge compare`: opened from the Runs screen."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, ClassVar

from rich.console import Group
from rich.text import Text
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import Static

from forge.errors import ForgeError
from forge.store.reader import RunReader
from forge.tui.frame.asking import AskingScreen, following
from forge.views.compare import By, compare, render_comparison
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from forge.store.layout import RunPaths
    from forge.tui.frame.watched import Watched


class CompareScreen(AskingScreen[Group]):
    """The comparison. Queried once, then only by key: it is expensive and concerns two runs."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("b", "by", "Compare by"),
        Binding("r", "again", "Reload"),
        Binding("escape", "app.pop_screen", "Back"),
    ]

    def __init__(self, watched: Watched, a: RunPaths, b: RunPaths) -> None:
        super().__init__(watched)
        self._pair = a, b
        self._by = By.STEP
        self._is_asked = False

    def compose_body(self) -> ComposeResult:
        with VerticalScroll(id="page"):
            yield Static(self._heading("… reading both runs"), id="comparison", markup=False)

    def on_mount(self) -> None:
        self.query_one("#page").focus()

    def fetch(self) -> Group:
        a, b = self._pair
        try:
            with RunReader(a) as left, RunReader(b) as right:
                found = compare(left, right, by=self._by)
        except (ForgeError, sqlite3.Error, OSError, ValueError) as error:
            return Group(self._heading(f"✘ {error}"))
        return Group(self._heading(), render_comparison(found))

    def show(self, data: Group) -> None:
        self.query_one("#comparison", Static).update(data)

    def refresh_data(self) -> None:
        if not self._is_asked:
            self._is_asked = True
            super().refresh_data()

    def action_by(self) -> None:
        """Selects the next measure (steps, tokens, time) and compares again."""
        self._by = following(By, self._by)
        self.action_again()

    def action_again(self) -> None:
        """Reads both runs again."""
        self._is_asked = False
        self.refresh_data()

    def _heading(self, words: str = "") -> Text:
        a, b = self._pair
        line = f"{a.name} against {b.name}, at equal {self._by} {words}"
        return Text(printable(line), style="bold")
