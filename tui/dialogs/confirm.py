"""A yes-or-no dialog: no single key acts on a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Static

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType


class Confirm(ModalScreen[bool]):
    """Returns True for yes; the focus is on no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape", "answer(False)", "No"),
        Binding("left,right", "app.focus_next", "Other button", show=False),
    ]
    DEFAULT_CSS = """
    Confirm { align: center middle; }
    Confirm > Vertical {
        width: 60; max-width: 95%; height: auto; border: round $primary; padding: 0 1;
        background: $surface;
    }
    Confirm Static { margin-bottom: 1; }
    Confirm Horizontal { height: auto; align-horizontal: right; }
    Confirm Button { margin-left: 1; min-width: 10; }
    """

    def __init__(self, question: str, words: str) -> None:
        super().__init__()
        self._question, self._words = question, words

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(f"{self._question}\n{self._words}", markup=False)
            with Horizontal():
                yield Button("Yes (y)", id="yes")
                yield Button("No (n)", id="no", variant="primary")

    def on_mount(self) -> None:
        self.query_one("#no").focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_answer(self, is_yes: bool) -> None:
        """Closes the dialog with the answer."""
        self.dismiss(is_yes)
