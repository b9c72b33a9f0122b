"""Files of rows: JSON, JSON lines or Parquet, one row at a time, and the fields of a row.

`forge/data/build/` and the readers of runs share this. JSON lines and Parquet are streamed; the
text of a JSON list is held in memory, its elements one at a time.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.errors import ConfigError, MachineError, pip_install

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

SUFFIXES = (".json", ".jsonl", ".parquet")
UNREAD = (".gz", ".zst", ".xz", ".bz2", ".zip", ".csv", ".tsv", ".arrow", ".feather")
"""Suffixes of files that hold rows, too: a directory with one is refused, not half read."""
KEY = "data.path"
"""Key that messages name."""
DROPPED = "dropped.jsonl"
"""A build's list of the rows that it left out, in the directory of its output."""
MARK = b"\xef\xbb\xbf"
"""Byte order mark that some editors write first."""
OBJECTS = "a JSON list of objects, or an object a line"
BATCH_ROWS = 64
"""Rows of a Parquet file that are in memory at once: about 50 MB with 200k tokens each."""
MAX_NAMES = 12
"""Columns that a message names."""


class BadRow(ValueError):
    """A row that does not match the format; the message says what was found and what is allowed."""


class Unfit(ValueError):
    """A row that matches the format but must not be trained on; the message is the reason, by which
    such rows are counted."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    reason: str
    detail: str = ""


Row = Mapping[str, Any] | Broken


@dataclass(slots=True)
class LeftOut:
    """Rows that are left out: their number by reason, and the place of the first."""

    counts: Counter[str] = field(default_factory=Counter[str])
    first: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, reason: str, place: str) -> None:
        self.counts[reason] += 1
        self.first.setdefault(reason, place)

    def __str__(self) -> str:
        words = (
            f"{num} {why} (first: {self.first[why]})" for why, num in self.counts.most_common()
        )
        return ", ".join(words) or "none"


def text_of(row: Mapping[str, Any], name: str) -> str:
    """A text field of a row. Raises BadRow if it is missing or no text."""
    found = row.get(name)
    if not isinstance(found, str):
        raise BadRow(f"{name}: found {kind_of(found)}; a text (columns here: {columns_of(row)})")
    return found


def code_of(row: Mapping[str, Any], name: str) -> str:
    """A field with source code, with Unix line ends. Raises BadRow as `text_of`, and Unfit if it is
    empty."""
    code = text_of(row, name).replace("\r\n", "\n")
    if not code.strip():
        raise Unfit(f"without code in {name}")
    return code


def columns_of(row: Mapping[str, Any]) -> str:
    """The names of a row's first columns that are not null, for a message."""
    filled = [name for name, value in row.items() if value is not None]
    names = [short(name) for name in filled[:MAX_NAMES]]
    more = ", …" if len(filled) > MAX_NAMES else ""
    return f"{', '.join(names) or 'none'}{more}"


