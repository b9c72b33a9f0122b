"""Invalid arguments of commands that read a run are one line; missing data is reported."""

import json
from pathlib import Path

import anyio
import pytest

from forge.cli import run_command
from tests.store.storefactory import edit, small_run, write_run
from tests.views.terminals import told

HUGE = "9" * 25


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    anyio.run(write_run, root / "toy-1", small_run())
    return root


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["rollouts", "--id", f"g{HUGE}.r0"], "--id"),
        (["rollouts", "--id", f"g0.r{HUGE}"], "--id"),
        (["rollouts", "--limit", HUGE], "--limit"),
        (["rollouts", "--step", HUGE], "--step"),
        (["rollouts", "--stage", f"-{HUGE}"], "--stage"),
        (["rollouts", "--level", HUGE], "--level"),
        (["rollouts", "--problem", "\udcff"], "'\\udcff': no UTF-8 at 0"),
        (["sql", "toy-1", "SELECT '\udcff'"], "no UTF-8 at 8"),
        (["rollouts", "--min-speedup", "nan"], "--min-speedup nan"),
        (["sql", "toy-1", "SELECT :x", "--param", f"x={HUGE}"], "--param x"),
        (["sql", "--named", "batch", "--param", f"step={HUGE}"], "--param step"),
        (["sql", "toy-1", "selec 1"], "syntax error"),
        (["sql", "toy-1", "select nope from turns"], "no such column: nope"),
        (["sql", "toy-1", "select 1; select 2"], "one statement"),
        (["sql", "toy-1", "select text(code_id, 1) from turns"], "wrong number of arguments"),
        (["rollouts", "--status", "corect"], "--status"),
        (["rollouts", "--purpose", "x"], "--purpose"),
        (["rollouts", "--limit", "0"], "--limit"),
        (["sql", "toy-1", ""], "the query is empty"),
        (["sql", "toy-1", " \n"], "the query is empty"),
        (["sql", "toy-1", "/* nothing */"], "without a result; use SELECT"),
        (["sql", "toy-1", "BEGIN IMMEDIATE", "--json"], "without a result; use SELECT"),
        (["sql", "toy-1", "CREATE TEMP TABLE a (b)"], "without a result; use SELECT"),
        (["sql", "toy-1", "SELECT 1", "--named", "idle"], "--named"),
        (["sql", "toy-1", "SELECT 1", "--list"], "--list"),
    ],
)
def test_an_invalid_argument_is_one_line(
    store: Path, capsys: pytest.CaptureFixture[str], argv: list[str], expected: str
) -> None:
    assert run_command([*argv, "--store", str(store)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert expected in printed.err


def test_columns_of_the_same_name_keep_their_values_in_json(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["sql", "toy-1", "SELECT 1 AS a, 2 AS a, 3 AS b, 4 AS a", "--store", str(store)]
    assert json.loads(told(capsys, *argv, "--json")) == [{"a": 1, "a:1": 2, "b": 3, "a:2": 4}]


@pytest.mark.parametrize("more", [[], ["--turns"]])
def test_missing_rollouts_are_reported_as_none(
    store: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    argv = ["rollouts", "toy-1", "--problem", "nope-*", "--store", str(store), *more]
    assert told(capsys, *argv) == "no such rollout\n"
    assert json.loads(told(capsys, *argv, "--json")) == []


def test_a_folder_without_runs_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["runs", "--store", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (
        "",
        f"{tmp_path}/ holds no runs; --store names another directory\n",
    )
    assert told(capsys, "runs", "--store", tmp_path, "--json") == "[]\n"


def test_numbers_that_are_not_finite_are_null_in_json_and_break_no_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    anyio.run(write_run, tmp_path / "inf-1", small_run())
    for changed in (
        "turns SET reward = 9e999",
        "evaluations SET pass_at_1 = -9e999",
        "verdicts SET speedup = 9e999, speedup_low = 9e999",
    ):
        edit(tmp_path / "inf-1" / "run.db", f"UPDATE {changed}")
    for argv in (["show"], ["rollouts"], ["rollouts", "--turns"], ["compare", "inf-1"]):
        assert run_command([*argv, "inf-1", "--store", str(tmp_path), "--json"]) == 0
        json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    json.loads(told(capsys, "runs", "--store", tmp_path, "--json"), parse_constant=pytest.fail)
    assert run_command(["report", "inf-1", "--store", str(tmp_path)]) == 0
    assert (tmp_path / "inf-1" / "report.html").is_file()
