"""Exports equal the run in every format, and are complete or absent."""

from __future__ import annotations

import csv
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from forge.cli import run_command
from forge.errors import ConfigError, MachineError
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from forge.store.write.writer import open_writer
from forge.views.sql import export as view
from forge.views.sql import parquet as parquet_view
from tests.store.storefactory import (
    Options,
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


def ask(root: Path | RunPaths, table: str) -> list[dict[str, Any]]:
    with open_run(root) as reader:
        return reader.rows(view.TABLES[table])


def export(root: Path | RunPaths, form: str, out: Path, **options: Any) -> list[view.Exported]:
    with open_run(root) as reader:
        return view.export(reader, form, out=out, **options)


def test_parquet_has_every_table_with_its_rows_types_and_texts(root: Path, tmp_path: Path) -> None:
    found = export(root, "parquet", tmp_path)
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
    export(tmp_path / "toy-1", "parquet", tmp_path / "out")
    for name in view.TABLES:
        schema = parquet.read_schema(tmp_path / "out" / f"{name}.parquet")
        texts = {field.name for field in schema if field.type == pyarrow.string()}
        rows = ask(tmp_path / "toy-1", name)
        numbers = {k for row in rows for k, v in row.items() if isinstance(v, int | float)}
        assert not texts & numbers, name


def test_batches_are_concatenated(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_view, "BATCH_ROWS", 5)
    export(root, "parquet", tmp_path, tables=["turns"])
    file = parquet.ParquetFile(tmp_path / "turns.parquet")
    assert file.num_row_groups == 5
    assert file.read().to_pylist() == ask(root, "turns")


def test_csv_has_the_same_values(root: Path, tmp_path: Path) -> None:
    (each,) = export(root, "csv", tmp_path, tables=["turns"])
    with open(each.path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    there = ask(root, "turns")
    assert each.num_rows == len(rows) == len(there)
    assert [row["code"] for row in rows] == [row["code"] or "" for row in there]
    assert [float(row["reward"]) for row in rows] == [row["reward"] for row in there]


def test_sqlite_is_one_file_that_stock_sqlite3_reads_with_plain_texts(
    root: Path, tmp_path: Path
) -> None:
    (each,) = export(root, "sqlite", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["toy-1.db"]
    with closing(sqlite3.connect(each.path)) as copy:
        codes = copy.execute("SELECT code FROM v_turns ORDER BY turn_id").fetchall()
        assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    with open_run(root) as reader:
        there = reader.query("SELECT code FROM v_turns ORDER BY turn_id").rows
        assert reader.value("SELECT texts FROM runs") == "zstd", "the run itself is left alone"
    assert codes == list(there)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs mount")
def test_sqlite_of_a_run_on_a_read_only_disk_is_whole(root: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    shutil.copy(root / "run.db", disk)
    subprocess.run(["mount", "--bind", str(disk), str(disk)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(disk)], check=True)
        (each,) = export(disk, "sqlite", tmp_path / "out")
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
    assert each.num_rows == 24


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_copy_of_a_live_run_is_one_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "COPY_PAGES", 1)
    path = tmp_path / "toy-1"
    await write_run(path, small_run())
    copies: list[view.Exported] = []
    async with open_writer(RunPaths(path), Options()) as writer, anyio.create_task_group() as tasks:

        async def write() -> None:
            for number in range(100, 100_000):
                await writer.put(turn(number, completion="x" * 5000))
                await writer.flush()

        tasks.start_soon(write)
        await anyio.sleep(0.2)
        out = tmp_path / "out"
        copies = await anyio.to_thread.run_sync(lambda: export(path, "sqlite", out))
        tasks.cancel_scope.cancel()
    (each,) = copies
    with closing(sqlite3.connect(each.path)) as copy:
        assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert copy.execute("SELECT count(*) FROM turns").fetchone()[0] == each.num_rows > 24
        missing = "SELECT count(*) FROM turns LEFT JOIN verdicts v USING (group_id, rollout, turn)"
        assert copy.execute(f"{missing} WHERE v.status IS NULL").fetchone() == (0,)


@pytest.mark.parametrize(
    ("form", "tables", "expected"),
    [
        ("xml", (), "parquet, csv, sqlite"),
        ("csv", ("turn",), "no such table; there are turns"),
        ("sqlite", ("turns",), "copy of the whole run"),
    ],
)
def test_an_invalid_export_is_one_line(
    root: Path, tmp_path: Path, form: str, tables: tuple[str, ...], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        export(root, form, tmp_path, tables=tables)


@pytest.mark.parametrize("form", ["csv", "parquet", "sqlite"])
def test_an_export_overwrites_no_file(root: Path, tmp_path: Path, form: str) -> None:
    tables = () if form == "sqlite" else ("steps", "events", "steps")
    files = export(root, form, tmp_path, tables=tables)
    assert len(files) == len({each.path for each in files})
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConfigError, match="is there already; another folder"):
        export(root, form, tmp_path, tables=tables[-1:])
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_that_cannot_be_created_is_one_line(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        export(root, "csv", tmp_path / "file" / "out")


def test_parquet_without_pyarrow_is_one_line(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MachineError, match="pyarrow is not installed"):
        export(root, "parquet", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_export_that_fails_leaves_no_file(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(view.TABLES, "turns", "SELECT code AS num_code FROM v_turns")
    with pytest.raises(pyarrow.ArrowInvalid):
        export(root, "parquet", tmp_path, tables=["turns"])
    assert list(tmp_path.iterdir()) == []


def test_the_command_prints_the_files(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["export", "csv", str(root), "--out", str(tmp_path), "--tables", "steps,events"]
    assert run_command([*argv, "--json"]) == 0
    assert '"name": "steps"' in capsys.readouterr().out
    assert (tmp_path / "events.csv").exists()
