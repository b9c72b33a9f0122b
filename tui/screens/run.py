"""The Run screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tui.screens.asking import AskingScreen

if TYPE_CHECKING:
    from forge.store.reader import RunReader


class RunScreen(AskingScreen[dict]):
    """Where the run stands."""

    def load(self, reader: RunReader) -> dict:
        return {}

    def show(self, data: dict) -> None:
        pass
