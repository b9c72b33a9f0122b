"""Rows of input files in chunks of equal numbers, so that processes can share them.

A chunk is named by its file and its first and last row, so the same input has the same chunks in
every process and after every restart. A row that cannot be read is a `Broken` in its place; a file
that cannot be read is an error.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from forge.data.pairs.rows import (
    Row,
    batch_rows,
    open_parquet,
    parquet_batches,
    parse_row,
    row_files,
    stream_rows,
)
from forge.errors import ConfigError

KEY = "input.path"
CHUNK_ROWS = 64
"""Rows of a chunk. With 200k tokens each they take about 50 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFile:
    """One input file."""

    path: Path
    name: str
    """Path below the input, for people and for the manifest."""
    num_rows: int
    sha256: str

    def to_json(self) -> dict[str, Any]:
        """Its entry in the manifest."""
        return {"name": self.name, "rows": self.num_rows, "sha256": self.sha256}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChunk:
    """Consecutive rows of one file."""

    number: int
    """Index among all chunks."""
    file: int
    """Index of its file."""
    start: int
    """Index of its first row in the file, from 0."""
    stop: int
    first_row: int
    """Index of its first row among all rows."""


def find_row_files(path: Path) -> list[RowFile]:
    """The input files with their numbers of rows, by path. Raises ConfigError if there is none."""
    root = path if path.is_dir() else path.parent
    files = row_files(path, key=KEY)
    return [_row_file(file, file.relative_to(root).as_posix()) for file in files]


def plan_chunks(files: Sequence[RowFile], *, size: int = CHUNK_ROWS) -> list[RowChunk]:
    """All chunks, in the order of the rows."""
    chunks: list[RowChunk] = []
    before = 0
    for index, file in enumerate(files):
        for start in range(0, file.num_rows, size):
            stop = min(start + size, file.num_rows)
            chunks.append(
                RowChunk(
                    number=len(chunks), file=index, start=start, stop=stop, first_row=before + start
                )
            )
        before += file.num_rows
    return chunks


def read_chunks(file: RowFile, chunks: Sequence[RowChunk]) -> Iterator[tuple[RowChunk, list[Row]]]:
    """Some chunks of one file, in their order, with one pass over it. Raises ConfigError."""
    if file.path.suffix == ".parquet":
        yield from _parquet_chunks(file.path, chunks)
        return
    rows = stream_rows(file.path)
    done = 0
    for chunk in chunks:
        skipped = chunk.start - done
        next(islice(rows, skipped, skipped), None)
        done = chunk.stop
        yield chunk, [parse_row(row) for row in islice(rows, chunk.stop - chunk.start)]


def _row_file(path: Path, name: str) -> RowFile:
    try:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if path.suffix == ".parquet":
            with open_parquet(path, key=KEY) as opened:
                num_rows: int = opened.metadata.num_rows
        else:
            num_rows = sum(1 for _ in stream_rows(path))
    except OSError as err:
        raise ConfigError(f"{KEY}: {path}: cannot be read: {err.strerror or err}") from None
    return RowFile(path=path, name=name, num_rows=num_rows, sha256=sha256)


def _parquet_chunks(path: Path, chunks: Sequence[RowChunk]) -> Iterator[tuple[RowChunk, list[Row]]]:
    batches = parquet_batches(path, size=CHUNK_ROWS, key=KEY)
    batch, first = None, 0
    for chunk in chunks:
        rows: list[Row] = []
        while len(rows) < chunk.stop - chunk.start:
            if batch is None or first + batch.num_rows <= chunk.start + len(rows):
                first += 0 if batch is None else batch.num_rows
                batch = next(batches)
                continue
            at = chunk.start + len(rows) - first
            part = batch.slice(at, chunk.stop - chunk.start - len(rows))
            rows += batch_rows(part, path, key=KEY)
        yield chunk, rows


_INDENT = re.compile(r"^[ \t]*\t[ \t]*", re.MULTILINE)
_SPACES = re.compile(r"^ +\S", re.MULTILINE)
TAB = 4
"""Columns of a tab where only tabs indent."""
PYTHON_TAB = 8
"""Columns of a tab beside spaces, as Python counts them: the meaning of the source stays."""
MAX_DEPTH = 16
"""Maximum nesting of a row that is normalised."""


def normalise_text(text: str) -> str:
    """The text with `\\n` line ends, without byte order mark, indented by spaces."""
    text = text.removeprefix("\ufeff")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\t" not in text:
        return text
    width = PYTHON_TAB if _SPACES.search(text) else TAB
    return _INDENT.sub(lambda found: found[0].expandtabs(width), text)


def normalise_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with every text in it normalised."""
    return {str(name): _normalise(value, MAX_DEPTH) for name, value in row.items()}


def _normalise(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return normalise_text(value)
    if depth == 0:
        return value
    if isinstance(value, Mapping):
        return {k: _normalise(v, depth - 1) for k, v in value.items()}
    if isinstance(value, list):
        return [_normalise(each, depth - 1) for each in value]
    return value
