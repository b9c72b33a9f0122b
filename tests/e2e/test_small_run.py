"""A whole run through the command line: interrupted, killed, resumed, read, queried, and its
checkpoint used on another set of problems.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.commands import children_of_run, forge, start, wait_for
from tests.e2e.experiments import FUNCTION, PROBLEM

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

EXPERIMENT = """\
name = "small"
[model]
init = "tiny"
[model.tiny]
hidden_size = 64
num_layers = 2
num_heads = 2
num_kv_heads = 1
intermediate_size = 128
vocab_size = 512
[problems]
num_problems = 300
sft_by_level = [20, 20, 20, 20]
[data]
repair_share = 0.05
[rollout]
max_completion_tokens = 64
[eval]
samples = 1
max_turns = 2
[store]
texts = "plain"
[[stage]]
kind = "eval"
num_problems = 2
max_turns = 1
[[stage]]
kind = "sft"
steps = 200
learning_rate = 3e-3
batch_size = 2
save_every = 10
[[stage]]
kind = "eval"
num_problems = 2
"""

OTHERS = """\
name = "others"
[model]
path = "runs/small-1/weights/sft-000200"
[problems]
source = "dir"
path = "problems"
overrides = { batch_size = 4, dim = 64 }
[store]
texts = "plain"
[rollout]
group_size = 2
groups_per_step = 2
max_completion_tokens = 64
max_turns = 2
[[stage]]
kind = "eval"
samples = 1
max_turns = 2
[[stage]]
kind = "grpo"
steps = 1
learning_rate = 1e-4
"""


def sft_has_begun(root: Path) -> bool:
    return any(root.glob("checkpoints/stage-1/checkpoint-*"))


def is_training(root: Path, *, pid: int) -> bool:
    status = json.loads((root / "STATUS.json").read_text())
    return status["pid"] == pid and status["stage"] == "sft-1"


def test_a_run_survives_kill_9_and_ctrl_c_and_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(EXPERIMENT)
    root = tmp_path / "runs" / "small-1"

    killed = start(tmp_path, "run", "small.toml")
    wait_for(lambda: sft_has_begun(root), timeout_s=150, what="a checkpoint of SFT")
    assert children_of_run(root)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    wait_for(lambda: not children_of_run(root), timeout_s=5, what="the children to end")

    stopped = start(tmp_path, "resume", "small-1")
    wait_for(
        lambda: is_training(root, pid=stopped.pid), timeout_s=100, what="the resumed run to train"
    )
    os.kill(stopped.pid, signal.SIGINT)
    errors = stopped.communicate(timeout=120)[1]
    assert stopped.returncode == 130, errors
    assert "forge resume" in errors
    assert not children_of_run(root)

    finished = forge("resume", "small-1", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    shown = json.loads(forge("show", "small-1", "--json", cwd=tmp_path).stdout)
    assert [e["stage"] for e in shown["evaluations"]] == ["eval-0", "eval-2"]
    needed = {"stage", "pass_at_1", "ci_low", "ci_high", "num_problems", "num_samples"}
    assert all(needed | {"compile_rate"} <= set(e) for e in shown["evaluations"])
    with closing(sqlite3.connect(f"file:{root}/run.db?mode=ro", uri=True)) as db:
        (turns,) = db.execute("SELECT count(*) FROM turns").fetchone()
        (attempts,) = db.execute("SELECT count(*) FROM attempts").fetchone()
    assert turns == shown["counters"]["turns"] > 0
    assert attempts == 3
    again = forge("resume", "small-1", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    ask(tmp_path, root)
    play_others(tmp_path)


def ask(cwd: Path, root: Path) -> None:
    """Runs `forge chat` and `forge.solve`: each is judged and stored beside the run, which stays as
    it was."""
    before = forge("show", "small-1", "--json", cwd=cwd).stdout
    latest = (root / "logs" / "latest").readlink()
    (cwd / "f.py").write_text(FUNCTION)
    chatted = forge("chat", "small-1", "--problem", "f.py", "--turns", "2", "--json", cwd=cwd)
    assert chatted.returncode == 0, chatted.stderr
    played = json.loads(chatted.stdout)
    solved = subprocess.run(
        [sys.executable, "-c", SOLVE], cwd=cwd, capture_output=True, text=True, timeout=100,
        check=False,
    )  # fmt: skip
    assert solved.returncode == 0, solved.stderr
    stored = "SELECT problem_id, count(*) FROM v_turns WHERE purpose = 'chat' GROUP BY group_id"
    wanted = {"chat/f": len(played["turns"]), "chat/stdin": int(solved.stdout)}
    for number, (problem, num_turns) in enumerate(wanted.items(), start=1):
        store = root.parent / "chats" / f"small-1-{number}"
        with closing(sqlite3.connect(f"file:{store}/run.db?mode=ro", uri=True)) as db:
            ((name, count),) = db.execute(stored).fetchall()
        assert (name.rpartition("-")[0], count) == (problem, num_turns)
    assert played["store"] == str(root.parent / "chats" / "small-1-1")
    shown = forge("show", "runs/chats/small-1-1", cwd=cwd).stdout
    assert f"chat with small-1, policy version {played['policy_version']}" in shown
    assert forge("show", "small-1", "--json", cwd=cwd).stdout == before
    assert (root / "logs" / "latest").readlink() == latest


SOLVE = f"import forge; print(len(forge.solve({FUNCTION!r}, run='small-1', turns=1).turns))"


def play_others(cwd: Path) -> None:
    """Evaluates a directory in KernelBench's layout, then runs GRPO, which reports that this model
    gets no signal from it.
    """
    (cwd / "problems" / "level1").mkdir(parents=True)
    for name in ("tanh", "sigmoid", "exp"):
        (cwd / "problems" / "level1" / f"{name}.py").write_text(PROBLEM.format(name))
    (cwd / "others.toml").write_text(OTHERS)
    done = forge("run", "others.toml", cwd=cwd)
    assert done.returncode == 5, done.stderr
    with closing(sqlite3.connect(f"file:{cwd}/runs/others-1/run.db?mode=ro", uri=True)) as db:
        purposes = db.execute(
            "SELECT purpose, count(*) > 0, count(status) = count(*) FROM v_turns GROUP BY purpose"
        ).fetchall()
        sources = [source for (source,) in db.execute("SELECT prompt FROM v_turns WHERE turn = 0")]
    assert purposes == [("eval", 1, 1), ("train", 1, 1)]
    assert all("batch_size = 4\ndim = 64\n" in source for source in sources)
