"""`forge judge --run`: a run's answers judged again, beside its own verdicts."""

import json
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from forge import cli
from forge.commands.judge import again
from forge.records import GroupStart, Purpose, Status, Turn, Verdict
from forge.records.problem import ReferenceModule, Shape
from forge.store.layout import RunPaths, open_run_lock
from forge.store.reader import open_run
from tests.e2e.commands import wait_for
from tests.store.storefactory import problem, turn, write_run

EXPERIMENT = """\
name = "toy"
[model]
init = "tiny"
[[stage]]
kind = "eval"
"""
PROBLEMS = [problem(0), problem(1)]
SLOW_JUDGE = """\
import sys
from tests.cli import test_judge_again as tests
from forge.commands.judge import again
from forge import cli
again.open_private_pool = tests.opens(tests.FakePool(pause_s=0.2))
sys.exit(cli.run_command(["judge", "--run", sys.argv[1], "--device", "cpu"]))
"""


class FakePool:
    """Judges a source by the status in its first line; notes what it is asked."""

    def __init__(self, *, failing: str = "none", pause_s: float = 0.0) -> None:
        self.asked: list[tuple[str, str]] = []
        self.problems: dict[str, ReferenceModule] = {}
        self.tables: list[Any] = []
        self.failing, self._pause_s = failing, pause_s
        self.seating = SimpleNamespace(seats=[SimpleNamespace(capacity=1)])

    async def judge(self, asked: ReferenceModule, code: str) -> Verdict:
        await anyio.sleep(self._pause_s)
        self.asked.append((asked.problem_id, code))
        self.problems[asked.problem_id] = asked
        status = Status(code.partition("\n")[0].removeprefix("# "))
        if self.failing in code:
            status = Status.INFRA_ERROR
        return Verdict(status=status, reason="again", detail="now\n\x1b[1m", device="cpu")


def opens(pool: FakePool) -> Any:
    @asynccontextmanager
    async def open_fake(table: Any, **_: Any) -> AsyncGenerator[FakePool]:
        pool.tables.append(table)
        yield pool

    return open_fake


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> FakePool:
    fake = FakePool()
    monkeypatch.setattr(again, "open_private_pool", opens(fake))
    return fake


def answer(group_id: int, own: Status, now: Status, *, tag: str = "", rollout: int = 0) -> Turn:
    return turn(group_id, rollout, status=own, code=f"# {now}\n# {tag}\n")


def start(group_id: int, problem_id: str) -> GroupStart:
    return GroupStart(
        group_id=group_id, problem_id=problem_id, purpose=Purpose.TRAIN, stage=1, step=1
    )


def make_run(root: Path, turns: list[Turn], *, experiment: str = EXPERIMENT) -> Path:
    """A run whose group n is about problem n % 2."""
    groups = {each.group_id for each in turns}
    starts = [start(number, PROBLEMS[number % 2].problem_id) for number in sorted(groups)]
    anyio.run(write_run, root, [*PROBLEMS, *starts, *turns])
    (root / "experiment.toml").write_text(experiment)
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    nothing = turn(5, status=Status.REJECTED)
    return make_run(
        tmp_path / "toy-1",
        [
            answer(0, Status.CORRECT, Status.CORRECT, tag="a"),
            answer(0, Status.CORRECT, Status.CORRECT, tag="a", rollout=1),
            answer(1, Status.CORRECT, Status.CORRECT, tag="a"),
            answer(2, Status.CORRECT, Status.WRONG, tag="b"),
            answer(3, Status.REJECTED, Status.CORRECT, tag="c"),
            replace(nothing, code=""),
        ],
    )


