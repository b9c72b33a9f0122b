"""A whole run through the command line: killed, resumed, read, archived, interrupted and asked; its
checkpoint used on another set of problems.
"""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.e2e.commands import children_of_run, forge, kill, opened, start, until
from tests.e2e.experiments import FUNCTION, TINY, write_problems

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

EXPERIMENT = f"""\
name = "small"
{TINY}[problems]
num_problems = 120
sft_by_level = [20, 20, 20, 20]
[data]
repair_share = 0.05
[judge]
workers = 1
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
steps = 40
learning_rate = 3e-3
batch_size = 2
save_every = 5
[[stage]]
kind = "eval"
num_problems = 2
"""

ONE_MORE = '\n[[stage]]\nkind = "eval"\nnum_problems = 1\n'

OTHERS = """\
name = "others"
[prompt]
preset = "tiny"
[model]
path = "runs/small-1/weights/sft-000040"
[problems]
source = "dir"
path = "problems"
overrides = { batch_size = 8 }
shapes = [{ dim = 64 }, { dim = 100 }]
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


def is_training(root: Path, *, pid: int) -> bool:
    status = json.loads((root / "STATUS.json").read_text())
    return status["pid"] == pid and status["stage"] == "sft-1"


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a run that was killed in SFT; the run itself is `finished`."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "small.toml").write_text(EXPERIMENT)
    root = folder / "runs" / "small-1"
    run = start(folder, "run", "small.toml")
    until(run, lambda: any(root.glob("checkpoints/stage-1/checkpoint-*")), what="a checkpoint")
    assert children_of_run(root)
    kill(run, root)
    shutil.copytree(root, folder / "kept" / "small-1", symlinks=True)
    return folder / "kept" / "small-1"


@pytest.fixture(scope="module")
def finished(killed: Path) -> Path:
    """The killed run, resumed to its end; tests leave it as it is."""
    root = killed.parents[1] / "runs" / "small-1"
    resumed = forge("resume", "small-1", cwd=root.parents[1])
    assert "eval-2: pass@1 of level 1 " in resumed.stdout + resumed.stderr
    return root


def test_a_run_survives_kill_9_and_can_be_read(finished: Path) -> None:
    cwd = finished.parents[1]
    shown = json.loads(forge("show", "small-1", "--json", cwd=cwd).stdout)
    assert [e["stage"] for e in shown["evaluations"]] == ["eval-0", "eval-2"]
    needed = {"stage", "pass_at_1", "ci_low", "ci_high", "num_problems", "num_samples"}
    assert all(needed | {"compile_rate"} <= set(e) for e in shown["evaluations"])
    with opened(finished) as db:
        (turns,) = db.execute("SELECT count(*) FROM turns").fetchone()
        (attempts,) = db.execute("SELECT count(*) FROM attempts").fetchone()
    assert turns == shown["counters"]["turns"] > 0
    assert attempts == 2
    forge("resume", "small-1", cwd=cwd)


def test_an_archive_is_continued_elsewhere(finished: Path, tmp_path: Path) -> None:
    root, file = tmp_path / "runs" / "small-1", tmp_path / "elsewhere" / "small.forge.zip"
    shutil.copytree(finished, root, symlinks=True)
    experiment = root / "experiment.toml"
    experiment.write_text(experiment.read_text() + ONE_MORE)  # as if stopped before it
    file.parent.mkdir()
    forge("archive", str(root), "--out", str(file), cwd=tmp_path)
    continued = forge("resume", str(file), cwd=tmp_path)
    copy = file.parent / "small-1"
    assert f"{file}: unpacked to {copy}" in continued.stderr
    with opened(copy) as db:
        stages = db.execute("SELECT stage FROM evaluations ORDER BY evaluation_id").fetchall()
    assert stages == [("eval-0",), ("eval-2",), ("eval-3",)]


@pytest.mark.long
def test_ctrl_c_ends_a_run_that_a_resume_finishes(killed: Path) -> None:
    stopped = start(killed.parent, "resume", str(killed))
    until(stopped, lambda: is_training(killed, pid=stopped.pid), what="the resumed run to train")
    os.kill(stopped.pid, signal.SIGINT)
    errors = stopped.communicate(timeout=120)[1]
    assert stopped.returncode == 130, errors
    assert "forge resume" in errors
    assert not children_of_run(killed)
    forge("resume", str(killed), cwd=killed.parent)
    with opened(killed) as db:
        assert db.execute("SELECT count(*) FROM attempts").fetchone() == (3,)


@pytest.mark.long
def test_forge_eval_gives_the_figures_of_the_runs_own_evaluation(finished: Path) -> None:
    cwd = finished.parents[1]
    evaluated = forge("eval", "small-1", "--json", cwd=cwd)
    first = (
        "SELECT problem_id, is_greedy, rollout, completion, status FROM v_turns "
        "WHERE purpose = 'eval' AND turn = 0 AND stage = (SELECT max(stage_index) FROM evaluations)"
        " ORDER BY 1, 2, 3"
    )
    figures = (
        "SELECT pass_at_1, ci_low, ci_high, pass_at_1_greedy, pass_at_1_multi, compile_rate, "
        "num_problems, num_samples, max_turns FROM evaluations"
    )
    with opened(finished) as own, opened(finished.parent / "eval-small-1-heldout-1") as again:
        assert own.execute(first).fetchall() == again.execute(first).fetchall() != []
        last = own.execute(f"{figures} ORDER BY evaluation_id DESC LIMIT 1").fetchall()
        assert last == again.execute(figures).fetchall()
    result = json.loads(evaluated.stdout)
    assert result["metrics"]["pass_at_k"]["1"][0] == last[0][0]
    assert len(result["weights_sha256"]) == 64


@pytest.mark.long
def test_a_search_by_a_runs_model_leaves_the_run_as_it_was(finished: Path) -> None:
    cwd = finished.parents[1]
    before = forge("show", "small-1", "--json", cwd=cwd).stdout
    latest = (finished / "logs" / "latest").readlink()
    (cwd / "f.py").write_text(FUNCTION)
    solved = forge("solve", "f.py", "--model", "small-1", "--budget", "2", "--json", cwd=cwd)
    told = json.loads(solved.stdout)
    assert [(row["problem_id"], row["num_answers"]) for row in told["problems"]] == [("f", 2)]
    with opened(Path(told["path"])) as db:
        stored = db.execute("SELECT purpose, parents FROM groups ORDER BY group_id").fetchall()
    assert stored == [("search", "[]"), ("search", '["g0.r0.t0"]')]
    assert forge("show", "small-1", "--json", cwd=cwd).stdout == before
    assert (finished / "logs" / "latest").readlink() == latest


@pytest.mark.long
def test_grpo_on_a_directory_of_problems_reports_that_the_model_gets_no_signal(
    finished: Path,
) -> None:
    cwd = finished.parents[1]
    write_problems(cwd / "problems")
    (cwd / "others.toml").write_text(OTHERS)
    forge("run", "others.toml", cwd=cwd, code=5)
    with opened(cwd / "runs" / "others-1") as db:
        purposes = db.execute(
            "SELECT purpose, count(*) > 0, count(status) = count(*) FROM v_turns GROUP BY purpose"
        ).fetchall()
        sources = [source for (source,) in db.execute("SELECT prompt FROM v_turns WHERE turn = 0")]
    assert purposes == [("eval", 1, 1), ("train", 1, 1)]
    assert all("batch_size = 8\ndim = 64\n" in source for source in sources)
    assert all("#   dim=64\n#   dim=100" in source for source in sources)
