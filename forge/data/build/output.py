"""The files of a build: rows as JSON lines and Parquet, rows left out, and the manifest.

The same rows have the same bytes: no times, no absolute paths, fixed row groups. Each file is
written under another name and renamed; the manifest comes last and marks a complete build.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from forge.data.build.steps import Dropped, Step
from forge.errors import MachineError

if TYPE_CHECKING:
    from forge.config.schema.build import DataBuild
    from forge.data.build.rows import RowFile

MANIFEST = "manifest.json"
TRAIN, HELDOUT = "train", "heldout"
GROUP_ROWS = 512
"""Rows of a Parquet row group, which is in memory at once."""
MAX_EXAMPLES = 5
"""Rows of each reason that a manifest explains; all are in dropped.jsonl."""


class RowSink(Protocol):
    """Takes rows one at a time."""

    def __call__(self, row: Mapping[str, Any]) -> None:
        """Writes a row."""
        ...


def origin_of(number: int, files: Sequence[RowFile]) -> str:
    """File and row of a number among all rows: `rows.jsonl:12`, counted from 1."""
    for file in files:
        if number < file.num_rows:
            return f"{file.name}:{number + 1}"
        number -= file.num_rows
    raise AssertionError("a number behind the last row")


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


def dropped_lines(dropped: Iterable[Dropped], files: Sequence[RowFile]) -> Iterator[str]:
    """The rows left out, by number, one JSON object a line."""
    for each in sorted(dropped, key=lambda each: each.number):
        row = {
            "origin": origin_of(each.number, files), "step": each.step, "reason": each.reason,
            "detail": each.detail,
        }  # fmt: skip
        yield json.dumps(row) + "\n"


def describe_steps(
    dropped: Sequence[Dropped],
    *,
    files: Sequence[RowFile],
    num_rows: int,
    off: Mapping[Step, str],
) -> list[dict[str, Any]]:
    """Rows in and out of each step with reasons and examples, in the order of the steps.

    Args:
        off: the steps that were not applied, and why.
    """
    steps: list[dict[str, Any]] = []
    for step in Step:
        gone = sorted((one for one in dropped if one.step == step), key=lambda one: one.number)
        counts = Counter(each.reason for each in gone)
        reasons = dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))
        entry: dict[str, Any] = {"step": str(step), "in": num_rows, "out": num_rows - len(gone)}
        if step in off:
            entry["off"] = off[step]
        steps.append({**entry, "reasons": reasons, "examples": _examples(gone, files)})
        num_rows -= len(gone)
    return steps


def _examples(dropped: Sequence[Dropped], files: Sequence[RowFile]) -> list[dict[str, Any]]:
    """The first row of each reason and detail, with the number of such rows."""
    counts = Counter((each.reason, each.detail) for each in dropped)
    first = {(each.reason, each.detail): each.number for each in reversed(dropped)}
    shown = Counter[str]()
    examples: list[dict[str, Any]] = []
    for (reason, detail), number in sorted(first.items(), key=lambda each: each[1]):
        shown[reason] += 1
        if shown[reason] <= MAX_EXAMPLES:
            examples.append(
                {
                    "row": origin_of(number, files), "reason": reason, "detail": detail,
                    "rows": counts[reason, detail],
                }
            )  # fmt: skip
    return examples


def explained(steps: Iterable[Mapping[str, Any]]) -> list[str]:
    """The examples of the steps, a line each."""
    lines: list[str] = []
    for one in (each for step in steps for each in step.get("examples", ())):
        many = f"({one['rows']} rows)" if one["rows"] > 1 else ""
        said = ": ".join(filter(None, (one["row"], one["reason"], one["detail"])))
        lines.append(" ".join(f"{said} {many}".split()))
    return lines


def hash_file(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def settings_json(build: DataBuild) -> dict[str, Any]:
    """The settings that decide the rows: without places, which differ between machines."""
    settings = build.model_dump(mode="json", exclude_none=True)
    del settings["output"]["dir"], settings["input"]["path"]
    settings["tokenizer"].pop("path", None)
    settings["prompt"] = {
        key: Path(value).name if isinstance(value, str) else value
        for key, value in settings["prompt"].items()
    }
    settings["heldout"]["paths"] = [Path(each).name for each in build.heldout.paths]
    if not build.filters.judged:
        del settings["judge"]
    return settings