def judge(root: Path, *options: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    assert cli.run_command(["judge", "--run", str(root), "--device", "cpu", *options]) == code
    printed = capsys.readouterr()
    return printed.out if code in (0, 3) else printed.err


def own_rows(root: Path) -> Any:
    with open_run(root) as reader:
        tables = ("turns", "verdicts", "texts", "groups", "problems", "attempts", "events")
        return {name: reader.rows(f"SELECT * FROM {name}") for name in tables}


def test_what_changed_is_reported_beside_the_runs_own_verdicts(root, pool, capsys):
    before = own_rows(root)
    found = json.loads(judge(root, "--json", capsys=capsys))
    assert {(c["own_status"], c["status"]): c["num_turns"] for c in found["counts"]} == {
        ("correct", "correct"): 3, ("correct", "wrong"): 1, ("rejected", "correct"): 1,
    }  # fmt: skip
    assert [each["turn_id"] for each in found["changed"]] == ["g2.r0.t0", "g3.r0.t0"]
    assert (found["num_turns"], found["num_changed"], found["num_without_code"]) == (5, 2, 1)
    assert own_rows(root) == before
    assert len(pool.asked) == 4, "equal answers to a problem are judged once"
    with open_run(root) as reader:
        assert reader.value("SELECT sum(is_changed) FROM v_judged_again WHERE is_whole") == 2


def test_the_report_has_a_table_and_shows_no_control_characters(root, pool, capsys):
    text = judge(root, capsys=capsys)
    lines = [line.split() for line in text.splitlines()]
    assert ["in", "the", "run", "\\", "now", "correct", "wrong"] in lines
    assert ["correct", "3", "1"] in lines
    assert ["rejected", "1"] in lines
    assert "g2.r0.t0" in text
    assert "\x1b[1m" not in text


def test_options_replace_the_runs_own_settings(root, pool, capsys):
    experiment = EXPERIMENT + '[judge]\nnum_inputs = 7\npolicy = "own"\nurl = ["unix:/x"]\n'
    (root / "experiment.toml").write_text(experiment)
    judge(root, "--protocol", "kernelbench", "--timeout", "99", capsys=capsys)
    judge(root, "--policy", "own", capsys=capsys)
    judge(root, "--protocol", "drkernel", "--policy", "own", capsys=capsys)
    first, second, third = pool.tables
    assert (first.protocol, first.policy, first.num_inputs) == ("kernelbench", "hybrid", 7)
    assert (first.correct_timeout_s, first.url) == (99.0, [])
    assert (second.protocol, second.policy) == ("forge", "own")
    assert third.rules == "drkernel:own"


def test_a_pass_with_other_settings_and_one_after_a_whole_one_are_new(root, pool, capsys):
    for options in ((), (), ("--protocol", "drkernel")):
        judge(root, *options, capsys=capsys)
    with open_run(root) as reader:
        rows = reader.query("SELECT judging, protocol, ended_at IS NULL FROM judgings").rows
        assert list(rows) == [(1, "forge", 0), (2, "forge", 0), (3, "drkernel", 0)]
        assert reader.value("SELECT count(*) FROM verdicts_again") == 15


def test_a_candidate_that_the_machine_fails_on_is_judged_by_the_next_command(root, pool, capsys):
    pool.failing = "# b\n"
    assert "1 candidates that the machine could not judge" in judge(root, capsys=capsys, code=3)
    pool.failing, pool.asked = "none", []
    found = json.loads(judge(root, "--json", capsys=capsys))
    assert (found["judging"], found["num_turns"], found["num_failed"]) == (1, 5, 0)
    assert pool.asked == [("softmax-0000", "# wrong\n# b\n")]


def test_a_killed_pass_continues_where_it_was(tmp_path, pool, capsys):
    turns = [answer(n, Status.WRONG, Status.CORRECT, tag=str(n)) for n in range(12)]
    root = make_run(tmp_path / "toy-1", turns)
    killed = subprocess.Popen([sys.executable, "-c", SLOW_JUDGE, str(root)], cwd=Path.cwd())

    def num_judged() -> int:
        with open_run(root) as reader:
            if not reader.value("SELECT count(*) FROM main.sqlite_master WHERE name = 'judgings'"):
                return 0
            return reader.value("SELECT count(*) FROM verdicts_again")

    wait_for(lambda: num_judged() >= 2, timeout_s=30, what="two verdicts")
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    left = num_judged()
    assert left < 12
    found = json.loads(judge(root, "--json", capsys=capsys))
    assert (found["judging"], found["num_turns"]) == (1, 12)
    assert len(pool.asked) == 12 - left


def test_a_running_run_is_refused(root, pool, capsys):
    with open_run_lock(RunPaths(root)):
        assert "already running as pid" in judge(root, capsys=capsys, code=2)
    assert not pool.asked


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--shape", "N=1"], "--shape is not allowed with it"),
        (["--serve"], "--serve is not allowed with it"),
        (["x.py"], "problem is not allowed with it"),
        (["--protocol", "x"], "--protocol x: one of forge, kernelbench, drkernel"),
        (["--policy", "x"], "--policy x: one of own, hybrid"),
        (["--url", "http://h:1"], "--device must be set where the pool is served"),
    ],
)
def test_an_option_without_a_meaning_is_refused(root, pool, capsys, options, words):
    assert words in judge(root, *options, capsys=capsys, code=2)
    assert not pool.asked


def test_problems_with_shapes_are_loaded_again_and_must_be_the_same(
    tmp_path, pool, capsys, monkeypatch
):
    experiment = EXPERIMENT.replace(
        "[[stage]]", '[problems]\nsource = "dir"\npath = "problems"\nshapes = [{ N = 1 }]\n'
        "[[stage]]", 1,
    ).replace('init = "tiny"', 'path = "model"')  # fmt: skip
    root = make_run(
        tmp_path / "toy-1", [answer(0, Status.CORRECT, Status.CORRECT)], experiment=experiment
    )
    shapes = (Shape(name="N=1", source="s"),)
    loaded = [replace(each, shapes=shapes) for each in PROBLEMS]
    monkeypatch.setattr(again, "load_problems", lambda table, seed: loaded)
    judge(root, capsys=capsys)
    assert pool.problems["softmax-0000"].shapes == shapes
    loaded[1] = replace(loaded[1], source="another")
    words = judge(root, capsys=capsys, code=2)
    assert "problems.shapes: softmax-0001 has changed since the run (1 of 2 problems have)" in words
