"""Parquet files of a run's tables, with a type for each column. Used by `views.sql.export`."""

# pyarrow has no type stubs.
# pyright: standard

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from forge.errors import MachineError, pip_install

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow

    from forge.store.read_only import RowStream

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


def write_parquet(name: str, found: RowStream, path: Path) -> int:
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
    """Type of a column: integer, real or text."""
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
