"""Code to the clipboard, by OSC 52: the terminal takes it, also through SSH.

Pasted text is typed text: a kernel with control characters is copied with these made visible, so
that no paste runs a command or ends a bracketed paste.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from textual.app import App

MAX_COPIED = 74_994
"""Characters that xterm and tmux take at most (100,000 bytes of base64)."""


def copy_code(app: App[Any], code: str, name: str) -> None:
    """Copies and says so; says why where it does not."""
    if not code:
        app.notify(f"{printable(name)}: no code in it", severity="warning", markup=False)
        return
    if len(code.encode("utf-8", errors="replace")) > MAX_COPIED:
        words = f"{printable(name)}: {len(code)} characters; a terminal takes {MAX_COPIED}"
        app.notify(words, severity="error", markup=False)
        return
    harmless = printable(code)
    app.copy_to_clipboard(harmless)
    changed = "" if harmless == code else "; control characters were made visible"
    app.notify(f"{printable(name)}: copied{changed}", markup=False)
