"""A run in one file: written whole or not at all, read, unpacked, and refused if it is hostile."""

import fcntl
import json
import os
import random
import shutil
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from forge.errors import ConfigError, ForgeError, MachineError
from forge.store import archive
from forge.store.archive import MANIFEST, unpack_to_read, unpack_to_resume, write_archive
from forge.store.layout import RunPaths, open_run_lock, write_status
from forge.store.reader import open_run
from forge.store.write.writer import open_writer
from tests.store.storefactory import Options, make_root, small_run, write_run

GOOD = {"format": 1, "name": "toy-1", "has_weights": True}


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    """A run with weights, a checkpoint, logs of two attempts, and files that are left out."""
    paths = RunPaths(tmp_path / "runs" / "toy-1")
    anyio.run(write_run, paths.root, small_run())
    for attempt in (1, 2):
        (paths.logs(attempt) / "trainer.log").write_text(f"attempt {attempt}\n")
    for name in (
        "weights/sft-9/model.safetensors", "checkpoints/stage-0/checkpoint-9/fsdp/.metadata",
        "batches/0-000010.npz", "lock", "serve/model.gguf", "weights/.sft-10.partial/x",
        ".STATUS.7", "data/pairs.jsonl",
    ):  # fmt: skip
        path = paths.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    write_status(paths, {"pid": 7})
    return paths


def rows(paths: RunPaths) -> list[str]:
    with open_run(paths) as reader:
        return [str(row) for row in reader.query("SELECT * FROM v_turns ORDER BY turn_id").rows]


def made_zip(path: Path, entries: dict[str, bytes], manifest: object = GOOD) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(MANIFEST, json.dumps(manifest))
        for name, content in entries.items():
            file.writestr(name, content)
    return path


def test_a_run_comes_back_from_its_archive(run: RunPaths, tmp_path: Path) -> None:
    before = rows(run)
    file = tmp_path / "toy.forge.zip"
    assert write_archive(run, file, with_weights=True)[0] == file
    back = unpack_to_resume(file)
    assert back.root == tmp_path / "toy-1"
    assert rows(back) == before
    kept = {p.relative_to(back.root).as_posix() for p in back.root.rglob("*") if p.is_file()}
    assert {
        "weights/sft-9/model.safetensors", "checkpoints/stage-0/checkpoint-9/fsdp/.metadata",
        "batches/0-000010.npz", "data/pairs.jsonl", "STATUS.json", "experiment.toml", "tokens.db",
    } <= kept  # fmt: skip
    assert not kept & {"lock", "serve/model.gguf", "weights/.sft-10.partial/x", ".STATUS.7"}
    assert (back.root / "logs" / "latest" / "trainer.log").read_text() == "attempt 2\n"
    assert os.listdir(tmp_path / "runs") == ["toy-1"], "nothing is left beside"


def test_an_archive_is_unpacked_beside_a_run_of_the_same_name(run: RunPaths) -> None:
    file = run.root.with_name("toy-1.forge.zip")
    write_archive(run, file, with_weights=True)
    assert unpack_to_resume(file).name == "toy-2"
    assert unpack_to_resume(file).name == "toy-3"
    assert sorted(os.listdir(file.parent)) == ["toy-1", "toy-1.forge.zip", "toy-2", "toy-3"]


def test_without_weights_it_is_read_but_not_resumed(run: RunPaths, tmp_path: Path) -> None:
    file = tmp_path / "toy.forge.zip"
    write_archive(run, file, with_weights=False)
    assert not any("safetensors" in name for name in zipfile.ZipFile(file).namelist())
    assert rows(unpack_to_read(file, tmp_path)) == rows(run)
    with pytest.raises(MachineError, match="weights/, checkpoints/, batches/ are not in it"):
        unpack_to_resume(file)


