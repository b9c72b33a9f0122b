"""`forge eval` on a server as a user runs it: killed in the middle, resumed, and its results."""

import json
import time
from collections import Counter
from pathlib import Path
from typing import ClassVar

import pytest

from tests.answering import Handler, answering
from tests.cli.relu_kernel import KERNEL
from tests.e2e.commands import forge, kill, opened, so_far, start, until
from tests.e2e.experiments import PROBLEM

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(400)]

FUNCTIONS = ("relu", "sigmoid", "tanh", "exp", "abs", "neg")


class ReluServer(Handler):
    """Answers every request with a correct ReLU, after a pause."""

    asked: ClassVar[Counter[str]] = Counter()
    """Requests by the function in the problem."""

    def do_GET(self) -> None:
        self.answer({"data": [{"id": "relu-1"}]})

    def do_POST(self) -> None:
        body = json.loads(self.read())
        problem = next(each["content"] for each in body["messages"] if each["role"] == "user")
        self.asked[next(each for each in FUNCTIONS if f"torch.{each}(" in problem)] += 1
        time.sleep(0.5)
        message = {"role": "assistant", "content": f"```python\n{KERNEL}```"}
        self.answer({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})


def finished_problems(root: Path) -> set[str]:
    found = so_far(root, "SELECT problem_id FROM groups WHERE num_rollouts > 0")
    return {name for (name,) in found}


def test_an_evaluation_that_was_killed_plays_only_what_is_missing(tmp_path: Path) -> None:
    for name in FUNCTIONS:
        file = tmp_path / "problems" / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(PROBLEM.format(name))
    root = tmp_path / "runs" / "eval-relu-1-problems-1"
    with answering(ReluServer) as url:
        options = ("--suite=problems", "--samples=2", "--turns=1", "--set=serve.slots=2")
        run = start(tmp_path, "eval", url, *options)
        until(run, lambda: len(finished_problems(root)) >= 2, what="two groups")
        kill(run, root)
        finished = finished_problems(root)
        before = Counter(ReluServer.asked)
        forge("resume", root.name, cwd=tmp_path)
    assert 2 <= len(finished) < 6
    later = ReluServer.asked - before
    assert later == {name: 2 for name in FUNCTIONS if name not in finished}
    result = json.loads((root / "results.json").read_text())
    assert result["metrics"]["pass_at_k"]["1"][0] == pytest.approx(1 / 6)
    assert result["counts"]["num_judged_problems"] == 6
    assert {n: p["num_correct"] for n, p in result["suite"]["problems"].items()}["relu"] == 2
    assert "| relu-1 | problems | 6 of 6 |" in (root / "leaderboard.md").read_text()
    with opened(root) as db:
        rows = db.execute("SELECT num_rollouts FROM v_fast_p WHERE p = 0").fetchall()
        turns = db.execute("SELECT sum(num_turns) FROM v_problems WHERE purpose = 'eval'")
        assert (rows, turns.fetchone()) == ([(12,)], (12,))


def test_a_search_that_was_killed_keeps_every_answer(tmp_path: Path) -> None:
    for name in FUNCTIONS[:2]:
        file = tmp_path / "problems" / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(PROBLEM.format(name))
    root = tmp_path / "runs" / "solve-relu-1-2-problems-1"
    with answering(ReluServer) as url:
        before = sum(ReluServer.asked.values())
        options = (f"--model={url}", "--budget=24", "--set=stage.0.depth=4")
        run = start(tmp_path, "solve", "problems", *options)
        until(run, lambda: answers(root) >= 8, what="eight answers")
        kill(run, root)
        kept = answers(root)
        forge("resume", root.name, cwd=tmp_path)
        asked = sum(ReluServer.asked.values()) - before
    assert 8 <= kept < 24
    again = 2 * 6  # those on their way, and those judged in the last 100 ms, before a commit
    assert 24 <= answers(root) <= asked <= 24 + again
    with opened(root) as db:
        correct = db.execute(
            "SELECT problem_id, count(*) FROM v_turns WHERE is_correct GROUP BY problem_id"
        ).fetchall()
    assert [name for name, _ in correct] == ["relu"]
    forge("kernels", "export", root.name, "--out", "best", cwd=tmp_path)
    assert (tmp_path / "best" / "relu" / "kernel.py").is_file()


def answers(root: Path) -> int:
    return len(so_far(root, "SELECT 1 FROM verdicts"))
