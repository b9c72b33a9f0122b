"""The files of a build: those that it reads, and its rows as JSON lines and Parquet.

The same rows have the same bytes: no times, no absolute paths, fixed row groups. Each file is
written under another name and renamed; the manifest comes last and marks a complete build. Results
by key survive a killed process, a JSON line each; a line that a kill cut is ignored. What is left
out is in `dropped.jsonl`, and in the steps of the manifest with reasons and examples.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from forge.data.pairs.rows import hash_rows, row_files
from forge.errors import MachineError

MANIFEST = "manifest.json"
INPUT = "input.path"
"""Key of a build's input."""
TRAIN, HELDOUT = "train", "heldout"
GROUP_ROWS = 512
"""Rows of a Parquet row group, which is in memory at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFile:
    path: Path
    name: str
    """Path below the input, for people and for the manifest."""
    sha256: str

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "sha256": self.sha256}


def find_row_files(path: Path) -> list[RowFile]:
    """The input files, by path. Raises ConfigError if there is none or one cannot be read."""
    root = path if path.is_dir() else path.parent
    found: list[RowFile] = []
    for file in row_files(path, key=INPUT):
        name, digest = file.relative_to(root).as_posix(), hash_rows(file, key=INPUT)
        found.append(RowFile(path=file, name=name, sha256=digest))
    return found


RowSink = Callable[[Mapping[str, Any]], None]
"""Takes rows one at a time."""


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
def open_sinks(
    folder: Path, formats: Sequence[str], names: Sequence[str]
) -> Generator[Callable[[str, Mapping[str, Any]], None]]:
    """A function that writes a row to the files of a split in `folder`, which appear at the end.
    Raises MachineError."""
    try:
        with ExitStack() as stack:
            spares: dict[Path, Path] = {}
            sinks: dict[str, list[RowSink]] = {name: [] for name in names}
            for name in names:
                for form in formats:
                    path = folder / f"{name}.{form}"
                    spares[path] = path.with_name(f".{path.name}.partial")
                    sinks[name].append(stack.enter_context(_OPEN[form](spares[path])))

            def write(name: str, row: Mapping[str, Any]) -> None:
                for sink in sinks[name]:
                    sink(row)

            yield write
        for path, spare in spares.items():
            spare.replace(path)
    except OSError as error:
        raise MachineError(f"{folder}: cannot be written: {error.strerror or error}") from error


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


class ResultLog:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[str, int] = {}
        if path.is_file():
            self._read()
        self._file = self._open()

    def _open(self) -> BinaryIO:
        return self._path.open("ab")

    def _read(self) -> None:
        whole = 0
        with self._path.open("rb") as file:
            for line in file:
                try:
                    key = json.loads(line)["key"] if line.endswith(b"\n") else None
                except (ValueError, LookupError, TypeError):
                    key = None
                if key is None:
                    break
                self._places[key] = whole
                whole += len(line)
        os.truncate(self._path, whole)

    def get(self, key: str) -> dict[str, Any] | None:
        place = self._places.get(key)
        if place is None:
            return None
        with self._path.open("rb") as file:
            file.seek(place)
            row: dict[str, Any] = json.loads(file.readline())
        del row["key"]
        return row

    def add(self, key: str, result: Mapping[str, Any]) -> None:
        """Keeps a result. Raises MachineError where it cannot be written."""
        try:
            place = self._file.seek(0, os.SEEK_END)
            self._file.write(json.dumps({"key": key, **result}).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise MachineError(f"{self._path}: cannot be written: {error.strerror}") from error
        self._places[key] = place

    def close(self) -> None:
        self._file.close()


MAX_EXAMPLES = 5
"""Examples of each reason that a manifest explains; all are in dropped.jsonl."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutRow:
    """A candidate that did not pass a step."""

    origin: str
    """Its place: `rows.jsonl:12`, `timm/layers/drop:DropPath`."""
    step: str
    reason: str
    """Few distinct words, by which such are counted."""
    detail: str = ""
    kind: str = ""
    """Group in which yields are counted."""

    def to_line(self) -> str:
        row = {
            "origin": self.origin, "step": self.step, "reason": self.reason, "detail": self.detail,
        }  # fmt: skip
        return json.dumps(row) + "\n"


def describe_steps(
    dropped: Sequence[LeftOutRow],
    steps: Iterable[str],
    *,
    num: int,
    off: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Candidates in and out of each step, of `num` before the first, with reasons and examples;
    `off`: the steps that were not applied, and why."""
    listed: list[dict[str, Any]] = []
    for step in steps:
        gone = [one for one in dropped if one.step == step]
        counts = Counter(one.reason for one in gone)
        reasons = dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))
        entry: dict[str, Any] = {"step": str(step), "in": num, "out": num - len(gone)}
        if off and step in off:
            entry["off"] = off[step]
        listed.append({**entry, "reasons": reasons, "examples": _examples(gone)})
        num -= len(gone)
    return listed


def _examples(gone: Sequence[LeftOutRow]) -> list[dict[str, Any]]:
    """The first candidate of each reason and detail, with the number of such."""
    counts = Counter((one.reason, one.detail) for one in gone)
    shown = Counter[str]()
    examples: dict[tuple[str, str], dict[str, Any]] = {}
    for one in gone:
        key = (one.reason, one.detail)
        if key not in examples and shown[one.reason] < MAX_EXAMPLES:
            shown[one.reason] += 1
            examples[key] = {
                "row": one.origin, "reason": one.reason, "detail": one.detail, "rows": counts[key],
            }  # fmt: skip
    return list(examples.values())


def explained(steps: Iterable[Mapping[str, Any]]) -> list[str]:
    """The examples of the steps, a line each."""
    lines: list[str] = []
    for one in (each for step in steps for each in step.get("examples", ())):
        many = f"({one['rows']} rows)" if one["rows"] > 1 else ""
        said = ": ".join(filter(None, (one["row"], one["reason"], one["detail"])))
        lines.append(" ".join(f"{said} {many}".split()))
    return lines


def counted(steps: Iterable[Mapping[str, Any]]) -> str:
    """All reasons with their numbers, in one line."""
    return ", ".join(f"{num} {why}" for one in steps for why, num in one["reasons"].items())