def kind_of(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__


def short(value: Any) -> str:
    """A value in at most 40 characters of one line; the kind of one that is not plain."""
    text = str(value)[:200] if isinstance(value, str | int | float) else kind_of(value)
    shown = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(shown.split())[:40]


def is_unicode(text: str) -> bool:
    """False for a text with half of a surrogate pair, which JSON allows and no file can store."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def row_files(path: Path, *, key: str = KEY) -> list[Path]:
    """A file of rows, or all below a directory; of a build's directory, which has rows apart or a
    list of those left out, the rows to train on. Raises ConfigError, which names `key`."""
    is_made = (path / DROPPED).is_file() or any(path.glob("heldout.*"))
    if is_made and (trained := sorted(path.glob("train.*"))):
        return trained[:1]
    if path.is_dir():
        files = sorted(path.rglob("*"))
        found = [file for file in files if file.suffix in SUFFIXES]
        if unread := next((file for file in files if file.suffix in UNREAD), None):
            raise ConfigError(f"{key}: {unread}: found {unread.suffix}; *{', *'.join(SUFFIXES)}")
        if not found:
            raise ConfigError(f"{key}: {path}: no file *{', *'.join(SUFFIXES)} in it")
        return found
    if not path.is_file():
        raise ConfigError(f"{key}: {path}: no such file")
    if path.suffix not in SUFFIXES:
        raise ConfigError(
            f"{key}: {path}: found {path.suffix or 'no suffix'}; *{', *'.join(SUFFIXES)}"
        )
    return [path]


def rows_of(file: Path, *, key: str = KEY) -> Iterator[Mapping[str, Any]]:
    """Rows as mappings. Raises ConfigError for a file or row that cannot be read, which names `key`
    and the row; MachineError for Parquet without pyarrow."""
    for number, row in enumerate(all_rows(file, key=key), start=1):
        if isinstance(row, Broken):
            raise ConfigError(f"{key}: {file}, row {number}: {row.reason}: {row.detail}")
        yield row


def all_rows(file: Path, *, key: str = KEY) -> Iterator[Row]:
    """Rows as mappings, and in its place each that cannot be read. Raises as `rows_of` for a file
    that cannot be read."""
    try:
        yield from _parquet_rows(file, key=key) if file.suffix == ".parquet" else _json_rows(file)
    except OSError as err:
        raise _unreadable(file, err, key=key) from None


def _json_rows(path: Path) -> Iterator[Row]:
    """The rows of a JSON file: its lines, or the elements of its list."""
    with path.open("rb") as file:
        head = file.read(1 << 12).removeprefix(MARK)
        if head.lstrip().startswith(b"["):
            yield from map(_object, _list_elements(path))
            return
        file.seek(0)
        for number, line in enumerate(file):  # bytes: only newlines end a line
            text = line.removeprefix(MARK) if number == 0 else line
            if text.strip():
                yield _parsed(text)


def _parsed(line: bytes) -> Row:
    try:
        return _object(json.loads(line.decode()))
    except UnicodeDecodeError as err:
        return Broken(reason="no text in UTF-8", detail=str(err))
    except (ValueError, RecursionError) as err:
        return Broken(reason="broken JSON", detail=f"{err}; {OBJECTS}")


def _object(found: Any) -> Row:
    if isinstance(found, dict | Broken):
        return found
    return Broken(reason="no object", detail=f"found {kind_of(found)}; {OBJECTS}")


def open_parquet(path: Path, *, key: str = KEY) -> ParquetFile:
    """A Parquet file. Raises as `rows_of`."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise MachineError(
            f"{key}: {path}: Parquet needs pyarrow: {pip_install('train')}, or make setup"
        ) from None
    try:
        return parquet.ParquetFile(path)
    except OSError as err:
        raise _unreadable(path, err, key=key) from None
    except ArrowException as err:
        raise ConfigError(f"{key}: {path}: no Parquet file: {err}") from None


def _parquet_rows(path: Path, *, key: str) -> Iterator[Any]:
    with open_parquet(path, key=key) as opened:
        from pyarrow import ArrowException

        try:
            for batch in opened.iter_batches(batch_size=BATCH_ROWS):
                yield from batch.to_pylist()
        except (ArrowException, OSError, UnicodeDecodeError) as err:  # the last: no text in UTF-8
            raise _unreadable(path, err, key=key) from None


def _list_elements(path: Path) -> Iterator[Any]:
    """Elements of one JSON list. What follows a fault in it cannot be read: one Broken."""
    decoder = json.JSONDecoder()
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as err:
        yield Broken(reason="no text in UTF-8", detail=str(err))
        return
    at = _skip(text, text.index("[") + 1)
    try:
        while not text.startswith("]", at):
            element, at = decoder.raw_decode(text, at)
            yield element
            at = _skip(text, at)
            if not text.startswith((",", "]"), at):
                raise ValueError(f"no comma at character {at}")
            at = _skip(text, at + 1) if text[at] == "," else at
        if text[at + 1 :].strip():
            raise ValueError(f"more after the list, at character {at + 1}")
    except (ValueError, RecursionError) as err:
        yield Broken(reason="broken JSON", detail=f"the rest of the list cannot be read: {err}")


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def hash_rows(file: Path, *, key: str = KEY) -> str:
    """SHA-256 of a file. Raises ConfigError if it cannot be read."""
    try:
        return hash_file(file)
    except OSError as err:
        raise _unreadable(file, err, key=key) from None


def hash_file(file: Path) -> str:
    """SHA-256 of a file. Raises OSError."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _unreadable(file: Path, err: Exception, *, key: str) -> ConfigError:
    said = err.strerror if isinstance(err, OSError) else None
    return ConfigError(f"{key}: {file}: cannot be read: {said or err}")
