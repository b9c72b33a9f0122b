"""Dialogs and input: a yes-or-no question, since no single key acts on a run; a line of text; a
filter; the keys of the screen below; the command palette.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.binding import Binding
from textual.command import CommandList, CommandPalette
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, DataTable, Input, Static

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.app import ComposeResult
    from textual.binding import ActiveBinding, BindingType


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
    """A line that filters the screen's table, hidden until opened. The screen handles its changes;
    Enter returns to the table.
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
        """Hides the line, clears it and returns to the table."""
        self.value = ""
        self.remove_class("-shown")
        self.screen.query_one(DataTable).focus()

    def on_input_submitted(self) -> None:
        self.screen.query_one(DataTable).focus()


class Help(ModalScreen[None]):
    """The list of keys; any of the usual keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,enter", "dismiss", "Close"),
    ]
    DEFAULT_CSS = """
    Help { align: center middle; }
    Help > VerticalScroll {
        width: 64; max-width: 95%; height: auto; max-height: 90%; border: round $primary;
        padding: 0 1; background: $surface;
    }
    """

    def __init__(self, bindings: Iterable[ActiveBinding]) -> None:
        super().__init__()
        self._keys = list(bindings)

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(self._text())

    def _text(self) -> Text:
        keys: dict[str, list[str]] = {}
        for active in sorted(self._keys, key=_rank):
            if active.enabled and active.binding.description and not active.binding.system:
                shown = self.app.get_key_display(active.binding)
                keys.setdefault(active.binding.description, []).append(shown)
        text = Text("Keys on this screen (Escape closes)\n", style="bold")
        for description, names in keys.items():
            text.append(f"\n{' '.join(dict.fromkeys(names)):>14}  ", style="bold")
            text.append(description, style="not bold")
        text.append("\n\nThe mouse works: click a key, a row, a tab; the wheel scrolls.")
        text.append(
            "\nThe monitor only reads a run; S, C and E ask its supervisor, once confirmed."
        )
        return text


def _rank(active: ActiveBinding) -> int:
    """Order: keys of the footer, keys of every screen, keys that move."""
    if active.binding.show:
        return 0
    return 1 if active.node.is_attached and active.node is active.node.app else 2


class Palette(CommandPalette):
    """Works around two errors: Textual raises KeyError for a page key on a list without lines, and
    ValueError if a list has no width to wrap to (six columns are padding and scroll bar).
    """

    DEFAULT_CSS = "Palette CommandList { min-width: 10; }"

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disables the keys of a list that is not drawn."""
        return action != "command_list" or all(
            shown.scrollable_content_region for shown in self.query(CommandList)
        )
