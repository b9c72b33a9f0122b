"""A node killed in each phase of a run on two and three Ray nodes: the run ends with 0, its turns
are whole, and nothing is left."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from forge.process.sockets import remove_left_dirs
from tests.cluster.nodes import LocalNodes, local_nodes, needs_ray
from tests.e2e.commands import children_of_run, last_trained, opened, so_far, start, until, wait_for
from tests.e2e.experiments import GRPO_EXPERIMENT

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(560),
    needs_ray,
]

EXPERIMENT = GRPO_EXPERIMENT.replace("workers = 1\n", "").replace(
    "[reward]",
    """\
[cluster]
address = "ADDRESS"
judges = 1
judge_on = "cpu"
serve = true
serve_on = "cpu"
train_nodes = 1
[eval]
max_turns = 1
[reward]""",
) + """\
[[stage]]
kind = "eval"
samples = 1024
"""  # fmt: skip
STEPS = 9
CPUS = 3
"""Room of a node: for a judge, an engine and a rank."""
STOPPED_S = 2.0
OUTAGE_S = 30.0
JUDGE = "forge.evalpool.judge.start"
ENGINE = "forge.serve.llama"
TRAINER = "forge.train.trainer"


@dataclass
class Run:
    nodes: LocalNodes
    root: Path
    process: subprocess.Popen[str]

    def has(self, module: str) -> bool:
        return any(f"-m {module} " in command for command in self.nodes.children())

    def began(self, stage: str) -> bool:
        query = "SELECT 1 FROM events WHERE kind = 'stage_start' AND message = ?"
        return so_far(self.root, query, stage) != []

    def stop(self, module: str) -> None:
        """Stop a child on a node, so that what it does next lasts until its node is lost."""
        for pid, command in self.nodes.pids().items():
            if f"-m {module} " in command:
                os.kill(pid, signal.SIGSTOP)
        time.sleep(STOPPED_S)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        until(self.process, condition, what=what)


def in_prepare(run: Run) -> str:
    run.until(lambda: run.has(JUDGE), "a judge")
    assert not run.began("grpo-0")
    return JUDGE


def in_rollout(run: Run) -> str:
    run.until(lambda: run.began("grpo-0"), "the stage")
    run.stop(ENGINE)
    assert last_trained(run.root) == 0
    return ENGINE


def in_training(run: Run) -> str:
    run.until(lambda: last_trained(run.root) >= 2, "two steps")
    run.stop(TRAINER)
    return TRAINER


def in_publish(run: Run) -> str:
    """The engine does not load the weights of the steps whose batches are played already."""
    run.until(lambda: last_trained(run.root) >= 2, "two steps")
    run.stop(ENGINE)
    return ENGINE


def in_evaluation(run: Run) -> str:
    run.until(lambda: run.began("eval-1"), "the evaluation")
    run.stop(JUDGE)
    return JUDGE


@pytest.fixture
def temp() -> Iterator[Path]:
    """A short TMPDIR of the test's own, since sockets are in it."""
    folder = Path(tempfile.mkdtemp(prefix="n", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def begin(nodes: LocalNodes, project: Path) -> Run:
    (project / "grpo.toml").write_text(EXPERIMENT.replace("ADDRESS", nodes.address))
    return Run(nodes, project / "runs" / "grpo-1", start(project, "run", "grpo.toml"))


@pytest.mark.parametrize("num_nodes", [2, 3])
@pytest.mark.parametrize("phase", [in_prepare, in_rollout, in_training, in_publish, in_evaluation])
def test_a_node_killed_in_any_phase_costs_no_turn_and_leaves_nothing(
    phase: Callable[[Run], str],
    num_nodes: int,
    grpo_project: Path,
    temp: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TMPDIR", str(temp))
    with local_nodes({"TMPDIR": str(temp)}) as nodes:
        for _ in range(num_nodes - 1):
            nodes.add("work", cpus=CPUS)
        run = begin(nodes, grpo_project)
        try:
            nodes.kill(nodes.holder(phase(run)))
            if num_nodes == 2:
                nodes.add("work", cpus=CPUS)  # joins late, and is used
            errors = run.process.communicate(timeout=400)[1]
        finally:
            run.process.kill()
            run.process.communicate()
        assert run.process.returncode == 0, errors
        require_whole(run.root)
        assert children_of_run(run.root) == []
        wait_for(lambda: nodes.children() == [], timeout_s=20, what="the hosts' children to end")
        wait_for(lambda: nodes.num_actors() == 0, timeout_s=20, what="the actors to end")
        monkeypatch.setattr(tempfile, "tempdir", None)
        remove_left_dirs()
        assert list(temp.glob("forge-*")) == [], "nobody holds a directory of sockets"


def test_a_node_that_is_silent_for_30_s_is_not_lost(
    grpo_project: Path, temp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes are stopped, as if the network were away: nothing arrives, nothing breaks."""
    monkeypatch.setenv("TMPDIR", str(temp))
    with local_nodes({"TMPDIR": str(temp)}) as nodes:
        nodes.add("work", cpus=CPUS)
        run = begin(nodes, grpo_project)
        try:
            run.until(lambda: last_trained(run.root) >= 2, "two steps")
            nodes.signal(0, signal.SIGSTOP)
            time.sleep(OUTAGE_S)
            nodes.signal(0, signal.SIGCONT)
            errors = run.process.communicate(timeout=400)[1]
        finally:
            run.process.kill()
            run.process.communicate()
        assert run.process.returncode == 0, errors
        require_whole(run.root)
        with opened(run.root) as db:
            query = "SELECT count(*) FROM events WHERE kind = 'child_restart'"
            assert db.execute(query).fetchone()[0] == 0, errors
        assert len(re.findall(r"-\d runs on ", errors)) == 3, errors


def require_whole(root: Path) -> None:
    """Every step trained whole groups, the evaluation has its samples, and no turn lacks a verdict
    or has one that the lost node made."""
    with opened(root) as db:
        steps = db.execute("SELECT count(DISTINCT step) FROM sample_uses").fetchone()[0]
        statuses = {status for (status,) in db.execute("SELECT DISTINCT status FROM v_turns")}
        messages = [text for (text,) in db.execute("SELECT message FROM events")]
        samples = db.execute("SELECT num_samples FROM v_evaluations").fetchall()
    assert steps == STEPS
    assert statuses <= {"compile_error", "rejected"}, "as at home: no infra error is stored"
    assert samples == [(1024,)]
    assert "grpo-0: checkpoint after step 9" in messages
