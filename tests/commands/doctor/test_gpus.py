"""Findings of `forge doctor` on GPUs: users, builds of torch, kernels, the sum over all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from forge.commands.doctor.finding import Finding, Severity
from forge.commands.doctor.probe import (
    GpuFacts,
    Outcome,
    check_allreduce,
    check_gpus,
    check_kernel,
    find_fix,
    try_gpus,
)
from forge.process.devices import Gpu, GpuUser, Vendor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

RAN = Outcome(answers=({"is_right": True, "seconds": 1.25},))


def make_card(index: int, *, free_gib: int = 100) -> Gpu:
    return Gpu(
        vendor=Vendor.NVIDIA, index=index, uuid=f"GPU-{index}", name="H200",
        memory_bytes=141 << 30, free_bytes=free_gib << 30,
    )  # fmt: skip


CARDS = [make_card(0), make_card(1)]


def check(**facts: Any) -> dict[str, Finding]:
    return {each.name: each for each in check_gpus(GpuFacts(**facts))}


def test_users_of_a_gpu_and_hidden_gpus_are_listed() -> None:
    users = {"GPU-0": (GpuUser(pid=7, name="python", memory_bytes=44 << 30),)}
    hidden = "GPU 1 is split into MIG slices"
    found = check(gpus=CARDS[:1], users=users, hidden=hidden)
    expected = "H200, 107 of 151 GB free, GPU-0; pid 7 (python) holds 47.2 GB"
    assert found["GPU 0"].found == expected
    assert found["hidden GPUs"].found == hidden


def test_a_gpu_in_use_is_left_alone_with_the_name_of_its_user() -> None:
    facts = GpuFacts(
        gpus=[make_card(0), make_card(1), make_card(2, free_gib=1), make_card(3)],
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


def test_a_kernel_with_a_wrong_result_is_an_error() -> None:
    outcome = Outcome(answers=({"is_right": False, "seconds": 0.1},))
    found = check_kernel("kernel on GPU 0", outcome)
    assert (found.severity, "differs from torch's" in found.found) == (Severity.ERROR, True)


@pytest.mark.parametrize("name", ["kernel on GPU 0", "all-reduce"])
def test_a_probe_that_waited_for_a_judge_is_not_an_error(name: str) -> None:
    busy = Outcome(answers=({"busy": "not free"},), fault="exit 1")
    found = check(gpus=CARDS, outcomes={name: busy})[name]
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
def test_a_kernel_that_fails_has_a_fix_by_its_words(fault: str, log: str, fix: str) -> None:
    found = check_kernel("kernel on GPU 0", Outcome(fault=fault, log=log))
    assert (found.severity, found.found) == (Severity.ERROR, fault)
    assert fix in found.fix == find_fix(Outcome(fault=fault, log=log))


def test_probes_run_on_free_gpus_and_a_sum_that_fails_is_tried_without_peer_access(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, Sequence[str], str]] = []

    async def run(kind: str, folder: Path, *, gpus: Sequence[str], **more: Any) -> Outcome:
        asked.append((kind, gpus, more["env"].get("NCCL_P2P_DISABLE", "")))
        return Outcome(fault="exit 1") if kind == "allreduce" else RAN

    monkeypatch.setattr("forge.commands.doctor.probe.run_probe", run)
    cards = [make_card(0), make_card(1, free_gib=1), make_card(2)]
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


def test_a_sum_over_gpus_is_checked_for_its_value() -> None:
    found = check_allreduce(Outcome(answers=sums(3.0)), None, num_gpus=2)
    assert found == Finding(
        name="all-reduce", found="gloo and NCCL add up correctly over 2 GPUs"
    )  # fmt: skip
    found = check_allreduce(Outcome(answers=sums(2.0)), None, num_gpus=2)
    assert found.severity is Severity.ERROR
    assert found.found == "rank 0 has [2.0] by NCCL instead of 3"
    found = check_allreduce(Outcome(answers=sums(3.0)[:3]), None, num_gpus=2)
    assert (found.severity, found.found) == (Severity.ERROR, "not all ranks reported a sum")


def test_a_sum_that_hangs_names_the_usual_causes_and_nccls_own_words() -> None:
    log = "h:1:2 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-x"
    hung = Outcome(fault="no end within 60 s while adding up over NCCL", log=log)
    found = check_allreduce(hung, hung, num_gpus=2)
    assert found.severity is Severity.ERROR
    assert found.found.endswith("over NCCL; NCCL: Error: failed to extend /dev/shm/nccl-x")
    assert "--shm-size=16g" in found.fix


def test_a_sum_that_works_without_peer_access_blames_peer_access() -> None:
    hung = Outcome(fault="no end within 60 s while adding up over NCCL")
    found = check_allreduce(hung, Outcome(answers=sums(3.0)), num_gpus=2)
    assert found.severity is Severity.ERROR
    assert found.found.endswith("it works with NCCL_P2P_DISABLE=1")
    assert "ACS off" in found.fix


def test_a_machine_without_gpus_evaluates_the_kernel() -> None:
    found = check(outcomes={"kernel on the CPU": RAN})
    assert found["GPUs"].found == "none: everything runs on the CPU"
    expected = "evaluated in 1.2 s, the result is right"
    assert found["kernel on the CPU"].found == expected
