"""Acknowledged rows: their file never exceeds run.db, and shows what a run.db from elsewhere
lacks."""

import shutil
import sqlite3
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from forge.errors import MachineError
from forge.records import Event, Status
from forge.store.acknowledged import SLOT_BYTES, Acknowledged, Acknowledger, read_acknowledged
from forge.store.layout import RunPaths
from forge.store.reader import find_faults, open_run, refuse_damage
from forge.store.resume import last_state, untrained_groups
from forge.store.write.writer import open_writer
from tests.store.storefactory import (
    Options,
    attempt,
    edit,
    group,
    make_root,
    samples,
    small_run,
    turn,
    use,
    write_run,
)


def known(root: Path) -> Acknowledged:
    return read_acknowledged(RunPaths(root).acknowledged)


async def test_the_counts_and_ids_are_those_of_the_committed_rows(tmp_path: Path) -> None:
    root = tmp_path / "toy-1"
    make_root(root)
    offered = samples(group(7, [[Status.WRONG], [Status.CORRECT]], version=3), first_id=5)
    async with open_writer(root, Options()) as writer:
        await writer.put(attempt(), turn(0), turn(1))
        await writer.flush()
        assert known(root) == Acknowledged(commits=1, turns=2, group_id=1, policy_version=0)
        await writer.put(group(7, [[Status.WRONG], [Status.CORRECT]], version=3), *offered)
        await writer.put(turn(1))  # again
        await writer.flush()
        assert known(root) == Acknowledged(
            commits=2, turns=4, group_id=7, sample_id=6, policy_version=3
        )
    await write_run(root, [turn(8)])
    assert known(root) == Acknowledged(
        commits=3, turns=5, group_id=8, sample_id=6, policy_version=3
    )


async def test_ids_stay_when_rows_are_lost_and_counts_begin_again_with_the_next_commit(
    tmp_path: Path,
) -> None:
    root, copy = tmp_path / "toy-1", tmp_path / "older.db"
    await write_run(root, [attempt(), turn(0)])
    shutil.copy(root / "run.db", copy)
    await write_run(root, small_run())
    whole = known(root)
    shutil.copy(copy, root / "run.db")
    with open_run(root) as reader:
        state = last_state(reader)
    assert (state.group_id, state.sample_id, state.policy_version) == (7, 17, 3)
    async with open_writer(root, Options()) as writer:
        assert known(root) == whole, "nothing was committed yet"
        await writer.put(Event(at=1.0, kind="x", message="x"))
        await writer.flush()
        assert known(root) == Acknowledged(
            commits=2, turns=1, group_id=7, sample_id=17, policy_version=3
        )


async def test_a_torn_slot_leaves_the_one_before_it(tmp_path: Path) -> None:
    root = tmp_path / "toy-1"
    path = RunPaths(root).acknowledged
    for number in range(1, 6):
        await write_run(root, [turn(number)])
        assert read_acknowledged(path).turns == number
        assert path.stat().st_size <= 2 * SLOT_BYTES
    content, found = path.read_bytes(), []
    for slot in (0, 1):
        torn = bytearray(content)
        torn[slot * SLOT_BYTES + 20] ^= 1
        path.write_bytes(torn)
        found.append(read_acknowledged(path).turns)
    assert sorted(found) == [4, 5]
    path.write_bytes(b"\xff" * 300)
    assert read_acknowledged(path) == Acknowledged()


async def rows_of_the_file_alone(root: Path, copy: Path, *, wanted: int) -> None:
    """Waits until run.db without its WAL has the rows."""
    with anyio.fail_after(20):
        while True:
            shutil.copy(root / "run.db", copy)
            with (
                suppress(sqlite3.DatabaseError),  # copied while it was written
                closing(sqlite3.connect(copy)) as connection,
            ):
                if connection.execute("SELECT count(*) FROM sample_uses").fetchone() == (wanted,):
                    return
            await anyio.sleep(0.01)


