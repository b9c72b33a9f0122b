"""`forge cluster check`: findings about made nodes, each fault with its fix."""

from pathlib import Path
from typing import Any

import pytest

from forge.cluster.nodes import NO_FORGE_LINE
from forge.commands.cluster_check import find_all, has_labels
from forge.commands.doctor.probe import Finding, Severity, can_run
from forge.config.load import load_experiment
from forge.config.schema import Experiment
from forge.origin import installed_versions, source_digest

GB = 10**9


@pytest.fixture
def experiment() -> Experiment:
    path = Path(__file__).parents[2] / "experiments" / "quickstart.toml"
    wanted = (
        "cluster.address=auto", "cluster.judges=4", 'cluster.judge_labels={role="judge"}',
        "cluster.serve=true", "serve.replicas=2", "serve.engine=vllm",
    )  # fmt: skip
    return load_experiment(path, overrides=wanted)


def facts(
    number: int, *, gpus: int = 4, role: str = "judge", store_bytes: float = 8e9, **changed: Any
) -> dict[str, Any]:
    node = {
        "node_id": f"n{number}", "ip": f"10.0.0.{number}", "is_here": number == 0, "cpus": 8.0,
        "gpus": float(gpus), "labels": {"role": role}, "store_bytes": store_bytes,
    }  # fmt: skip
    return {
        "node": node, "host": f"node-{number}", "sources": source_digest(),
        "executable": "/opt/forge/bin/python", "versions": installed_versions(("torch", "triton")),
        "missing": [], "port": 4000, "is_reachable": True, "nice": 0, "skew_s": 0.0,
        "megabytes_s": 900.0, "cards": [{"name": "H100", "used_bytes": 0}] * gpus,
    } | changed  # fmt: skip


def faults(experiment: Experiment, *nodes: dict[str, Any]) -> list[Finding]:
    found = find_all(experiment, [facts(0), *nodes])
    return [each for each in found if each.severity is not Severity.OK]


def test_nodes_without_a_fault_say_what_was_compared(experiment):
    found = find_all(experiment, [facts(0), facts(1), facts(2, role="serve")])
    assert can_run(found)
    assert {each.severity for each in found} == {Severity.OK}
    assert "4 x H100" in found[1].found
    assert "clock +0.0 s, 900 MB/s from here" in found[1].found
    assert found[1].name == "node-1"


@pytest.mark.parametrize(
    ("changed", "severity", "found", "fix"),
    [
        ({"sources": "x"}, "error", "other sources of forge: x", "/opt/forge/bin/python"),
        ({"is_reachable": False}, "error", "its port 4000 cannot be reached", "open all TCP"),
        ({"versions": {"torch": "0"}}, "error", "no triton for judges", "judge"),
        ({"versions": {"torch": "0", "triton": "0"}}, "warning", "torch 0, triton 0; here", "-c"),
        ({"missing": ["/x/python"]}, "error", "no /x/python", "same path"),
        ({"nice": 15}, "warning", "children have nice 15", "RAY_worker_niceness=0"),
        ({"skew_s": -9.0}, "warning", "differs by -9.0 s", "timedatectl"),
        ({"megabytes_s": 9.0}, "warning", "9 MB/s from here", "faster network"),
        ({"cards": []}, "error", "Ray has 4 GPUs to give, and 0 answer", "--num-gpus=0"),
        (
            {"cards": [{"name": "H100", "used_bytes": 30 * GB}] * 4},
            "warning", "30.0 GB of its GPU 0", "nvidia-smi",
        ),
        ({"error": NO_FORGE_LINE}, "error", "no forge", "install forge's commit"),
        ({"error": "its host is gone: x"}, "error", "its host is gone", '"ray status"'),
    ],
)  # fmt: skip
def test_each_fault_has_its_fix(experiment, changed, severity, found, fix):
    nodes = [facts(1, **changed), facts(2), facts(3, role="serve")]
    first = faults(experiment, *nodes)[0]
    assert first.severity == severity
    assert found in first.found
    assert fix in first.fix


@pytest.mark.parametrize("small", [0, 1])
def test_a_small_object_store_is_said(experiment, small):
    nodes = [facts(n, store_bytes=8e7 if n == small else 8e9) for n in (0, 1, 2)]
    (fault,) = (each for each in find_all(experiment, nodes) if "object store" in each.found)
    assert fault.severity is Severity.WARNING
    assert f"10.0.0.{small}" in fault.found
    assert "an object store of 80 MB" in fault.found
    assert "--object-store-memory" in fault.fix


def test_a_role_without_room_is_an_error_and_a_judge_that_must_wait_a_warning(experiment):
    (fault,) = faults(experiment, facts(1, role="jugde"))
    assert (fault.severity, fault.name) == (Severity.ERROR, "judges")
    assert fault.found == "0 of 4 find room (1 GPU each, role=judge)"
    (fault,) = faults(experiment, facts(1, gpus=3), facts(2, role="serve"))
    assert fault.severity is Severity.WARNING
    assert fault.found.startswith("3 of 4 find room")
    (fault, *_) = faults(experiment, facts(1, gpus=1))
    assert (fault.severity, fault.name) == (Severity.ERROR, "engines")


def test_engines_and_judges_are_not_counted_on_the_same_card(experiment):
    (fault,) = faults(experiment, facts(1, gpus=4))  # 2 for engines, 2 left
    assert fault.found.startswith("2 of 4 find room")


def test_a_cluster_of_this_machine_alone_is_an_error(experiment):
    (fault,) = faults(experiment)
    assert "no node besides this machine" in fault.found


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        ("H100", True), ("H200", False), ("!H100", False), ("!H200", True),
        ("in(H100,H200)", True), ("in(A100, H200)", False), ("!in(A100,H200)", True),
    ],
)  # fmt: skip
def test_labels_match_as_in_ray(wanted, fits):
    assert has_labels({"card": "H100"}, {"card": wanted}) is fits
    assert has_labels({}, {"card": wanted}) is wanted.startswith("!")
    assert has_labels({}, {})
