"""`forge status` of a run whose supervisor is silent: what the store has, then exit 5."""

import json
import os
import socket
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from forge.cli import run_command
from forge.cli.explaining import explain
from forge.commands import detach
from forge.commands.detach import run_detached
from forge.errors import ConfigError, Stalled
from forge.process import control
from forge.process.sockets import open_socket_dir
from forge.store.layout import RunPaths, create_run, open_run_lock, read_status, write_status
from forge.views import logs
from forge.views.logs import parse_filter, read_logs
from tests.views.terminals import told


@pytest.fixture
def control_socket(canned_run: RunPaths) -> Iterator[Path]:
    """The path that a running supervisor has recorded; nothing is there yet."""
    with open_socket_dir() as folder, open_run_lock(canned_run):
        path = folder / "control.sock"
        found = {"control_socket": str(path), "pid": os.getpid()}
        write_status(canned_run, read_status(canned_run) | found)
        yield path


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_silent_supervisor_is_an_exit_code_behind_what_the_store_has(
    canned_run, control_socket, monkeypatch, capsys, options
):
    monkeypatch.setattr(control, "TIMEOUT_S", 0.1)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(control_socket))
        silent.listen()
        code = run_command(["status", str(canned_run.root), *options])
    said = capsys.readouterr()
    assert code == 5
    assert "was silent for 0.1 s; asked: GET /status" in said.err
    assert "quickstart-1" in said.out
    if options:
        assert "was silent for 0.1 s" in json.loads(said.out)["silence"]


def test_a_supervisor_that_has_just_begun_is_no_failure(canned_run, control_socket, capsys):
    assert not control_socket.exists()
    assert json.loads(told(capsys, "status", canned_run.root, "--json"))["silence"] is None


