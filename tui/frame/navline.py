"""The first line of a screen: all screens with their keys, clickable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.widgets import Static

if TYPE_CHECKING:
    from collections.abc import Mapping

    from textual.events import Resize

ROOM_FOR_NAMES = 60
"""Minimum width for all titles; below it only the current screen has one."""


class NavLine(Static):
    """`1 Run 2 Problems ...`, the current one in reverse. Titles are ours: they may be markup."""

    def __init__(self, places: Mapping[str, tuple[str, str]], *, shown: str) -> None:
        """`places` maps each mode to (key, title)."""
        super().__init__()
        self._places, self._mode = places, shown

    def on_resize(self, event: Resize) -> None:
        is_roomy = event.size.width >= ROOM_FOR_NAMES
        parts = []
        for mode, (key, title) in self._places.items():
            is_shown = mode == self._mode
            words = f" {key} {title} " if is_roomy or is_shown else f" {key} "
            style = "reverse bold" if is_shown else ""
            parts.append(f"[{style} @click=app.go('{mode}')]{words}[/]")
        self.update("".join(parts))
