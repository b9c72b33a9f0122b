"""Copies code to the clipboard by OSC 52, which the terminal handles, also through SSH.

A paste acts like typing: control characters are copied in visible form, so that no paste runs a
command or ends a bracketed paste.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from textual.app import App

MAX_COPIED = 74_994
"""Maximum characters that xterm and tmux accept (100,000 bytes of base64)."""


def copy_code(app: App[Any], code: str, name: str) -> None:
    """Copies code and notifies; on failure notifies the reason."""
    if not code:
        app.notify(f"{printable(name)}: it has no code", severity="warning", markup=False)
        return
    if len(code.encode("utf-8", errors="replace")) > MAX_COPIED:
        words = f"{printable(name)}: {len(code)} characters; a terminal accepts {MAX_COPIED}"
        app.notify(words, severity="error", markup=False)
        return
    harmless = printable(code)
    app.copy_to_clipboard(harmless)
    changed = "" if harmless == code else "; control characters were made visible"
    app.notify(f"{printable(name)}: copied{changed}", markup=False)
