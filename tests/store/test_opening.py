"""A run in any state is read, or one line says why not and what to do. Its schema: whole or not at
all, and nothing to do for a database that has it."""

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from forge.commands.doctor.examine import MOUNTINFO, find_mount
from forge.errors import ConfigError, MachineError
from forge.records import ToolCall
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from forge.store.schema import rollups
from forge.store.schema.create import APPLICATION_ID, VERSION, create, create_run
from forge.store.write import writer
from forge.store.write.writer import Databases, open_writer
from forge.views import run_state
from tests.docs.pages import Block, read_blocks
from tests.store.storefactory import Options, make_root, read_views, small_run, turn, write_run
from tests.views.terminals import told


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "toy-1"
    return anyio.run(lambda: write_run(path, small_run(), texts="zstd"))


def test_a_run_with_other_views_is_read_through_this_versions(tmp_path: Path) -> None:
    root = anyio.run(write_run, tmp_path / "toy-1", small_run())
    ours = read_views(root)
    with closing(sqlite3.connect(root / "run.db")) as connection:
        connection.execute("DROP VIEW v_failures")
        connection.execute("DROP VIEW v_steps")
        connection.execute("CREATE VIEW v_steps AS SELECT 1 AS other")
        connection.commit()
    assert read_views(root) == ours


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
        read_views(copy)
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
        read_views(copy)
    assert "\n" not in str(error.value)


