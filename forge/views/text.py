# pyright: strict
"""Texts for people: numbers, text that is safe to print on a terminal, and secrets that are hidden.

Imports nothing of forge; used by every view, the monitor and the command line. A function of a
number that takes None writes a dash (NONE) unless its docstring says otherwise.

Every view that prints stored text calls `printable`: a completion may hold escape sequences that
move the cursor, set the title or write to the clipboard, and marks that reverse the order of
letters. Rich markup is never parsed: texts are wrapped in `rich.text.Text`.

Secrets of an experiment are hidden in reports, comparisons and sinks, which other people read: the
path of a webhook, the arguments of a notification command, and `env` values whose names look like
secrets.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from typing import Any, TextIO, TypeVar, cast

Row = TypeVar("Row")

NONE = "–"
UNKNOWN = "?"
"""Placeholder for a number that a plan cannot predict."""

BAR, GROUND = "█", "░"


def percent(value: float | None) -> str:
    """`12.5 %`, for 0.125."""
    return NONE if value is None else f"{100 * value:.1f} %"


def share(value: float | None) -> str:
    """`25%`, for 0.25: the short form of `percent`."""
    return NONE if value is None else f"{value:.0%}"


def bar(value: float, *, width: int) -> str:
    """A share as blocks: `███░░░░░`."""
    filled = round(min(max(value, 0.0), 1.0) * width)
    return BAR * filled + GROUND * (width - filled)


def digits(value: float | None) -> str:
    """Three significant digits: `0.251`, `3.12e+03`."""
    return NONE if value is None else f"{value:.3g}"


def number(value: float | None) -> str:
    """Three significant digits, thousands in full: `0.251`, `3120`."""
    return digits(value) if value is None or abs(value) < 1000 else f"{value:.0f}"


def grouped(value: float) -> str:
    """Three significant digits, whole numbers in full: `12`, `0.0312`, `3.21e-05`, `12,300`."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def factor(value: float | None) -> str:
    """A speed-up: `2.10x`."""
    return NONE if value is None else f"{value:.2f}x"


def at_least(value: float | None) -> str:
    """The lower bound of a speed-up: `≥1.98x`."""
    return NONE if value is None else f"≥{value:.2f}x"


def memory(num_bytes: int | None) -> str:
    """Bytes in binary units, short: `71G`, `850M`."""
    if num_bytes is None:
        return NONE
    gigabytes = num_bytes / 2**30
    return f"{gigabytes:.3g}G" if gigabytes >= 1 else f"{num_bytes / 2**20:.0f}M"


def gigabytes(num_bytes: float | None, *, places: int = 1) -> str:
    """Bytes in decimal units: `80.0 GB`."""
    return NONE if num_bytes is None else f"{num_bytes / 1e9:.{places}f} GB"


def size(num_bytes: int | None) -> str:
    """Bytes in decimal units: `1.2 GB`, `340 MB`; UNKNOWN for None."""
    if num_bytes is None:
        return UNKNOWN
    return gigabytes(num_bytes) if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"


def parameters(num: int) -> str:
    """The size of a model: `1.78 B`, `0.60 M`."""
    return f"{num / 1e9:.2f} B" if num >= 1e9 else f"{num / 1e6:.2f} M"


def count(num: int, noun: str) -> str:
    """`1 problem`, `2 problems`."""
    return f"{num} {noun}{'s' * (num != 1)}"


def launches(num: int) -> str:
    """`1 launch`, `2 launches`."""
    return f"{num} launch{'es' * (num != 1)}"


def duration(seconds: float | None) -> str:
    """Whole seconds in the largest two units: `8s`, `3m05`, `2h07`, `3d04h`."""
    if seconds is None:
        return NONE
    whole = max(int(seconds), 0)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def clock(seconds: float | None) -> str:
    """`6:23` or `1:06:23`, rounded down."""
    if seconds is None:
        return NONE
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def minutes(seconds: float | None) -> str:
    """`6:23`, also above an hour, `66:23`, rounded down; UNKNOWN for None."""
    return UNKNOWN if seconds is None else f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def when(at: float | None, *, missing: str = NONE) -> str:
    """Unix seconds as `2026-11-21 18:08`, in UTC."""
    return missing if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}"


def without_empty(
    head: Sequence[str], rows: Sequence[Sequence[Any]]
) -> tuple[tuple[str, ...], tuple[tuple[Any, ...], ...]]:
    """Head and rows without the columns that hold only dashes: times, if nothing was timed."""
    kept = [i for i in range(len(head)) if any(row[i] != NONE for row in rows)]
    return tuple(head[i] for i in kept), tuple(tuple(row[i] for i in kept) for row in rows)


def spread(rows: Sequence[Row], most: int) -> list[Row]:
    """At most `most` rows, spread evenly, including the first and the last."""
    num = min(most, len(rows))
    return [rows[round(i * (len(rows) - 1) / max(num - 1, 1))] for i in range(num)]


def finite(value: Any) -> Any:
    """The value with None for each number that is not finite, at any depth: JSON and charts have
    no place for one."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {key: finite(each) for key, each in items}
    if isinstance(value, list | tuple):
        return [finite(each) for each in cast("list[Any] | tuple[Any, ...]", value)]
    return value


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
    if is_dataclass(value) and not isinstance(value, type):
        return finite(asdict(value))
    return str(value)


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


HIDDEN = "…"
_WEBHOOK = re.compile(r"""(\bwebhook\s*=\s*["']+https?://)(?:[^/"']*@)?([^/?#"'\\]*).*$""")
_COMMAND = re.compile(r"""^(\W?\s*command\s*=\s*["']+)([\w./-]*).*$""")
_TABLE = re.compile(r"^\[+([^\]]+)\]+$")
_NAME = r"\w*(?:TOKEN|KEY|SECRET|PASS|CREDENTIAL|DSN|URL)\w*"
_SECRET = re.compile(rf'^("?{_NAME}"? = ).*$', flags=re.IGNORECASE)
_LITERAL = re.compile(
    rf"""^([+-]?\s*(?:export )?["']?{_NAME}["']?\s*[=:]\s*)(["']).*$""", flags=re.IGNORECASE
)
_KEY = re.compile(rf"notify\.(?:webhook|command)|.*\benv\.{_NAME}", flags=re.IGNORECASE)


def hide_secrets(experiment: str) -> str:
    """The resolved experiment, as `dump_experiment` writes it, with `…` for each secret."""
    lines, table = list[str](), ""
    for line in experiment.split("\n"):
        if found := _TABLE.match(line):
            table = found[1]
        hidden = _hide_in_line(line) if table == "notify" else line
        is_env = table.split(".")[-1] == "env"
        lines.append(_SECRET.sub(rf'\1"{HIDDEN}"', hidden) if is_env else hidden)
    return "\n".join(lines)


def hide_in_diff(diff: str) -> str:
    """A diff of any files with secrets hidden in every line that looks like an experiment's."""
    lines = (_hide_in_line(line) for line in diff.split("\n"))
    return "\n".join(_LITERAL.sub(rf"\1\2{HIDDEN}\2", line) for line in lines)


def is_secret(key: str) -> bool:
    """True if the value of a dotted key (`notify.webhook`) must not be shown."""
    return _KEY.fullmatch(key) is not None


def _hide_in_line(line: str) -> str:
    line = _WEBHOOK.sub(rf'\1\2/{HIDDEN}"', line)
    return _COMMAND.sub(rf'\1\2 {HIDDEN}"', line)
