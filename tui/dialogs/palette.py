"""The command palette: Textual's, in a terminal of any size."""

from __future__ import annotations

from textual.command import CommandList, CommandPalette


class Palette(CommandPalette):
    """Textual raises KeyError on a page of a list without a line, and ValueError where it wraps to
    no width: six columns are the padding and the scroll bar."""

    DEFAULT_CSS = "Palette CommandList { min-width: 10; }"

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The keys of a list that is not drawn do nothing."""
        return action != "command_list" or all(
            shown.scrollable_content_region for shown in self.query(CommandList)
        )
