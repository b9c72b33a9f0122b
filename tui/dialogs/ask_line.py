"""A dialog for one line of text: a rollout to show, a file to write."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType


class AskLine(ModalScreen[str | None]):
    """Returns the text; None for Escape and for an empty line."""

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
