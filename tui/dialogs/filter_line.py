"""A line of text that filters a table, hidden until opened."""

from __future__ import annotations

from textual.widgets import Input


class FilterLine(Input):
    """The screen handles its changes; Enter returns to the table."""

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
