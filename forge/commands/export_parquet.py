"""Exports a run's tables to Parquet files, with a type for each column: `forge export parquet RUN
--out DIR`.

Texts are decoded, booleans are 0 or 1, JSON columns stay text; token ids stay in tokens.db. Rows
are streamed in batches, so memory does not grow with the run. The reader holds one snapshot, so the
WAL of a live run grows until the export is done. A file is complete or absent.
"""

# pyarrow has no type stubs.
# pyright: standard

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.errors import ConfigError, MachineError, pip_install, unwritable
from forge.store.reader import RowStream, RunReader

if TYPE_CHECKING:
    import pyarrow

_SOURCE = "(SELECT body FROM texts WHERE text_id = p.source_id) AS source"
TABLES: dict[str, str] = {
    "turns": "SELECT * FROM v_turns",
    "rollouts": (
        "SELECT r.*, g.stage, g.step, g.purpose, g.is_greedy FROM trajectories r "
        "LEFT JOIN groups g USING (group_id)"
    ),
    "groups": "SELECT * FROM v_groups",
    "problems": f"SELECT p.*, {_SOURCE} FROM problems p",
    "samples": "SELECT * FROM v_samples",
    "steps": "SELECT * FROM v_steps",
    "kernels": "SELECT * FROM v_best_kernels",
    "evaluations": "SELECT * FROM evaluations",
    "metrics": "SELECT * FROM v_metrics",
    "policies": "SELECT * FROM policies",
    "processes": "SELECT * FROM processes",
    "events": "SELECT * FROM events",
    "attempts": "SELECT * FROM attempts",
}
BATCH_ROWS = 2000
"""24 MB at 12 kB per turn."""
_INTEGERS = """
group_id rollout turn stage step level attempt min_version max_version event_id sample_id
policy_version staleness admitted_for_step rank pid seed exit_code code_id prompt_id completion_id
source_id evaluation_id version stage_index max_turns
"""
_REALS = """
reward discounted_return speedup speedup_low advantage pass_rate pass_rate_multi compile_rate
best_speedup completion_tokens truncated_share torch_share roofline_share achieved_gbps
achieved_tflops return_low return_mean return_high value at pass_at_1 ci_low ci_high
pass_at_1_greedy pass_at_1_multi probe_gap recorded_at started_at ended_at generate_s judge_s
publish_s candidate_us baseline_us candidate_spread_us baseline_spread_us
"""
"""Types of columns by name: in SQLite values have types, columns of views have none."""


def export(reader: RunReader, *, out: Path) -> list[dict[str, Any]]:
    """Writes all tables to `out`, and returns name, path, num_rows and num_bytes of each file.

    Raises:
        ConfigError: `out` is no folder or has a file of a table.
        MachineError: pyarrow is missing, or a file cannot be written.
    """
    files = {name: out / f"{name}.parquet" for name in TABLES}
    if found := next((path.name for path in files.values() if path.exists()), None):
        raise ConfigError(f"--out {out}: {found} is there already; another folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        return [_export_table(reader, name, path) for name, path in files.items()]
    except OSError as error:
        raise unwritable(f"--out {out}", error) from error


def _export_table(reader: RunReader, name: str, path: Path) -> dict[str, Any]:
    with _complete(path) as spare:
        num_rows = _write(name, reader.stream(TABLES[name]), spare)
    size = path.stat().st_size
    return {"name": name, "path": str(path), "num_rows": num_rows, "num_bytes": size}


@contextmanager
def _complete(path: Path) -> Generator[Path]:
    """Yields a temporary name, which is renamed to `path`, or deleted after an error."""
    spare = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield spare
        spare.replace(path)
    finally:
        spare.unlink(missing_ok=True)


def _write(name: str, found: RowStream, path: Path) -> int:
    """Writes the stream and returns its number of rows. Raises MachineError without pyarrow."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MachineError(
            f"forge export parquet: pyarrow is not installed: {pip_install('train')}, or make setup"
        ) from None
    schema = pyarrow.schema([(column, arrow_type(name, column)) for column in found.columns])
    num = 0
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        while batch := list(islice(found.rows, BATCH_ROWS)):
            columns = zip(*batch, strict=True)
            arrays = [
                pyarrow.array([_as(value, field.type) for value in column], type=field.type)
                for column, field in zip(columns, schema, strict=True)
            ]
            writer.write_batch(pyarrow.record_batch(arrays, schema=schema))
            num += len(batch)
    return num


def arrow_type(table: str, column: str) -> pyarrow.DataType:
    import pyarrow

    if (table, column) == ("evaluations", "stage"):  # the stage's name, elsewhere its index
        return pyarrow.string()
    if column in _INTEGERS.split() or column.startswith(("num_", "is_")):
        return pyarrow.int64()
    if column in _REALS.split():
        return pyarrow.float64()
    return pyarrow.string()


def _as(value: Any, kind: pyarrow.DataType) -> Any:
    """Converts a value: SQLite may return an integer from a REAL column, or text from any."""
    import pyarrow

    if value is None or kind == pyarrow.int64():
        return value
    if kind == pyarrow.float64():
        return float(value)
    return value if isinstance(value, str) else str(value)
