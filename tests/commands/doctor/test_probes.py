"""Probes of `forge doctor` as real children: imports that fail, crash or hang, and this machine."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from forge.cluster.nodes import RANKS_NEED, Node
from forge.commands.cluster_check import find_all
from forge.commands.doctor import probe
from forge.commands.doctor.probe import DEADLINES_S, Imported, Outcome, import_packages, run_probe
from forge.config.load import load_experiment
from forge.errors import pip_install
from forge.origin import installed_versions, source_digest
from forge.process.environment import python_path

pytestmark = pytest.mark.anyio

PACKAGES = {
    "good_one": "__version__ = '1.2'\nPart = 1\n",
    "broken_one": "raise OSError('libx.so.1: cannot open shared object file')\n",
    "crashing_one": "import os\nprint('a last word', flush=True)\nos.abort()\n",
    "leaving_one": "raise SystemExit(3)\n",
    "partless_one": "",
    "endless_one": "import threading\nthreading.Event().wait()\n",
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def site(tmp_path: Path) -> dict[str, str]:
    """Environment with made-up packages."""
    for name, source in PACKAGES.items():
        (tmp_path / f"{name}.py").write_text(source)
    return {"PYTHONPATH": f"{tmp_path}{os.pathsep}{python_path()}"}


async def imports_of(site: dict[str, str], folder: Path, *names: str) -> dict[str, Imported]:
    targets = {name.partition(":")[0]: name for name in names}
    return await import_packages(targets, folder, env=site)


async def test_each_package_is_imported_and_a_failure_has_its_words(
    site: dict[str, str], tmp_path: Path
) -> None:
    names = ("broken_one", "absent_one", "leaving_one", "partless_one:Part", "good_one:Part")
    found = await imports_of(site, tmp_path, *names)
    fault = "OSError: libx.so.1: cannot open shared object file"
    assert found["broken_one"] == Imported(fault=fault)
    assert found["absent_one"].is_missing
    assert found["leaving_one"].fault == "SystemExit: 3"
    assert "has no attribute 'Part'" in found["partless_one"].fault
    assert found["good_one"] == Imported(version="1.2")


@pytest.mark.parametrize(
    ("ending", "fault"),
    [
        ("crashing_one", "killed by signal 6 (it aborted in native code) while importing crash"),
        ("endless_one", "no end within 3 s while importing endless_one"),
    ],
)
async def test_packages_after_one_that_crashes_or_hangs_are_not_tried(
    ending: str, fault: str, site: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(probe.DEADLINES_S, "imports", 3.0)
    found = await imports_of(site, tmp_path, "good_one", ending, "broken_one")
    assert found["good_one"].version == "1.2"
    assert found[ending].fault.startswith(fault)
    assert found["broken_one"].fault == f"not tried: {ending} does not import"


async def test_a_probe_whose_interpreter_is_absent_is_an_outcome(tmp_path: Path) -> None:
    outcome = await run_probe("imports", tmp_path, python="/absent/python")
    assert outcome.fault.startswith("imports cannot be started: /absent/python: No such file")


async def test_the_sandbox_of_this_machine_is_found(tmp_path: Path) -> None:
    outcome = await run_probe("sandbox", tmp_path)
    assert outcome.fault == ""
    assert outcome.get("level") in ("namespaces", "landlock", None)
    assert outcome.get("level") or outcome.get("refused")


@pytest.mark.parametrize("uuid", ["", "GPU-absent"])
async def test_a_kernel_is_evaluated_as_in_a_judge_or_fails_with_the_words_of_the_driver(
    uuid: str, tmp_path: Path
) -> None:
    outcome = await run_probe("kernel", tmp_path, config={"uuid": uuid})
    for lock in Path("/tmp").glob("forge-gpu-GPU-absent.*"):
        lock.unlink()
    assert outcome.fault.endswith("(while starting the GPU's driver)" if uuid else ""), outcome.log
    assert outcome.get("is_right") is (None if uuid else True)
    assert 0 <= (outcome.get("seconds") or 0) < DEADLINES_S["kernel"], "by the real clock"


def test_an_error_of_one_process_of_a_probe_is_its_outcome_whatever_the_others_do() -> None:
    answers = (
        {"doing": "adding up over NCCL"},
        {"error": "DistBackendError: NCCL error", "doing": "adding up over NCCL"},
        {"doing": "importing torch"},
    )
    found = probe._describe("", Outcome(answers=answers), deadline_s=60.0)
    assert found == "DistBackendError: NCCL error (while adding up over NCCL)"


def test_an_answer_that_a_crash_cut_off_keeps_its_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "answer"
    path.write_text(json.dumps({"doing": "x"}) + '\n{"name": "tor')
    assert probe._read_answers(path) == [{"doing": "x"}]
    assert probe._read_answers(tmp_path / "absent") == []
    assert Outcome(answers=({"a": 1}, {"a": 2})).get("a") == 2


def test_no_process_of_a_probe_outlives_it(tmp_path: Path) -> None:
    (tmp_path / "forking.py").write_text(
        "import os, pathlib, threading\n"
        "if (pid := os.fork()) == 0:\n    threading.Event().wait()\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(pid))\nos.abort()\n"
    )
    extra = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{python_path()}"}
    imported = anyio.run(imports_of, extra, tmp_path, "forking")
    assert imported["forking"].fault.startswith("killed by signal 6")
    command = Path("/proc", (tmp_path / "pid").read_text(), "cmdline")
    deadline = time.monotonic() + 20.0
    while command.exists() and command.read_bytes():  # a zombie has none
        assert time.monotonic() < deadline
        time.sleep(0.01)


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
