"""A whole run on a Ray cluster whose supervisor is killed. Nodes are in `test_cluster_kills.py`."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.nodes import LocalNodes, local_nodes, needs_ray
from tests.e2e.commands import forge, last_trained, start, wait_for
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


@pytest.fixture
def nodes() -> Iterator[LocalNodes]:
    with local_nodes(store_mb=512) as found:  # less is a finding of the check
        found.add("judge")
        found.add("serve")
        yield found


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
    names = [each["name"] for each in json.loads(checked.stdout)["findings"]]
    assert len(names) == 5
    assert names[-2:] == ["engines", "judges"]
