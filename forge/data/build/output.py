"""The files of a build: rows as JSON lines and Parquet.

The same rows have the same bytes: no times, no absolute paths, fixed row groups. Each file is
written under another name and renamed; the manifest comes last and marks a complete build.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from forge.errors import MachineError

MANIFEST = "manifest.json"
TRAIN, HELDOUT = "train", "heldout"
GROUP_ROWS = 512
"""Rows of a Parquet row group, which is in memory at once."""


class RowSink(Protocol):
    """Takes rows one at a time."""

    def __call__(self, row: Mapping[str, Any]) -> None:
        """Writes a row."""
        ...


def output_row(row: Mapping[str, Any], *, origin: str, verdict: str | None) -> dict[str, Any]:
    """A row as it is written; `[data] format = "messages"` reads it."""
    return {
        "id": row["id"],
        "messages": row["messages"],
        "num_turns": row["num_turns"],
        "num_tokens": row["num_tokens"],
        "origin": origin,
        "verdict": verdict,
    }


@contextmanager
def open_sinks(folder: Path, formats: Sequence[str], names: Sequence[str]) -> Generator[Sinks]:
    """Files for rows in `folder`, which appear at the end. Raises MachineError."""
    try:
        with ExitStack() as stack:
            spares: dict[Path, Path] = {}
            sinks: dict[str, list[RowSink]] = {name: [] for name in names}
            for name in names:
                for form in formats:
                    path = folder / f"{name}.{form}"
                    spares[path] = path.with_name(f".{path.name}.partial")
                    sinks[name].append(stack.enter_context(_OPEN[form](spares[path])))
            yield Sinks(sinks)
        for path, spare in spares.items():
            spare.replace(path)
    except OSError as error:
        raise MachineError(f"{folder}: cannot be written: {error.strerror or error}") from error


class Sinks:
    """Open files by the name of their split."""

    def __init__(self, sinks: Mapping[str, Sequence[RowSink]]) -> None:
        self._sinks = sinks

    def write(self, name: str, row: Mapping[str, Any]) -> None:
        """Writes a row to each file of a split."""
        for sink in self._sinks[name]:
            sink(row)


@contextmanager
def _open_jsonl(path: Path) -> Generator[RowSink]:
    with path.open("w", encoding="utf-8", newline="\n") as file:

        def write(row: Mapping[str, Any]) -> None:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

        yield write


@contextmanager
def _open_parquet(path: Path) -> Generator[RowSink]:
    import pyarrow as pa
    from pyarrow import parquet

    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    schema = pa.schema(
        [
            ("id", pa.string()), ("messages", pa.list_(message)), ("num_turns", pa.int32()),
            ("num_tokens", pa.int32()), ("origin", pa.string()), ("verdict", pa.string()),
        ]
    )  # fmt: skip
    rows: list[Mapping[str, Any]] = []
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:

        def flush() -> None:
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
            rows.clear()

        def write(row: Mapping[str, Any]) -> None:
            rows.append(row)
            if len(rows) == GROUP_ROWS:
                flush()

        yield write
        if rows:
            flush()


_OPEN: dict[str, Callable[[Path], Any]] = {"jsonl": _open_jsonl, "parquet": _open_parquet}


def hash_file(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file that is complete or absent."""
    spare = path.with_name(f".{path.name}.{os.getpid()}")
    spare.write_bytes(data)
    spare.replace(path)


def length_facts(lengths: list[int]) -> dict[str, int]:
    """Sum, least, median and greatest length of rows."""
    found = {"total": sum(lengths)}
    if lengths:
        ordered = sorted(lengths)
        found |= {"min": ordered[0], "median": ordered[len(ordered) // 2], "max": ordered[-1]}
    return found