def test_a_run_with_damaged_tokens_is_read_without_them(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "toy-1"
    shutil.copytree(root, copy)
    (copy / "tokens.db").write_bytes(b"not a database, but long enough to look like one" * 40)
    assert read_views(copy) == read_views(root)


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


def test_a_copy_of_a_live_run_has_all_flushed_rows_if_its_wal_was_copied(tmp_path: Path) -> None:
    copies = {"": tmp_path / "whole-1", "-shm": tmp_path / "no-shm-1"}
    anyio.run(copy_while_written, tmp_path / "toy-1", copies)
    theirs = read_views(tmp_path / "toy-1")
    assert read_views(copies[""]) == read_views(copies["-shm"]) == theirs


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


KILLED = """
import sys, pathlib, anyio
from tests.store.storefactory import Options, group, turn
from forge.records import Status
from forge.store.write.writer import open_writer

async def main():
    root = pathlib.Path(sys.argv[1])
    async with open_writer(root, Options(texts="zstd")) as writer:
        for number in range(100_000):
            await writer.put(*(turn(number, rollout) for rollout in range(4)))
            await writer.put(group(number, [[Status.WRONG]] * 4, step=number // 3))
            if number % 7 == 0:
                await writer.flush()
                print(number, flush=True)

anyio.run(main)
"""


class PollingReader(threading.Thread):
    """Polls a run on its own connection until `stop`."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root, self.errors, self.num_polls = root, [], 0
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.is_set():
            try:
                with open_run(self.root) as reader:
                    for _ in range(5):
                        reader.rows("SELECT * FROM v_steps ORDER BY step DESC LIMIT 5")
                        reader.value("SELECT max(turn_row) FROM turns")
                        self.num_polls += 1
            except sqlite3.Error as error:
                self.errors.append(str(error))

    def stop(self) -> None:
        self._is_over.set()
        self.join(20)


def kill_after(root: Path, num_acknowledged: int) -> None:
    """Kills the writer after so many flushes and asserts that no flushed row is lost."""
    root.mkdir(parents=True)
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(root)], stdout=subprocess.PIPE, text=True
    )
    acknowledged = int(child.stdout.readline())
    looking = PollingReader(root)
    looking.start()
    try:
        for _ in range(num_acknowledged):
            acknowledged = int(child.stdout.readline())
    finally:
        child.send_signal(signal.SIGKILL)
        rest, _ = child.communicate()
        looking.stop()
    acknowledged = max([acknowledged, *map(int, rest.split())])
    assert looking.errors == []
    with open_run(root) as reader:
        kept = "SELECT count(*) FROM turns WHERE group_id <= ?"
        assert reader.value(kept, (acknowledged,)) == 4 * (acknowledged + 1)
        torn = "SELECT group_id FROM turns GROUP BY group_id HAVING count(*) <> 4"
        assert reader.rows(torn) == []
        keys = "SELECT group_id, rollout, turn FROM"
        assert reader.rows(f"{keys} turns EXCEPT {keys} tokens.tokens") == []
        assert reader.value("PRAGMA integrity_check") == "ok"
        steps = reader.rows("SELECT step, num_turns FROM v_steps")
        plain = reader.rows(
            "SELECT step, count(*) AS num_turns FROM turns JOIN groups USING (group_id) "
            "GROUP BY step"
        )
    assert sorted(steps, key=str) == sorted(plain, key=str)


@pytest.mark.parametrize("after", [0, pytest.param(20, marks=pytest.mark.long), 60])
def test_kill_9_loses_no_flushed_row(tmp_path: Path, after: int) -> None:
    kill_after(tmp_path / "toy-1", after)


TABLE = r"""
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 27 0:40 / /home rw,relatime shared:5 master:1 - nfs4 filer:/export/home rw,vers=4.2
41 40 254:1 / /home/me/scratch rw - xfs /dev/nvme0n1 rw
42 27 0:42 / /mnt/with\040space rw - fuse.sshfs me@host:/data rw,user_id=0
43 27 0:43 / /mnt/ntfs rw - fuse.ntfs-3g /dev/sdb1 rw
44 27 0:44 / /lustre rw - lustre 10.0.0.1@o2ib:/scratch rw
45 27 0:45 / /covered rw - nfs filer:/x rw
46 27 0:46 / /covered rw - tmpfs tmpfs rw
a line that is none
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(TABLE)
    return path


@pytest.mark.parametrize(
    ("path", "kind", "is_network"),
    [
        ("/data/runs", "ext4", False),
        ("/home/me/runs", "nfs4", True),
        ("/home/me/scratch/runs", "xfs", False),
        ("/homes/me", "ext4", False),
        ("/mnt/with space/runs", "fuse.sshfs", True),
        ("/mnt/ntfs/runs", "fuse.ntfs-3g", False),
        ("/lustre", "lustre", True),
        ("/covered/runs", "tmpfs", False),
    ],
)
def test_the_innermost_mount_decides(table: Path, path: str, kind: str, is_network: bool) -> None:
    mount = find_mount(Path(path), table=table)
    assert (mount.kind, mount.is_network) == (kind, is_network)


def test_without_a_mount_table_there_is_no_mount(tmp_path: Path) -> None:
    assert find_mount(Path("/"), table=tmp_path / "none") is None


@pytest.mark.skipif(not MOUNTINFO.exists(), reason="no mount table here")
def test_the_mount_table_of_this_machine_is_read() -> None:
    assert find_mount(Path("/proc/self")).kind == "proc"


BROKEN = "CREATE TABLE half (x);\nINSERT INTO half VALUES (1);\nCREATE TABLE half (y);\n"


def connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


def test_a_schema_that_fails_leaves_the_database_empty(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    connection = connect(path)
    with pytest.raises(sqlite3.Error, match="half"):
        create(connection, path=path, tables=BROKEN)
    assert not connection.in_transaction
    assert list(connection.iterdump()) == ["BEGIN TRANSACTION;", "COMMIT;"]
    create_run(connection, path=path)
    assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    connection.close()


@pytest.mark.parametrize(
    "command",
    [
        *("show RUN", "sql RUN", "status RUN", "resume RUN", "resume RUN -d", "judge --run RUN"),
        *("train --replay RUN:1", "serve RUN --socket s.sock", "archive RUN --no-weights"),
        *("eval RUN --suite kernelbench-l1", "data prompt tanh --run RUN"),
    ],
)
def test_a_run_of_another_version_is_refused_by_every_command_in_one_line(
    command: str, canned_run: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    connection = connect(canned_run.run_db)
    connection.execute("PRAGMA application_id = 7")
    connection.close()
    with canned_run.experiment.open("a") as file:
        file.write("[gone]\nkey = 1\n")
    argv = [each.replace("RUN", str(canned_run.root)) for each in command.split()]
    said = told(capsys, *argv, code=2)
    assert "run.db: no database of this forge" in said
    assert said.count("\n") == 1


BLOCKS = read_blocks("sql")


@pytest.fixture(scope="module")
def run_db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("docs") / "toy-1"
    call = ToolCall(message="Docs?", tool="docs", arguments={}, result="tl.load", seconds=0.5)
    anyio.run(write_run, root, [*small_run(), replace(turn(9), calls=(call,))])
    return root / "run.db"


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_a_query_of_a_document_answers_in_stock_sqlite3(run_db: Path, block: Block) -> None:
    with closing(connect(run_db)) as stock:
        assert stock.execute(block.text).fetchall()


BOUNDED = re.compile(
    r"SCAN (\(subquery-\d+\)|latest|g|o|k|a|open_\w+|live_\w+)$|SCAN \w+ VIRTUAL TABLE"
)
"""Lists that do not grow with the run: results of subqueries (`g` is live_groups, `o` open_steps),
kernels of one step, groups being played, attempts, JSON."""


@pytest.fixture
def run(tmp_path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    create_run(connection, path=tmp_path)
    return connection


def scans(run: sqlite3.Connection, sql: str, params: dict[str, object]) -> list[str]:
    """Steps of a statement's plan that read a whole table."""
    with closing(run.execute(f"EXPLAIN QUERY PLAN {sql}", params)) as rows:
        plan = [row[3] for row in rows]
    return [line for line in plan if line.startswith("SCAN") and not BOUNDED.match(line)]


LATEST = "SCAN groups USING INDEX groups_by_step"
"""From its end, LIMIT 1."""


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        *((sql, []) for sql in (*rollups._SETTLE, run_state._TRAINED, run_state._LAST_TRAINED)),
        (writer._SPENT, [LATEST]),
    ],
)
def test_a_statement_reads_no_more_for_a_longer_run(
    run: sqlite3.Connection, sql: str, expected: list[str]
) -> None:
    asked = {"stage": 1, "step": 2, "attempt": 1, "num_steps": 3, "held": "[1]", "is_strict": True}
    assert scans(run, sql, asked) == expected
