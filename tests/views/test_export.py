"""Exports equal the run, and are complete or absent."""

import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from forge.errors import ConfigError, MachineError
from forge.store.reader import open_run
from forge.views.sql import export as view
from tests.store.storefactory import (
    attempt,
    group,
    small_run,
    timing,
    turn,
    write_run,
)

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "toy-1"
    anyio.run(lambda: write_run(path, small_run(), texts="zstd"))
    return path


def ask(root: Path, table: str) -> list[dict[str, Any]]:
    with open_run(root) as reader:
        return reader.rows(view.TABLES[table])


def export(root: Path, out: Path) -> list[view.Exported]:
    with open_run(root) as reader:
        return view.export(reader, out=out)


def test_parquet_has_every_table_with_its_rows_types_and_texts(root: Path, tmp_path: Path) -> None:
    found = export(root, tmp_path)
    assert {each.name for each in found} == view.TABLES.keys()
    for each in found:
        rows = ask(root, each.name)
        assert parquet.read_table(each.path).to_pylist() == rows
        assert (each.num_rows, each.num_bytes) == (len(rows), Path(each.path).stat().st_size)
    types = {f.name: str(f.type) for f in parquet.read_schema(tmp_path / "turns.parquet")}
    assert (types["reward"], types["turn"], types["code"]) == ("double", "int64", "string")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"{name}.parquet" for name in view.TABLES
    )


def test_every_numeric_column_is_exported_as_a_number(tmp_path: Path) -> None:
    """A column whose name is missing in the list of types would be text."""
    speed = timing(2.0)
    records = [attempt(), *small_run()[1:], turn(70, speed=speed), group(71, [], step=9)]
    anyio.run(write_run, tmp_path / "toy-1", records)
    export(tmp_path / "toy-1", tmp_path / "out")
    for name in view.TABLES:
        schema = parquet.read_schema(tmp_path / "out" / f"{name}.parquet")
        texts = {field.name for field in schema if field.type == pyarrow.string()}
        rows = ask(tmp_path / "toy-1", name)
        numbers = {k for row in rows for k, v in row.items() if isinstance(v, int | float)}
        assert not texts & numbers, name


def test_batches_are_concatenated(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "BATCH_ROWS", 5)
    export(root, tmp_path)
    file = parquet.ParquetFile(tmp_path / "turns.parquet")
    assert file.num_row_groups == 5
    assert file.read().to_pylist() == ask(root, "turns")


def test_an_export_overwrites_no_file(root: Path, tmp_path: Path) -> None:
    export(root, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConfigError, match="is there already; another folder"):
        export(root, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_parquet_without_pyarrow_is_one_line(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MachineError, match="pyarrow is not installed"):
        export(root, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_export_that_fails_leaves_no_file(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(view.TABLES, "turns", "SELECT code AS num_code FROM v_turns")
    with pytest.raises(pyarrow.ArrowInvalid):
        export(root, tmp_path)
    assert list(tmp_path.iterdir()) == []
