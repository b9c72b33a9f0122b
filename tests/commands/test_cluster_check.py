"""`forge cluster check`: a node that lacks what its role needs is an error with its fix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from forge.cluster.nodes import RANKS_NEED, Node
from forge.commands.cluster_check import find_all
from forge.config.load import load_experiment
from forge.errors import pip_install
from forge.origin import installed_versions, source_digest

if TYPE_CHECKING:
    from pathlib import Path

EXPERIMENT = """\
name = "x"
[model]
init = "tiny"
[cluster]
address = "auto"
judges = 1
train_nodes = 1
[[stage]]
kind = "sft"
steps = 1
learning_rate = 1e-6
"""


def node_that_lacks(*packages: str) -> dict[str, Any]:
    node = Node(
        node_id="n", ip="10.0.0.2", is_here=False, cpus=8, gpus=1, labels={}, store_bytes=8e9
    )
    needed = installed_versions(("torch", "triton", *RANKS_NEED))
    return {
        "node": node.to_json(), "host": "b", "sources": source_digest(), "is_reachable": True,
        "versions": {name: found for name, found in needed.items() if name not in packages},
        "missing": [], "cards": [{"name": "H100", "used_bytes": 0}], "skew_s": 0.0,
        "megabytes_s": 1000.0, "port": 1, "executable": "python", "nice": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("packages", "expected"),
    [
        ((), []),
        (("triton",), [("no triton for judges", "judge")]),
        (("trl", "datasets"), [("no trl, datasets for ranks", "train")]),
        (("torch",), [("no torch for judges", "judge"), ("no torch for ranks", "train")]),
    ],
)
def test_missing_packages_are_named_by_role(
    packages: tuple[str, ...], expected: list[tuple[str, str]], tmp_path: Path
) -> None:
    path = tmp_path / "x.toml"
    path.write_text(EXPERIMENT)
    findings = find_all(load_experiment(path), [node_that_lacks(*packages)])
    found = [each for each in findings if each.fix]
    assert len(found) == len(expected)
    for finding, (text, extra) in zip(found, expected, strict=True):
        assert finding.found.endswith(f"{text} in python")
        assert finding.fix == f"{pip_install(extra)} there"