async def test_each_step_end_copies_the_wal_into_run_db_also_beside_a_long_read(
    tmp_path: Path,
) -> None:
    root = tmp_path / "toy-1"
    make_root(root)
    played = [group(n, [[Status.WRONG], [Status.CORRECT]], step=n) for n in (1, 2)]
    async with open_writer(root, Options()) as writer:
        for each in played:
            offered = samples(each, first_id=10 * each.group_id)
            await writer.put(each, *offered)
            await writer.put(*(use(sample, step=each.group_id) for sample in offered))
            await writer.flush()
            await rows_of_the_file_alone(root, tmp_path / "copy.db", wanted=2 * each.group_id)
        with closing(sqlite3.connect(root / "run.db", isolation_level=None)) as reading:
            reading.execute("BEGIN")
            reading.execute("SELECT count(*) FROM turns").fetchone()
            offered = samples(played[0], first_id=40)
            await writer.put(*offered)
            await writer.put(*(use(sample, step=3) for sample in offered))
            await writer.flush()
            assert reading.execute("SELECT count(*) FROM sample_uses").fetchone() == (4,)
    assert not list(root.glob("*-wal")), "run.db alone is whole at the end"


async def test_groups_from_before_rows_were_lost_are_not_trained_again(tmp_path: Path) -> None:
    played = [group(n, [[Status.WRONG], [Status.CORRECT]]) for n in (1, 2)]
    lost = Event(at=1.0, kind="rows_missing", message="", data={"group_id": 1, "sample_id": 3})
    root = await write_run(tmp_path / "toy-1", [attempt(), *played])
    with open_run(root) as reader:
        assert [g.group_id for g in untrained_groups(reader, stage=1)] == [1, 2]
    await write_run(root, [lost])
    with open_run(root) as reader:
        assert [g.group_id for g in untrained_groups(reader, stage=1)] == [2]


async def damage_page(root: Path, table: str) -> None:
    with open_run(root) as reader:
        page = reader.value("SELECT rootpage FROM main.sqlite_master WHERE name = ?", (table,))
    with (root / "run.db").open("r+b") as file:
        file.seek(4096 * (page - 1))
        file.write(b"\xff" * 4096)


async def test_damage_of_run_db_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    root = await write_run(tmp_path / "toy-1", small_run())
    refuse_damage(RunPaths(root))
    assert find_faults(root / "run.db") == find_faults(root / "tokens.db") == []
    await damage_page(root, "turns")
    with pytest.raises(MachineError, match=r"run\.db: damaged: .*; put a copy of it") as error:
        refuse_damage(RunPaths(root))
    assert "\n" not in str(error.value)
    assert find_faults(root / "run.db")


async def test_damaged_tokens_are_named_by_the_writer(tmp_path: Path) -> None:
    root = await write_run(tmp_path / "toy-1", small_run())
    (root / "tokens.db").write_bytes(b"\xff" * 8192)
    with pytest.raises(MachineError, match=r"tokens\.db: damaged: .* move it and its -wal away"):
        await write_run(root, [])
    (root / "tokens.db").unlink()
    await write_run(root, [turn(50)])


async def test_a_schema_number_set_to_0_is_named(tmp_path: Path) -> None:
    root = await write_run(tmp_path / "toy-1", small_run())
    edit(root / "run.db", "PRAGMA user_version = 0")
    said = 'it has tables: .*"PRAGMA user_version = 1"'
    with pytest.raises(MachineError, match=said):
        await write_run(root, [])
    with pytest.raises(MachineError, match=said):
        open_run(root)


async def test_ids_are_reserved_before_a_reader_can_see_their_rows(tmp_path: Path) -> None:
    root = tmp_path / "toy-1"
    make_root(root)
    offered = samples(group(7, [[Status.WRONG], [Status.CORRECT]], version=3), first_id=5)
    await write_run(root, [attempt(), *offered])
    before, paths = known(root), RunPaths(root)
    with closing(sqlite3.connect(root / "run.db", isolation_level=None)) as run:
        acknowledger = Acknowledger(run, paths.acknowledged)
        columns = [row[1] for row in run.execute("PRAGMA table_info(samples)")]
        others = ", ".join(name for name in columns if name != "sample_id")
        run.execute("BEGIN IMMEDIATE")
        run.execute(
            f"INSERT INTO samples (sample_id, {others}) SELECT 9, {others} FROM samples LIMIT 1"
        )
        acknowledger.reserve()
        assert known(root) == replace(before, sample_id=9)
        run.execute("ROLLBACK")  # as if the process ended, or its WAL were cut later
        acknowledger.reserve()
        acknowledger.acknowledge()
        assert known(root) == replace(before, commits=2, sample_id=9)
        acknowledger.close()
    with open_run(root) as reader:
        assert last_state(reader).sample_id == 9
