"""A line that a table is filtered by: hidden until it is asked for."""

from __future__ import annotations

from textual.widgets import Input


class FilterLine(Input):
    """Its changes are the screen's to answer; Enter goes back to the table."""

    DEFAULT_CSS = """
    FilterLine { display: none; border: none; height: 1; padding: 0; }
    FilterLine.-shown { display: block; }
    """

    def open(self) -> None:
        """Shows it, for keys to go there."""
        self.add_class("-shown")
        self.focus()

    def close(self) -> None:
        """Hides it, empty."""
        self.value = ""
        self.remove_class("-shown")
