"""Archives on the command line: written, listed, read and unpacked like a run."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest

from forge.cli import run_command
from forge.store.layout import RunPaths

READS = (("show", "--json"), ("sql", "SELECT count(*) FROM turns"), ("rollouts", "--best"))


@pytest.fixture
def store(canned_run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with one finished run; temporary files have a directory of their own, whose path is
    too long for a socket.
    """
    temporary = canned_run.root.parents[1] / "t" / ("d" * 100)
    temporary.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return canned_run.root.parent


def forge(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    code = run_command([str(arg) for arg in argv])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_an_archive_is_read_like_its_run(store, capsys):
    run = store / "quickstart-1"
    direct = [forge(capsys, command, run, more) for command, more in READS]
    code, line, _ = forge(capsys, "archive", "quickstart-1", "--store", store)
    file = store / "quickstart-1.forge.zip"
    assert (code, line.startswith(f"{file}: ")) == (0, True)
    assert "forge resume continues it" in line

    (listed, archived) = json.loads(forge(capsys, "runs", "--store", store, "--json")[1])
    assert (listed["name"], archived["name"]) == ("quickstart-1", file.name)
    assert archived["state"] == f"{listed['state']}, archived"
    assert archived["num_turns"] == listed["num_turns"]
    shutil.rmtree(run)
    read = [forge(capsys, command, file, more) for command, more in READS]
    shown, shown_before = json.loads(read.pop(0)[1]), json.loads(direct.pop(0)[1])
    assert shown == {**shown_before, "path": str(file)}
    assert read == direct
    code, line, _ = forge(capsys, "report", file)
    assert (code, line.strip()) == (0, f"{store}/quickstart-1.html")
    assert (store / "quickstart-1.html").stat().st_size > 10_000
    assert forge(capsys, "logs", file, "-n", "1")[0] == 0
    assert list((store.parent / "t").rglob("forge-*")) == []


def test_a_moved_run_is_listed_wherever_it_is(store, capsys):
    (store / "quickstart-1").rename(store / "best of november")
    (row,) = json.loads(forge(capsys, "runs", "--store", store, "--json")[1])
    assert row["name"] == "best of november"
    assert forge(capsys, "show", "best of november", "--store", store)[0] == 0
    (store / "best of november").rename(store.parent / "elsewhere")
    for place in (store.parent / "elsewhere", store.parent):
        (row,) = json.loads(forge(capsys, "runs", place, "--json")[1])
        assert row["path"] == str(store.parent / "elsewhere")
    code, _, said = forge(capsys, "runs", store / "none")
    assert (code, said) == (2, f"forge: {store}/none: no such file or directory\n")


def test_a_file_that_is_no_archive_is_one_line(store, capsys):
    file = store / "x.forge.zip"
    file.write_bytes(b"PK\x03\x04 garbage")
    for command in ("show", "sql", "report", "resume", "logs", "rollouts"):
        code, _, said = forge(capsys, command, file)
        assert (code, said.count("\n")) == (2, 1), command
        assert said.startswith(f"forge: {file}: no archive of a run, or one that was cut off")
    rows = json.loads(forge(capsys, "runs", "--store", store, "--json")[1])
    assert [row["state"].startswith("unreadable") for row in rows] == [False, True]
    assert list((store.parent / "t").rglob("forge-*")) == []


def test_an_archive_without_weights_cannot_be_resumed(store, capsys):
    to = store.parent / "small.zip"
    assert forge(capsys, "archive", store / "quickstart-1", "--no-weights", "--out", to)[0] == 0
    code, _, said = forge(capsys, "resume", to)
    assert (code, "weights/, checkpoints/, batches/ are not in it" in said) == (3, True)
    assert forge(capsys, "archive", to)[0] == 2
    code, _, said = forge(capsys, "serve", store / "a.forge.zip", "--socket", store / "s")
    assert (code, "no such run" in said) == (2, True)
