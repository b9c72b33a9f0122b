"""`?`, the keys of the screen below, and Textual's command palette for terminals of any size."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.binding import Binding
from textual.command import CommandList, CommandPalette
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.app import ComposeResult
    from textual.binding import ActiveBinding, BindingType


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
