"""Input from a person: a yes-or-no dialog, since no single key acts on a run; a line of text; a
filter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

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


class AskLine(ModalScreen[str | None]):
    """One line of text, such as a rollout to show; None for Escape and for an empty line."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Cancel")]
    DEFAULT_CSS = """
    AskLine { align: center middle; }
    AskLine > Vertical {
        width: 76; max-width: 95%; height: auto; border: round $primary; padding: 0 1;
        background: $surface;
    }
    """

    def __init__(self, question: str, *, value: str = "") -> None:
        super().__init__()
        self._question, self._value = question, value

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(self._question, markup=False)
            yield Input(self._value, select_on_focus=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip() or None)


class FilterLine(Input):
    """A line that filters a table, hidden until opened. The screen handles its changes; Enter
    returns to the table.
    """

    DEFAULT_CSS = """
    FilterLine { display: none; border: none; height: 1; padding: 0; }
    FilterLine.-shown { display: block; }
    """

    def open(self) -> None:
        """Shows the line and focuses it."""
        self.add_class("-shown")
        self.focus()

    def close(self) -> None:
        """Hides the line and clears it."""
        self.value = ""
        self.remove_class("-shown")
