"""The line of keys at the bottom of a screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.widgets import Footer

if TYPE_CHECKING:
    from textual.screen import Screen

Shown = list[tuple[str, str, str, bool]]


class KeyFooter(Footer):
    """A footer that is composed again only when its keys have changed.

    Textual's is composed again whenever the focus moves: a fifth of the time of a key press.
    """

    _shown: Shown | None = None

    def bindings_changed(self, screen: Screen[object]) -> None:
        """Compose again if a key, its description, its action or its state has changed."""
        if screen.app.app_focus:
            shown = [
                (binding.key, binding.description, binding.action, is_enabled)
                for _, binding, is_enabled, _ in screen.active_bindings.values()
                if binding.show
            ]
            if shown == self._shown:
                return
            self._shown = shown
        super().bindings_changed(screen)
