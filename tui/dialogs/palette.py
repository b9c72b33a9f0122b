"""Textual's command palette, for terminals of any size."""

from __future__ import annotations

from textual.command import CommandList, CommandPalette


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
