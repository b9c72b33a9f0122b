"""SQL from users: several runs, nothing written, interruptible, output safe for terminals."""

import itertools
import json
import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import anyio
import pytest

from forge.cli import run_command
from forge.errors import ConfigError
from forge.store.reader import RowStream, RowTable, explain_sql, open_run
from forge.views import sql
from forge.views.text import json_text
from tests.store.storefactory import attempt, group, problem, small_run, turn, write_run
from tests.views.terminals import EVIL, command, shown, told

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT {} FROM n"
WRITES = (
    "DELETE FROM turns",
    "UPDATE turns SET reward = 1",
    "INSERT INTO events (at, kind, message, data) VALUES (1, 'x', 'x', '{}')",
    "DROP VIEW v_steps",
    "CREATE TABLE main.mine (x)",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA user_version = 99",
    "ATTACH 'other.db' AS other",
    "VACUUM",
    "VACUUM INTO 'copy.db'",
    "REINDEX",
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, one with plain texts, one with compressed ones."""
    root = tmp_path_factory.mktemp("runs")
    anyio.run(write_run, root / "toy-1", small_run())
    anyio.run(lambda: write_run(root / "toy-2", small_run(1), texts="zstd"))
    return root


def contents(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in store.glob("toy-*/run.db")}


@pytest.mark.parametrize("statement", WRITES)
def test_sql_that_writes_is_refused_in_one_line(store: Path, statement: str) -> None:
    before = contents(store)
    with (
        open_run(store / "toy-1") as reader,
        pytest.raises(ConfigError) as error,
        explain_sql(sql.PLACE),
    ):
        reader.query(statement)
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 2
    assert contents(store) == before
    assert not Path("copy.db").exists()


@pytest.mark.parametrize(
    "argv",
    [
        ["show", "RUN"],
        ["sql", "RUN", "--named", "failures"],
        ["rollouts", "RUN"],
        ["compare", "RUN", "RUN"],
        ["export", "parquet", "RUN", "--out", "OUT"],
        ["data", "from-run", "RUN", "--out", "OUT.jsonl"],
        ["sql", "RUN", "SELECT code FROM v_turns"],
    ],
    ids=lambda argv: " ".join(argv[:2]),
)
def test_a_damaged_run_is_one_line(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str]
) -> None:
    damaged = tmp_path / "damaged-1"
    damaged.mkdir()
    whole = bytearray((store / "toy-1" / "run.db").read_bytes())
    with open_run(store / "toy-1") as reader:
        pages = "SELECT rootpage FROM sqlite_master WHERE rootpage > 0 AND name <> 'runs'"
        for (page,) in reader.query(pages).rows:
            whole[4096 * (page - 1) : 4096 * page] = b"\xff" * 4096
    (damaged / "run.db").write_bytes(whole)
    paths = {
        "RUN": str(damaged),
        "OUT": str(tmp_path / "out"),
        "OUT.jsonl": str(tmp_path / "o.jsonl"),
    }
    assert run_command([paths.get(word, word) for word in argv]) in (2, 3)
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "malformed" in printed
    assert list(tmp_path.glob("o*/*")) + list(tmp_path.glob("*.jsonl")) == []


def test_a_named_query_takes_parameters(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["sql", "toy-1", "--named", "batch", "--json", "--store", str(store)]
    assert {row["step"] for row in json.loads(told(capsys, *argv, "--param", "step=1"))} == {1}
    assert "NAME=VALUE" in told(capsys, *argv, "--param", "step", code=2)
    argv = ["sql", "toy-1", "SELECT count(*) AS n FROM turns WHERE turn = :t", "--json"]
    assert json.loads(told(capsys, *argv, "--param", "t=1", "--store", store)) == [{"n": 8}]


def test_ctrl_c_ends_an_endless_query_and_the_run_is_intact(store: Path) -> None:
    before = contents(store)
    argv = command("sql", "toy-1", ENDLESS.format("count(*)"), "--store", str(store))
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        _wait_for_cpu(child.pid, seconds=1.0)
        asked = time.monotonic()
        child.send_signal(signal.SIGINT)
        try:
            _, printed = child.communicate(timeout=30)
        finally:
            child.kill()  # else it runs for ever
    assert time.monotonic() - asked < 25
    assert child.returncode == 130
    assert printed in (b"", b"forge: stopped by Ctrl-C\n"), "no traceback"
    assert contents(store) == before
    with open_run(store / "toy-1") as reader:
        assert reader.value("SELECT count(*) FROM turns") == 24


def _wait_for_cpu(pid: int, *, seconds: float) -> None:
    """Waits until the child has used this much CPU time, so it is in its query."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") > seconds:
            return
        time.sleep(0.05)
    raise AssertionError("the child did not reach its query")


def test_an_endless_result_is_written_while_it_is_fetched() -> None:
    """`forge sql ... --json | head` ends without the last row."""
    assert next(sql.json_parts(_endless())) == '[{"x": 1}'


def _endless() -> RowStream:
    return RowStream(columns=("x",), rows=((n,) for n in itertools.count(1)))


def test_a_terminal_shows_the_first_rows_and_a_note() -> None:
    text = shown(sql.render_found(_endless(), most=3))
    assert "the first 3 rows; --json prints all" in text
    table = RowTable(columns=("x",), rows=((1,), (2,)))
    assert "first" not in shown(sql.render_found(table, most=2))


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("evil") / "toy-1"
    played = group(0, [])
    anyio.run(write_run, root, [attempt(), problem(0), played, turn(0, completion=EVIL)])
    return root


def on_a_terminal(argv: list[str]) -> str:
    """Output of the command on a terminal."""
    ours, its = pty.openpty()
    with subprocess.Popen(argv, stdout=its, stderr=its, stdin=subprocess.DEVNULL) as child:
        os.close(its)
        out = b""
        try:
            while read := os.read(ours, 65536):
                out += read
        except OSError:  # Linux says so when the last writer has gone
            pass
        finally:
            os.close(ours)
    assert child.returncode == 0
    return out.decode()


def test_a_terminal_that_says_it_has_no_columns_gets_text(
    evil: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    assert "gnp.exe" in on_a_terminal(command("sql", str(evil), "SELECT completion FROM v_turns"))


def test_a_file_gets_the_exact_text(evil: Path) -> None:
    query = "SELECT completion FROM v_turns"
    done = subprocess.run(
        command("sql", str(evil), query, "--json"), capture_output=True, check=True
    )
    assert json.loads(done.stdout) == [{"completion": EVIL}]


def test_json_has_the_same_value_with_control_characters_escaped() -> None:
    text = json_text({"x": EVIL + "\ud800\x7f é 漢"})
    assert json.loads(text) == {"x": EVIL + "\ud800\x7f é 漢"}
    assert not set("\x1b\x07\x9b\u202e\r\x7f\ud800") & set(text)
    assert "é 漢" in text
