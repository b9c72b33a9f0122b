"""Rows of any query are readable on a terminal of any width, and complete."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from forge.cli import run_command
from forge.commands.status import render_nodes
from forge.records import ProcessEnd, ProcessStart
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from forge.views.fitting import Fitting
from forge.views.report.page import write_report
from forge.views.run_state import load_nodes
from tests.store.storefactory import attempt, write_run
from tests.views.terminals import shown, told

WIDE = (
    ("problem_id", *(f"a_long_name_{n}" for n in range(12)), "code"),
    (("softmax-0001", *range(12), "def f():\n    return [1]\x1b[2J"), ("p", *[None] * 13)),
)
RATES = (
    ("stage", "policy_version", "pass_at_1", "pass_at_1_greedy", "compile_rate"),
    (("eval-0", 1, 0.21875, None, 0.123456), ("grpo-3@10", 21, 0.5, 0.25, 1.0)),
)


def drawn(columns: Sequence[str], rows: Sequence[Any], *, width: int) -> list[str]:
    lines = shown(Fitting(columns, rows), width=width).splitlines()
    assert max(map(len, lines)) <= width
    return [line.rstrip() for line in lines]


def test_a_table_that_fits_with_folded_names_is_one_with_shorter_numbers() -> None:
    lines = drawn(*RATES, width=48)
    heads = lines[: next(n for n, line in enumerate(lines) if "──" in line)]
    assert " ".join(heads).split().count("pass_") == 2
    assert heads[-1].split() == ["stage", "version", "at_1", "greedy", "rate"]
    assert [line.split() for line in lines[-2:]] == [
        ["eval-0", "1", "0.2188", "0.1235"],
        ["grpo-3@10", "21", "0.5", "0.25", "1"],
    ]


def test_a_time_is_shown_to_the_second() -> None:
    lines = drawn(("at", "loss"), ((1795259248.118, 1.5e-7),), width=80)
    assert lines[-1].split(" │ ") == [" 1795259248.1", "1.5e-07"]


@pytest.mark.parametrize(
    ("width", "heads"),
    [(80, "stage policy_version pass_at_1 pass_at_1_greedy compile_rate"),
     (66, "stage policy_version pass_at_1 compile_rate"), (30, "stage compile_rate")],
)  # fmt: skip
def test_columns_that_may_go_are_left_out_before_names_are_folded(width: int, heads: str) -> None:
    gone = ("pass_at_1_greedy", "policy_version", "pass_at_1")
    text = shown(Fitting(*RATES, expendable=gone), width=width)
    assert text.splitlines()[0].replace("┃", " ").split() == heads.split()


@pytest.mark.parametrize("width", [40, 80])
def test_a_table_with_too_many_columns_is_one_block_per_row(width: int) -> None:
    lines = drawn(*WIDE, width=width)
    assert lines[:3] == ["─ row 1", "problem_id      softmax-0001", "a_long_name_0   0"]
    assert "    return [1]␛[2J" in "\n".join(lines)
    assert lines[lines.index("─ row 2") :] == ["─ row 2", "problem_id  p"]


def test_rows_without_columns_and_columns_without_rows_are_drawn() -> None:
    assert not shown(Fitting((), ()), width=80).strip()
    assert drawn(("a", "b"), (), width=80)[0] == " a ┃ b"


JUDGES, ENGINES = "gpu-7 10.0.0.7", "gpu-8 10.0.0.8"
LOST = "its host is gone: the node 10.0.0.7 has died"


def start(name: str, devices: str, *, at: float, number: int = 1) -> ProcessStart:
    return ProcessStart(
        attempt=number, name=name, pid=int(at), devices=devices, started_at=at,
        log_path=f"logs/{name}.log",
    )  # fmt: skip


def end(name: str, *, began: float, at: float, reason: str) -> ProcessEnd:
    return ProcessEnd(attempt=1, name=name, pid=int(began), ended_at=at, reason=reason)


RECORDS = [
    attempt(),
    start("judge-0", f"{JUDGES}: GPU-a", at=100.0),
    start("judge-1", f"{JUDGES}: GPU-b", at=101.0),
    start("serve-0", f"{ENGINES}: GPU-c, GPU-d", at=102.0),
    start("trainer", "GPU-e", at=103.0),
    end("judge-0", began=100.0, at=200.0, reason=LOST),
    end("judge-1", began=101.0, at=201.0, reason=LOST),
    start("judge-0", f"{ENGINES}: cpu", at=210.0),
]


@pytest.fixture
async def run(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "toy-1")
    await write_run(paths.root, RECORDS)
    return paths


async def test_a_lost_node_and_the_one_that_took_its_judge(run: RunPaths) -> None:
    with open_run(run) as reader:
        lost, up = load_nodes(reader, judged=[(ENGINES, 7), (ENGINES, 2)])
    assert (lost["node"], lost["roles"], lost["num_gpus"]) == (JUDGES, "judge", 2)
    assert (lost["state"], lost["num_lost"], lost["num_running"]) == ("lost", 2, 0)
    assert (lost["joined_at"], lost["left_at"], lost["reason"]) == (100.0, 201.0, LOST)
    assert (up["node"], up["state"], up["num_lost"]) == (ENGINES, "up", 0)
    assert sorted(up["roles"].split(", ")) == ["judge", "serve"]
    assert (up["num_children"], up["num_gpus"], up["left_at"]) == (2, 2, None)
    assert (lost["num_judged"], up["num_judged"]) == (None, 9)


async def test_a_table_says_since_when_a_node_is_up_or_lost(run: RunPaths) -> None:
    with open_run(run) as reader:
        text = shown(render_nodes(load_nodes(reader), now=301.0), width=150)
    lost, up = text.splitlines()[1:]
    assert lost.split() == [*JUDGES.split(), "judge", "2", "–", "2", "lost", "1m40", "ago:",
                            *LOST.split()]  # fmt: skip
    assert "up, joined 3m19 ago" in up


async def test_status_lists_nodes_as_text_and_as_json(
    run: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert JUDGES in told(capsys, "status", run.root)
    assert run_command(["status", str(run.root), "--json"]) == 0
    assert [row["state"] for row in json.loads(capsys.readouterr().out)["nodes"]] == ["lost", "up"]


async def test_the_report_has_a_table_of_nodes(run: RunPaths, tmp_path: Path) -> None:
    page = write_report(run, out=tmp_path / "report.html").read_text()
    assert "<summary>Nodes</summary>" in page
    assert LOST in page


async def test_a_run_on_one_machine_has_no_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = RunPaths(tmp_path / "toy-2")
    await write_run(paths.root, [attempt(), start("trainer", "GPU-e, GPU-f", at=1.0)])
    with open_run(paths) as reader:
        assert load_nodes(reader) == []
    assert "roles" not in told(capsys, "status", paths.root)