def test_a_running_run_is_archived_without_its_weights_only(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "toy-1")

    async def archive_while_it_is_written() -> None:
        make_root(paths.root)
        async with open_writer(paths, Options()) as writer:
            with open_run_lock(paths):
                await writer.put(*small_run())
                await writer.flush()
                with pytest.raises(ConfigError, match=r"already running .*--no-weights"):
                    write_archive(paths, tmp_path / "a", with_weights=True)
                write_archive(paths, tmp_path / "b", with_weights=False)

    anyio.run(archive_while_it_is_written)
    assert sorted(os.listdir(tmp_path)) == ["b", "toy-1"]
    (tmp_path / "unpacked").mkdir()
    assert rows(unpack_to_read(tmp_path / "b", tmp_path / "unpacked")) == rows(paths)


def test_an_interrupted_archive_leaves_nothing(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*given: object, **keys: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(archive.os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        write_archive(run, tmp_path / "toy.forge.zip", with_weights=True)
    assert os.listdir(tmp_path) == ["runs"]


def test_the_next_archive_deletes_what_a_killed_one_left(run: RunPaths, tmp_path: Path) -> None:
    for name in (".toy.7.part", ".toy.8.part"):
        (tmp_path / name).touch()
        (tmp_path / f"{name}-db").mkdir()
    with (tmp_path / ".toy.8.part").open() as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)
        write_archive(run, tmp_path / "toy", with_weights=False)
    assert sorted(os.listdir(tmp_path)) == [".toy.8.part", ".toy.8.part-db", "runs", "toy"]


def test_a_file_that_vanishes_fails_the_archive_unless_it_is_a_log(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vanished = run.root / "logs" / "attempt-1" / "notify-1.json"
    files = archive._files

    def with_vanished(root: Path) -> list[Path]:
        return [vanished, *files(root)]

    monkeypatch.setattr(archive, "_files", with_vanished)
    write_archive(run, tmp_path / "a", with_weights=True)
    vanished = run.weights / "model.safetensors"
    with pytest.raises(MachineError, match=r"model\.safetensors: cannot be archived: No such file"):
        write_archive(run, tmp_path / "b", with_weights=True)


@pytest.mark.parametrize(
    ("entries", "manifest", "words"),
    [
        ({"run.db": b"", "../evil": b""}, GOOD, r"nothing is unpacked: .* entry '\.\./evil'"),
        ({"run.db": b"", "/etc/evil": b""}, GOOD, "nothing is unpacked"),
        ({"run.db": b"", "a/../../evil": b""}, GOOD, "nothing is unpacked"),
        ({"run.db": b"", "a//b": b""}, GOOD, "nothing is unpacked"),
        ({"run.db": b"", "a/": b""}, GOOD, "nothing is unpacked"),
        ({"run.db": b"", "run.db-wal": b"x"}, GOOD, "nothing is unpacked"),
        ({"run.db": b"", "lock": b"1"}, GOOD, "nothing is unpacked"),
        ({"run.db": b"", "a\x1b[31m": b""}, GOOD, "nothing is unpacked"),
        ({"run.db": b"", "a": b"", "a/b": b""}, GOOD, "cannot be unpacked"),
        ({"other": b""}, GOOD, "has no run.db"),
        ({"run.db": b""}, {**GOOD, "name": "../../evil"}, "its run has the name"),
        ({"run.db": b""}, {**GOOD, "name": ".."}, "its run has the name"),
        ({"run.db": b""}, {**GOOD, "name": "a\x9b2J\u202e"}, "its run has the name"),
        ({"run.db": b""}, {**GOOD, "format": 2}, "format 2 of archives; this forge knows 1"),
        ({"run.db": b""}, {**GOOD, "has_weights": 1}, "has other keys"),
        ({"run.db": b""}, [], "has other keys"),
        ({"run.db": b""}, None, "has other keys"),
    ],
)
def test_a_hostile_archive_is_one_line_and_writes_nothing(
    entries: dict[str, bytes], manifest: object, words: str, tmp_path: Path
) -> None:
    file = made_zip(tmp_path / "x.zip", entries, manifest)
    read = tmp_path / "read"
    for unpack in (unpack_to_resume, lambda file: unpack_to_read(file, read)):
        read.mkdir()
        with pytest.raises(ForgeError, match=words) as error:
            unpack(file)
        assert "\n" not in str(error.value)
        assert error.value.exit_code in (2, 3)
        assert not any(path.name == "evil" for path in tmp_path.rglob("*"))
        shutil.rmtree(read)
    assert os.listdir(tmp_path) == ["x.zip"]


def test_a_link_in_an_archive_is_written_as_a_file(tmp_path: Path) -> None:
    file = made_zip(tmp_path / "x.zip", {"run.db": b""})
    link = zipfile.ZipInfo("weights")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(file, "a") as opened:
        opened.writestr(link, "/etc")
    with pytest.raises(MachineError, match="cannot be unpacked: File exists"):
        unpack_to_resume(file)  # `weights` is a file, where a folder must be
    assert os.listdir(tmp_path) == ["x.zip"]


def test_a_huge_declared_size_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    file = made_zip(tmp_path / "x.zip", {"run.db": b""})
    with zipfile.ZipFile(file, "a") as opened:
        opened.writestr("tokens.db", b"x")
        info = opened.getinfo("tokens.db")
        info.file_size = 1 << 60
    with pytest.raises(MachineError, match=r"1152921504\.6 GB unpacked, .* GB free"):
        unpack_to_resume(file)
    assert os.listdir(tmp_path) == ["x.zip"]


def test_a_bomb_writes_no_more_than_it_declares(tmp_path: Path) -> None:
    file = tmp_path / "x.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr(MANIFEST, json.dumps(GOOD))
        opened.writestr("run.db", bytes(1 << 20))
        opened.getinfo("run.db").file_size = 10
    with pytest.raises(ConfigError, match=r"damaged, or cut off: Bad CRC"):
        unpack_to_resume(file)
    assert os.listdir(tmp_path) == ["x.zip"]


def test_any_damage_is_one_line(run: RunPaths, tmp_path: Path) -> None:
    """Each of 300 archives with changed bytes, or cut off, is read or refused with one line."""
    good = tmp_path / "good"
    write_archive(run, good, with_weights=True)
    content, rng, num_refused = good.read_bytes(), random.Random(0), 0
    index = content.rindex(b"PK\x01\x02", 0, content.index(b"PK\x01\x02") + 4)
    for number in range(300):
        changed = bytearray(content)
        for _ in range(rng.randint(1, 4)):
            first = index if rng.random() < 0.5 else 0
            changed[rng.randrange(first, len(changed))] = rng.randrange(256)
        folder = tmp_path / str(number)
        folder.mkdir()
        size = rng.randrange(len(changed)) if number % 10 == 0 else len(changed)
        (folder / "x").write_bytes(changed[:size])
        refused, left = None, ["x"]
        try:
            left.append(unpack_to_resume(folder / "x").name)
        except ForgeError as error:
            refused = error
        assert sorted(os.listdir(folder)) == sorted(left)
        if refused is not None:
            num_refused += 1
            assert (refused.exit_code in (2, 3), "\n" in str(refused)) == (True, False)
    assert num_refused > 150


def test_a_killed_run_is_archived_with_the_rows_of_its_wal(run: RunPaths, tmp_path: Path) -> None:
    with closing(sqlite3.connect(run.run_db)) as db:
        db.execute("INSERT INTO events VALUES (99, 1, 1.0, 'late', '', '{}')")
        db.commit()
        assert run.root.joinpath("run.db-wal").stat().st_size > 0
        write_archive(run, tmp_path / "toy", with_weights=False)
    with open_run(unpack_to_read(tmp_path / "toy", tmp_path)) as reader:
        assert reader.value("SELECT count(*) FROM events WHERE kind = 'late'") == 1


def test_an_archive_overwrites_nothing(run: RunPaths, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    with pytest.raises(ConfigError, match="there: exists; --out names another file"):
        write_archive(run, tmp_path / "there", with_weights=False)
    with pytest.raises(MachineError, match=r"/no/there: cannot be archived: No such file"):
        write_archive(run, tmp_path / "no" / "there", with_weights=False)