def test_a_finished_run_has_five_lines(canned_run, capsys):
    first, evaluated, gained, best, more = told(capsys, "status", canned_run.root).splitlines()
    assert first.endswith("done, attempt 1, took 6m23, ended 2026-11-21 18:14 UTC")
    assert evaluated.startswith("latest evaluation: pass@1 54.7 %")
    assert "sft-1 +21.9 points (95 %: +9.4 to +34.4); grpo-3 +12.5 points" in gained
    assert best.endswith("not timed (g294.r5.t0)")
    assert "forge tui quickstart-1" in more
    (canned_run.root / "report.html").touch()
    assert run_command(["status", str(canned_run.root)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("quickstart-1/report.html")


def test_a_stage_without_rows_has_trained_nothing(canned_run, capsys):
    with closing(sqlite3.connect(canned_run.root / "run.db")) as db, db:
        db.execute("DELETE FROM events WHERE kind = 'sft_rows'")
        db.execute(
            "INSERT INTO events (at, kind, message, data, attempt) "
            """VALUES (0, 'sft_rows', 'sft-1: no correct answer; left out', '{"stage":1}', 1)"""
        )
    said = told(capsys, "status", canned_run.root)
    assert "sft-1 +" not in said
    assert "grpo-3 +12.5 points" in said


def test_a_run_is_listed_with_date_duration_and_its_best_evaluation(canned_run, capsys):
    assert run_command(["runs", "--store", str(canned_run.root.parent)]) == 0
    cells = [cell.strip() for cell in capsys.readouterr().out.splitlines()[2].split("│")]
    assert cells[1:4] == ["done", "2026-11-21 18:08", "6m23"]
    # grpo-3@10 has 62.5 %, of 16 problems: the lower end of its interval is below that of eval-4
    assert cells[-1] == "54.7 % (eval-4)"


NO_GPU = "quickstart needs 9 GPUs (train 9); this machine has 0."


@pytest.mark.parametrize(
    ("code", "log", "message"),
    [
        (3, f"a plan\nof lines\nforge: {NO_GPU}\n", f"forge: {NO_GPU}\n"),
        (2, "x.toml:1: a\nx.toml:2: b\n", "x.toml:1: a\nx.toml:2: b\n"),
        (70, "Traceback ...\nKeyError\nforge: this is a bug in", None),
        (9, "", "forge: the run ended with 9\n"),
    ],
)
def test_the_error_of_a_failed_start_is_printed_once(tmp_path, capsys, code, log, message):
    (tmp_path / "log").write_text(log)
    error = detach._ended(code, tmp_path / "log")
    assert not (tmp_path / "log").exists()
    if message is None:
        assert str(error) == log
        return
    assert explain(error) == code
    assert capsys.readouterr().err == message


def test_an_old_run_with_the_same_pid_is_not_mistaken_for_it(tmp_path):
    old, new = (create_run("x", store_dir=tmp_path) for _ in range(2))
    write_status(old, {"pid": 7, "at": 100.0})
    write_status(new, {"pid": 7, "at": 200.0})
    assert detach._run_of(7, tmp_path, since=150.0) == new
    assert detach._run_of(7, tmp_path, since=250.0) is None


def test_a_command_that_makes_no_run_in_time_is_stopped_and_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(detach, "START_TIMEOUT_S", 0.01)
    with pytest.raises(Stalled, match="the detached run was silent"):
        run_detached(["plan", "nothing.toml"], store_dir=tmp_path)


RUN = """#!{python}
import json, os, pathlib, time
root = pathlib.Path({store!r}, "x-1")
(root / "logs").mkdir(parents=True)
print("the plan", flush=True)
status = {{"pid": os.getpid(), "sid": os.getsid(0), "at": time.time()}}
(root / ".new").write_text(json.dumps(status))
(root / ".new").rename(root / "STATUS.json")
"""
"""A stand-in for the supervisor: it writes only what its starter reads."""


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_a_started_run_has_its_own_session_and_its_log(tmp_path, monkeypatch):
    script = tmp_path / "python"
    script.write_text(RUN.format(python=sys.executable, store=str(tmp_path / "runs")))
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    paths = run_detached(["run", "x.toml"], store_dir=tmp_path / "runs")
    assert paths.name == "x-1"
    assert (paths.root / "logs" / "console.log").read_text() == "the plan\n"
    status = read_status(paths)
    assert status["sid"] == status["pid"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["x-1"]


TRAINER = """\
2026-11-21 18:08:39,064 forge.train INFO imports took 3 s
2026-11-21 18:08:40,000 forge.train WARNING memory is short
Traceback (most recent call last):
  File "x.py", line 1
ValueError: \x1b[31mred
2026-11-21 18:08:41,000 forge.train INFO step 1
"""
SERVE = "2026-11-21 18:08:40,500 ERROR forge.serve: died\n"


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    made = create_run("x", store_dir=tmp_path)
    (made.logs(1) / "trainer.log").write_text(TRAINER)
    (made.logs(1) / "serve-0.log").write_text(SERVE)
    return made


def shown(
    paths: RunPaths,
    process: str | None = None,
    *,
    num: int = 20,
    level: str | None = None,
    pattern: str | None = None,
) -> list[str]:
    return list(read_logs(paths, parse_filter(process, level, pattern), num_lines=num))


def test_lines_are_chosen_by_level_with_their_continuation_lines(paths):
    assert [line.split()[0] for line in shown(paths, level="error")] == ["serve-0"] + 3 * [
        "trainer"
    ]
    assert len(shown(paths, "trainer", level="WARNING")) == 4
    assert "ValueError: ␛[31mred" in shown(paths, "trainer", level="warning")


def test_a_pattern_that_takes_too_long_is_refused(paths):
    (paths.logs(1) / "trainer.log").write_text("a" * 3000 + "!\n")
    with pytest.raises(ConfigError, match="too slow for these lines"):
        shown(paths, pattern="(a+)+$")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (("loud", None), "--level: found 'loud'; allowed are debug, info, warning, error"),
        ((None, "("), "not a regular expression"),
    ],
)
def test_an_invalid_filter_is_refused(wanted, expected):
    with pytest.raises(ConfigError, match=expected):
        parse_filter(None, *wanted)


@pytest.mark.parametrize("level", [None, "info"])
def test_new_lines_are_followed_until_the_run_ends(paths, monkeypatch, level):
    log = paths.logs(1) / "serve-0.log"
    looks = iter([True, True, False])
    monkeypatch.setattr(logs, "is_owned", lambda paths: next(looks))

    def write(seconds: float) -> None:
        with log.open("a") as file:
            file.write("2026-11-21 18:08:42,000 INFO forge.serve: again\n")

    monkeypatch.setattr(logs, "time", SimpleNamespace(**{**vars(logs.time), "sleep": write}))
    wanted = parse_filter("serve-0", level, None)
    found = list(read_logs(paths, wanted, num_lines=1, is_followed=True))
    assert [line.rpartition(" ")[2] for line in found] == ["died", "again", "again"]


@pytest.mark.parametrize("level", [None, "info"])
def test_a_log_that_appears_later_is_followed_and_a_deleted_one_is_skipped(
    paths, monkeypatch, level
):
    looks = iter([True, True, False])
    monkeypatch.setattr(logs, "is_owned", lambda paths: next(looks))

    def begin(seconds: float) -> None:
        (paths.logs(1) / "judge-0.log").write_text("INFO judge: here\n")
        (paths.logs(1) / "serve-0.log").unlink(missing_ok=True)
        (paths.logs(1) / "trainer.log").write_text("INFO trainer: cut off\n")

    monkeypatch.setattr(logs, "time", SimpleNamespace(**{**vars(logs.time), "sleep": begin}))
    wanted = parse_filter(None, level, None)
    found = list(read_logs(paths, wanted, num_lines=1, is_followed=True))
    assert [line.split()[0] for line in found] == ["serve-0", "trainer", "judge-0", "trainer"]
    assert found[3].endswith("cut off")
