"""Nodes of a run with `[cluster]`: in SQL, in `forge status`, in the report."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from forge.cli import run_command
from forge.commands.status_view import render_nodes
from forge.records import ProcessEnd, ProcessStart
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from forge.views.report.write import write_report
from forge.views.run_state import load_nodes
from tests.store.storefactory import attempt, write_run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

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
    console = Console(width=150)
    with open_run(run) as reader, console.capture() as captured:
        console.print(render_nodes(load_nodes(reader), now=301.0))
    lost, up = captured.get().splitlines()[1:]
    assert lost.split() == [*JUDGES.split(), "judge", "2", "–", "2", "lost", "1m40", "ago:",
                            *LOST.split()]  # fmt: skip
    assert "up, joined 3m19 ago" in up


async def test_status_lists_nodes_as_text_and_as_json(
    run: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["status", str(run.root)]) == 0
    assert JUDGES in capsys.readouterr().out
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
    assert run_command(["status", str(paths.root)]) == 0
    assert "roles" not in capsys.readouterr().out
