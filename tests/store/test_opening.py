"""A run in any state is read, or one line says why not and what to do."""

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from forge.errors import ConfigError, MachineError
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from forge.store.schema.views import (
    view_names,
)
from forge.store.write.writer import Databases, open_writer
from tests.store.storefactory import Options, make_root, small_run, turn, write_run

SHOWN = [view for view in view_names() if view.startswith("v_")]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "toy-1"
    return anyio.run(lambda: write_run(path, small_run(), texts="zstd"))


def read_all(root: Path) -> dict[str, list[tuple[object, ...]]]:
    with open_run(root) as reader:
        return {
            view: sorted(reader.query(f"SELECT * FROM {view}").rows, key=repr) for view in SHOWN
        }


def test_a_run_with_other_views_is_read_through_this_versions(tmp_path: Path) -> None:
    root = anyio.run(write_run, tmp_path / "toy-1", small_run())
    ours = read_all(root)
    with closing(sqlite3.connect(root / "run.db")) as connection:
        connection.execute("DROP VIEW v_failures")
        connection.execute("DROP VIEW v_steps")
        connection.execute("CREATE VIEW v_steps AS SELECT 1 AS other")
        connection.commit()
    assert read_all(root) == ours


def test_a_database_that_cannot_be_copied_does_not_keep_the_other_from_it(tmp_path: Path) -> None:
    root = anyio.run(write_run, tmp_path / "toy-1", small_run())
    databases = Databases(RunPaths(root), texts="zstd", now=0.0)
    databases.begin()
    databases.run.execute("UPDATE runs SET texts = texts")
    databases.commit()

    def refuse(_action: int, name: str | None, *_rest: str | None) -> int:
        return sqlite3.SQLITE_DENY if name == "wal_checkpoint" else sqlite3.SQLITE_OK

    databases.tokens.set_authorizer(refuse)
    assert not databases.checkpoint(), "it is tried again"
    assert databases.tokens.execute("PRAGMA busy_timeout").fetchone()[0] > 0
    assert not (root / "run.db-wal").stat().st_size
    databases.tokens.set_authorizer(None)
    assert databases.checkpoint()
    databases.close()


@pytest.mark.parametrize("kept", [0, 50, 100, 5_000, 0.3, 0.6, 0.99])
def test_a_run_copied_in_part_is_one_line(root: Path, tmp_path: Path, kept: float) -> None:
    copy = tmp_path / "toy-1"
    shutil.copytree(root, copy)
    (copy / "run.db-wal").unlink(missing_ok=True)  # a complete WAL would hold the missing pages
    size = (copy / "run.db").stat().st_size
    os.truncate(copy / "run.db", int(kept * size if kept < 1 else kept))
    with pytest.raises(MachineError, match=r"copied|cannot be read|empty, but 24 turns") as error:
        read_all(copy)
    assert "\n" not in str(error.value)


def test_a_damaged_page_is_one_line_when_it_is_read(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "toy-1"
    shutil.copytree(root, copy)
    with open_run(copy) as reader:
        page = reader.value("SELECT rootpage FROM main.sqlite_master WHERE name = 'turns'")
    with (copy / "run.db").open("r+b") as file:
        file.seek(4096 * (page - 1))
        file.write(b"\xff" * 4096)
    open_run(copy).close()
    with pytest.raises(MachineError, match="copied in part") as error:
        read_all(copy)
    assert "\n" not in str(error.value)


def test_a_run_with_damaged_tokens_is_read_without_them(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "toy-1"
    shutil.copytree(root, copy)
    (copy / "tokens.db").write_bytes(b"not a database, but long enough to look like one" * 40)
    assert read_all(copy) == read_all(root)


async def copy_while_written(root: Path, copies: dict[str, Path]) -> None:
    """Copies a live run, with the turn after its last step end still in the WAL."""
    make_root(root)
    async with open_writer(root, Options()) as writer:
        await writer.put(*small_run())
        await writer.flush()
        with anyio.fail_after(
            30
        ):  # a copy of files beside the checkpoint of a step end may be torn
            while (root / "run.db-wal").stat().st_size:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        wal, size = root / "run.db-wal", 0
        for number in range(99, 200):
            await writer.put(turn(number))
            await writer.flush()
            size = wal.stat().st_size
            for left_out, copy in copies.items():
                shutil.rmtree(copy, ignore_errors=True)
                copy.mkdir()
                for file in root.iterdir():
                    if file.is_file() and not (left_out and file.name.endswith(left_out)):
                        shutil.copy(file, copy)
            if size and wal.stat().st_size == size:  # no later checkpoint came between
                break
        assert size


def test_a_copy_of_a_live_run_has_all_flushed_rows_if_its_wal_was_copied(
    tmp_path: Path,
) -> None:
    copies = {"": tmp_path / "whole-1", "-shm": tmp_path / "no-shm-1"}
    anyio.run(copy_while_written, tmp_path / "toy-1", copies)
    theirs = read_all(tmp_path / "toy-1")
    assert read_all(copies[""]) == read_all(copies["-shm"]) == theirs


def test_an_empty_run_db_is_one_line_about_its_wal(tmp_path: Path) -> None:
    make_root(tmp_path / "toy-1")
    (tmp_path / "toy-1" / "run.db").touch()
    with pytest.raises(ConfigError, match=r"run\.db-wal was not copied"):
        open_run(tmp_path / "toy-1")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs mount")
def test_a_crashed_run_on_a_read_only_disk_is_one_line_about_its_wal(tmp_path: Path) -> None:
    copy = tmp_path / "disk" / "toy-1"
    copy.parent.mkdir()
    anyio.run(copy_while_written, tmp_path / "toy-1", {"-shm": copy})
    mount = ["mount", "--bind", str(copy.parent), str(copy.parent)]
    subprocess.run(mount, check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(copy.parent)], check=True)
        with pytest.raises(ConfigError, match=r"run\.db-wal, which needs a place") as error:
            open_run(copy)
        assert "\n" not in str(error.value)
    finally:
        subprocess.run(["umount", str(copy.parent)], check=True)
