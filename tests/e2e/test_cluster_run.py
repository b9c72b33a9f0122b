"""Whole runs on a Ray cluster of nodes on this machine: a node is lost, another one joins."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.nodes import LocalNodes, local_nodes, needs_ray
from tests.e2e.commands import children_of_run, forge, last_trained, opened, start, wait_for
from tests.e2e.experiments import GRPO_EXPERIMENT

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(400),
    needs_ray,
]

CLUSTER = """\
[cluster]
address = "ADDRESS"
judges = 1
judge_on = "cpu"
judge_labels = { role = "judge" }
serve = true
serve_on = "cpu"
serve_labels = { role = "serve" }
[reward]"""
RANKS = """\
[cluster]
address = "ADDRESS"
train_nodes = 1
train_labels = { role = "train" }
[reward]"""
STEPS = 20


@pytest.fixture
def nodes() -> Iterator[LocalNodes]:
    with local_nodes(store_mb=512) as found:  # less is a finding of the check
        found.add("judge")
        found.add("serve")
        yield found


@pytest.mark.parametrize("lost", ["judge", "serve"])
def test_a_run_goes_on_when_a_node_is_lost_and_another_joins(
    nodes: LocalNodes, lost: str, grpo_project: Path
) -> None:
    text = GRPO_EXPERIMENT.replace("[reward]", CLUSTER).replace("steps = 9", f"steps = {STEPS}")
    text = text.replace("workers = 1\n", "").replace("ADDRESS", nodes.address)
    (grpo_project / "grpo.toml").write_text(text)
    root = grpo_project / "runs" / "grpo-1"
    run = start(grpo_project, "run", "grpo.toml")
    wait_for(lambda: last_trained(root) >= 2, timeout_s=150, what="two steps")
    nodes.kill({"judge": 0, "serve": 1}[lost])
    nodes.add(lost)
    errors = run.communicate(timeout=300)[1]
    assert run.returncode == 0, errors
    name = {"judge": "judge-0", "serve": "serve-0"}[lost]
    assert errors.count(f"{name} runs on") >= 2, errors
    with opened(root) as db:
        steps = db.execute("SELECT count(DISTINCT step) FROM sample_uses").fetchone()[0]
        statuses = {status for (status,) in db.execute("SELECT DISTINCT status FROM v_turns")}
        versions = db.execute("SELECT count(*) FROM policies").fetchone()[0]
        open_turns = db.execute("SELECT count(*) FROM v_turns WHERE status IS NULL").fetchone()[0]
    assert steps == STEPS
    assert versions >= STEPS
    assert statuses <= {"compile_error", "rejected"}  # as at home: no infra error is stored
    assert open_turns == 0
    assert children_of_run(root) == []
    wait_for(lambda: nodes.children() == [], timeout_s=20, what="the hosts' children to end")


def test_a_killed_supervisor_leaves_no_child_on_a_node(
    nodes: LocalNodes, grpo_project: Path
) -> None:
    text = GRPO_EXPERIMENT.replace("[reward]", CLUSTER).replace("workers = 1\n", "")
    (grpo_project / "grpo.toml").write_text(text.replace("ADDRESS", nodes.address))
    root = grpo_project / "runs" / "grpo-1"
    run = start(grpo_project, "run", "grpo.toml")
    wait_for(lambda: last_trained(root) >= 1, timeout_s=150, what="a step")
    assert len(nodes.children()) >= 2
    run.kill()
    run.communicate()
    wait_for(lambda: nodes.children() == [], timeout_s=30, what="the hosts' children to end")
    checked = forge("cluster", "check", "grpo.toml", "--json", cwd=grpo_project)
    assert checked.returncode == 0, checked.stdout
    names = [each["name"] for each in json.loads(checked.stdout)["findings"]]
    assert len(names) == 5
    assert names[-2:] == ["engines", "judges"]


def test_ranks_on_another_node_train_and_come_back_after_its_loss(
    grpo_project: Path,
) -> None:
    with local_nodes() as nodes:
        nodes.add("train")
        text = GRPO_EXPERIMENT.replace("[reward]", RANKS.replace("ADDRESS", nodes.address))
        text = text.replace("steps = 9", f"steps = {STEPS}")
        (grpo_project / "grpo.toml").write_text(text)
        root = grpo_project / "runs" / "grpo-1"
        run = start(grpo_project, "run", "grpo.toml")
        wait_for(lambda: last_trained(root) >= 4, timeout_s=200, what="four steps")
        assert len(nodes.children()) == 2  # the trainer's child and its rank
        nodes.kill(0)
        nodes.add("train")
        errors = run.communicate(timeout=300)[1]
        assert run.returncode == 0, errors
        assert errors.count("trainer-1 runs on") == 2, errors
        assert re.search(r"trainer-1: its (host|node) .*; restarted from its last", errors), errors
        with opened(root) as db:
            steps = db.execute("SELECT count(DISTINCT step) FROM sample_uses").fetchone()[0]
        assert steps == STEPS
        assert children_of_run(root) == []
        wait_for(lambda: nodes.children() == [], timeout_s=20, what="the hosts' children to end")
