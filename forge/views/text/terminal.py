"""Makes untrusted text safe to print on a terminal.

Every view that prints stored text calls `printable`: a completion may hold escape sequences that
move the cursor, set the title or write to the clipboard, and marks that reverse the order of
letters. Rich markup is never parsed: texts are wrapped in `rich.text.Text`.
"""

from __future__ import annotations

import io
import json
import os
import re
import unicodedata
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from typing import Any, TextIO

from forge.views.text.numbers import finite

_KEPT = "\n\t"
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")

_UNSAFE_IN_JSON = re.compile(f"[\x7f-\x9f\ud800-\udfff{''.join(sorted(_BIDI))}]")


def printable(text: str) -> str:
    """The text with control characters made visible: ESC as `␛`, C1 controls and direction marks as
    `\\x9b`, `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(character if _is_safe(character) else _visible(character) for character in text)


def printable_values(row: Mapping[str, Any]) -> dict[str, Any]:
    return {k: printable(v) if isinstance(v, str) else v for k, v in row.items()}


def json_text(value: Any) -> str:
    """JSON on one line, safe to print: control characters, direction marks and lone surrogates,
    which JSON allows, are escaped. A number that is not finite becomes null, a record an object."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=_plain, allow_nan=False)
    except ValueError:
        text = json.dumps(finite(value), ensure_ascii=False, default=_plain)
    return _UNSAFE_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _plain(value: Any) -> Any:
    is_record = is_dataclass(value) and not isinstance(value, type)
    return finite(asdict(value)) if is_record else str(value)


def _is_safe(character: str) -> bool:
    if character in _KEPT:
        return True
    return unicodedata.category(character) not in ("Cc", "Cs") and character not in _BIDI


def _visible(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def redirect_to_null(stream: TextIO) -> None:
    """Drops everything written to the stream from now on, Python's own flush at exit included."""
    with suppress(io.UnsupportedOperation):  # a stream without a descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, stream.fileno())
        finally:
            os.close(null)
