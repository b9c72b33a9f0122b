"""Probes of `forge doctor`, each a child process with a deadline, and the findings on packages and
GPUs: users, builds of torch, kernels, the sum over all.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from forge.cluster.nodes import RANKS_NEED, Node
from forge.commands.cluster_check import find_all
from forge.commands.doctor import probe
from forge.commands.doctor.probe import (
    DEADLINES_S,
    PACKAGES,
    EngineFacts,
    Finding,
    GpuFacts,
    Imported,
    Outcome,
    Severity,
    check_allreduce,
    check_engines,
    check_gpus,
    check_kernel,
    check_packages,
    find_fix,
    import_packages,
    run_probe,
    try_gpus,
)
from forge.config.load import load_experiment
from forge.config.schema import ServeTable
from forge.errors import pip_install
from forge.origin import installed_versions, source_digest
from forge.process.devices import GpuUser
from forge.process.environment import python_path
from forge.serve.engines import ENGINES, Interpreter
from tests.gpus import make_gpu

MADE_UP = {
    "good_one": "__version__ = '1.2'\nPart = 1\n",
    "broken_one": "raise OSError('libx.so.1: cannot open shared object file')\n",
    "crashing_one": "import os\nprint('a last word', flush=True)\nos.abort()\n",
    "leaving_one": "raise SystemExit(3)\n",
    "partless_one": "",
    "endless_one": "import threading\nthreading.Event().wait()\n",
}


@pytest.fixture
def site(tmp_path: Path) -> dict[str, str]:
    """Environment with made-up packages."""
    for name, source in MADE_UP.items():
        (tmp_path / f"{name}.py").write_text(source)
    return {"PYTHONPATH": f"{tmp_path}{os.pathsep}{python_path()}"}


async def imports_of(site: dict[str, str], folder: Path, *names: str) -> dict[str, Imported]:
    targets = {name.partition(":")[0]: name for name in names}
    return await import_packages(targets, folder, env=site)


async def test_each_package_is_imported_and_a_failure_has_its_words(site, tmp_path):
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
    ending, fault, site, tmp_path, monkeypatch
):
    monkeypatch.setitem(probe.DEADLINES_S, "imports", 3.0)
    found = await imports_of(site, tmp_path, "good_one", ending, "broken_one")
    assert found["good_one"].version == "1.2"
    assert found[ending].fault.startswith(fault)
    assert found["broken_one"].fault == f"not tried: {ending} does not import"


async def test_a_probe_whose_interpreter_is_absent_is_an_outcome(tmp_path):
    outcome = await run_probe("imports", tmp_path, python="/absent/python")
    assert outcome.fault.startswith("imports cannot be started: /absent/python: No such file")


@pytest.mark.parametrize("uuid", ["", "GPU-absent"])
async def test_a_kernel_is_evaluated_as_in_a_judge_or_fails_with_the_words_of_the_driver(
    uuid, tmp_path
):
    outcome = await run_probe("kernel", tmp_path, config={"uuid": uuid})
    for lock in Path("/tmp").glob("forge-gpu-GPU-absent.*"):
        lock.unlink()
    assert outcome.fault.endswith("(while starting the GPU's driver)" if uuid else ""), outcome.log
    assert outcome.get("is_right") is (None if uuid else True)
    assert 0 <= (outcome.get("seconds") or 0) < DEADLINES_S["kernel"], "by the real clock"


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
def test_missing_packages_are_named_by_role(packages, expected, tmp_path):
    path = tmp_path / "x.toml"
    path.write_text(EXPERIMENT)
    findings = find_all(load_experiment(path), [node_that_lacks(*packages)])
    found = [each for each in findings if each.fix]
    assert len(found) == len(expected)
    for finding, (text, extra) in zip(found, expected, strict=True):
        assert finding.found.endswith(f"{text} in python")
        assert finding.fix == f"{pip_install(extra)} there"


ALL = frozenset(module for kind in ENGINES.values() for module in kind.requires)
CARDS = [make_gpu(0), make_gpu(1)]


def check_interpreter(python: Interpreter, **facts: Any) -> dict[str, Finding]:
    return {each.name: each for each in check_engines(EngineFacts(python=python, **facts))}


def test_a_package_that_does_not_import_is_an_error_with_its_words():
    packages = {name: Imported(version="1") for name in PACKAGES}
    packages["triton"] = Imported(fault="ImportError: libLLVM.so")
    packages["trl"] = Imported(fault="ModuleNotFoundError: ...", is_missing=True)
    found = {each.name: each for each in check_packages(packages)}
    assert found["torch"] == Finding(name="torch", found="1")
    assert found["triton"].severity is found["trl"].severity is Severity.ERROR
    assert "ImportError: libLLVM.so" in found["triton"].found
    assert found["trl"].found == "not installed"


def test_a_vllm_that_does_not_match_torch_is_named_with_both_versions_and_the_fix():
    python = Interpreter(
        python="/opt/python",
        versions={"vllm": "0.24.0", "torch": "2.13.0"},
        modules=ALL,
        vllm_requires=("torch==2.11.0",),
    )
    found = check_interpreter(python, gpus=CARDS[:1])
    vllm = found["engine vllm"]
    assert vllm.severity is Severity.ERROR
    assert vllm.found == "0.24.0, which does not match torch 2.13.0"
    assert "needs torch 2.11.0" in vllm.fix
    assert found["serve.python"].found == "/opt/python: vllm 0.24.0, torch 2.13.0"


def test_a_vllm_whose_import_fails_is_an_error_where_a_run_would_take_it():
    python = Interpreter(python="/opt/python", versions={"vllm": "0.24.0"}, modules=ALL)
    fault = "ImportError: libcudart.so.13: cannot open shared object file"
    imported = {"vllm": Imported(fault=fault), "torch": Imported(version="2.11.0")}
    found = check_interpreter(python, gpus=CARDS[:1], imported=imported)["engine vllm"]
    assert found.severity is Severity.ERROR
    assert found.found == f"vllm does not import in /opt/python: {fault}"
    table = ServeTable(engine="llama")
    found = check_interpreter(python, gpus=CARDS[:1], imported=imported, table=table)["engine vllm"]
    assert found.severity is Severity.WARNING


def test_a_llama_whose_library_does_not_load_is_an_error_where_a_run_would_take_it():
    python = Interpreter(python="", modules=ALL)
    imported = {"llama_cpp": Imported(fault="killed by signal 4 while importing llama_cpp")}
    found = check_interpreter(python, imported=imported)["engine llama"]
    assert found.severity is Severity.ERROR
    assert "killed by signal 4" in found.found
    assert "make setup" in found.fix


def test_an_engine_that_a_run_would_need_but_is_absent_is_an_error():
    found = check_interpreter(Interpreter(python="", modules=frozenset()))
    assert found["engine llama"].severity is Severity.ERROR
    assert found["engine hf"].severity is Severity.WARNING
    assert found["engine vllm"].severity is Severity.OK
    asked = check_interpreter(
        Interpreter(python="", modules=frozenset()), table=ServeTable(engine="vllm")
    )
    assert asked["engine vllm"].severity is Severity.ERROR


def test_a_gpu_machine_without_a_fast_engine_gets_install_advice(monkeypatch):
    plain = Interpreter(
        python="", modules=ALL - {"vllm"}, llama_backends=frozenset({"base", "cpu"})
    )
    monkeypatch.setattr("forge.serve.engines.read_interpreter", lambda _table: plain)
    found = check_interpreter(plain, gpus=CARDS[:1])
    assert found["engine llama"].found == "installed, built for cpu"
    assert "make setup LLAMA=cuda" in found["engine llama"].fix
    slow = found["engine of runs"]
    assert slow.severity is Severity.WARNING
    assert slow.found.startswith("hf: vllm is not installed, and llama is built")
    without_gpus = check_interpreter(plain)
    assert without_gpus["engine of runs"].found == "llama: the fastest on a CPU"
    assert without_gpus["engine llama"].fix == without_gpus["engine vllm"].fix == ""


RAN = Outcome(answers=({"is_right": True, "seconds": 1.25},))


def check_cards(**facts: Any) -> dict[str, Finding]:
    return {each.name: each for each in check_gpus(GpuFacts(**facts))}


def test_users_of_a_gpu_and_hidden_gpus_are_listed():
    users = {"GPU-0": (GpuUser(pid=7, name="python", memory_bytes=44 << 30),)}
    hidden = "GPU 1 is split into MIG slices"
    found = check_cards(gpus=[make_gpu(free_bytes=100 << 30)], users=users, hidden=hidden)
    expected = "H200, 107 of 151 GB free, GPU-0; pid 7 (python) holds 47.2 GB"
    assert found["GPU 0"].found == expected
    assert found["hidden GPUs"].found == hidden


def test_a_gpu_in_use_is_left_alone_with_the_name_of_its_user():
    facts = GpuFacts(
        gpus=[make_gpu(0), make_gpu(1), make_gpu(2, free_bytes=1 << 30), make_gpu(3)],
        holders={"GPU-0": "run quickstart-1, pid 7"},
        users={"GPU-1": (GpuUser(pid=8, name="python", memory_bytes=9 << 30),)},
        outcomes={"kernel on GPU 3": RAN},
    )
    assert [gpu.index for gpu in facts.tried()] == [3]
    found = {each.name: each for each in check_gpus(facts)}
    assert found["kernel on GPU 0"].found == "in use by run quickstart-1, pid 7: not tried"
    expected = "in use: pid 8 (python) holds 9.7 GB: not tried"
    assert found["kernel on GPU 1"].found == expected
    assert found["kernel on GPU 2"].found == "only 1.1 GB free: not tried"
    expected = "compiled and run in 1.2 s, the result is right"
    assert found["kernel on GPU 3"].found == expected
    assert {each.severity for each in found.values()} == {Severity.OK}


@pytest.mark.parametrize("name", ["kernel on GPU 0", "all-reduce"])
def test_a_probe_that_waited_for_a_judge_is_not_an_error(name):
    busy = Outcome(answers=({"busy": "not free"},), fault="exit 1")
    found = check_cards(gpus=CARDS, outcomes={name: busy})[name]
    assert (found.severity, found.found) == (Severity.OK, "not free: not tried")


@pytest.mark.parametrize(
    ("fault", "log", "fix"),
    [
        ("CalledProcessError", "fatal error: Python.h: No such file", "apt install python"),
        ("RuntimeError: Failed to find C compiler.", "", "apt install gcc"),
        ("AssertionError: Torch not compiled with CUDA enabled", "", "TORCH=cuda"),
        ("AssertionError: libcuda.so cannot found!", "", "ldconfig"),
        ("RuntimeError: The NVIDIA driver on your system is too old", "", "newer driver"),
        ("AcceleratorError: CUDA error: no kernel image is available", "", "TORCH="),
        ("RuntimeError: CUDA error 802: system not yet initialized", "", "fabricmanager"),
        ("OutOfMemoryError: CUDA out of memory.", "", "free the GPU's memory"),
        ("ModuleNotFoundError: No module named 'triton'", "", "make setup"),
        ("ImportError: x.so: failed to map segment from shared object", "", "noexec"),
        ("RuntimeError: unspecified launch failure", "", "nvidia-smi"),
    ],
)
def test_a_kernel_that_fails_has_a_fix_by_its_words(fault, log, fix):
    found = check_kernel("kernel on GPU 0", Outcome(fault=fault, log=log))
    assert (found.severity, found.found) == (Severity.ERROR, fault)
    assert fix in found.fix == find_fix(Outcome(fault=fault, log=log))


def test_probes_run_on_free_gpus_and_a_sum_that_fails_is_tried_without_peer_access(
    tmp_path, monkeypatch
):
    asked: list[tuple[str, Sequence[str], str]] = []

    async def run(kind: str, folder: Path, *, gpus: Sequence[str], **more: Any) -> Outcome:
        asked.append((kind, gpus, more["env"].get("NCCL_P2P_DISABLE", "")))
        return Outcome(fault="exit 1") if kind == "allreduce" else RAN

    monkeypatch.setattr("forge.commands.doctor.probe.run_probe", run)
    cards = [make_gpu(0), make_gpu(1, free_bytes=1 << 30), make_gpu(2)]
    facts = anyio.run(try_gpus, GpuFacts(gpus=cards), tmp_path)
    both = ["GPU-0", "GPU-2"]
    assert asked == [
        ("kernel", ["GPU-0"], ""), ("kernel", ["GPU-2"], ""),
        ("allreduce", both, ""), ("allreduce", both, "1"),
    ]  # fmt: skip
    assert set(facts.outcomes) == {
        "kernel on GPU 0", "kernel on GPU 2", "all-reduce", "all-reduce without peer access",
    }  # fmt: skip
    asked.clear()
    assert set(anyio.run(try_gpus, GpuFacts(), tmp_path).outcomes) == {"kernel on the CPU"}


def sums(value: float, *, backend: str = "NCCL") -> tuple[dict[str, Any], ...]:
    right = [{"rank": rank, "backend": "gloo", "sums": [3.0]} for rank in (0, 1)]
    return (*right, *({"rank": rank, "backend": backend, "sums": [value]} for rank in (0, 1)))


def test_a_sum_over_gpus_is_checked_for_its_value():
    found = check_allreduce(Outcome(answers=sums(3.0)), None, num_gpus=2)
    assert found == Finding(
        name="all-reduce", found="gloo and NCCL add up correctly over 2 GPUs"
    )  # fmt: skip
    found = check_allreduce(Outcome(answers=sums(2.0)), None, num_gpus=2)
    assert found.severity is Severity.ERROR
    assert found.found == "rank 0 has [2.0] by NCCL instead of 3"
    found = check_allreduce(Outcome(answers=sums(3.0)[:3]), None, num_gpus=2)
    assert (found.severity, found.found) == (Severity.ERROR, "not all ranks reported a sum")


def test_a_sum_that_works_without_peer_access_blames_peer_access():
    hung = Outcome(fault="no end within 60 s while adding up over NCCL")
    found = check_allreduce(hung, Outcome(answers=sums(3.0)), num_gpus=2)
    assert found.severity is Severity.ERROR
    assert found.found.endswith("it works with NCCL_P2P_DISABLE=1")
    assert "ACS off" in found.fix


def test_a_machine_without_gpus_evaluates_the_kernel():
    found = check_cards(outcomes={"kernel on the CPU": RAN})
    assert found["GPUs"].found == "none: everything runs on the CPU"
    expected = "evaluated in 1.2 s, the result is right"
    assert found["kernel on the CPU"].found == expected
