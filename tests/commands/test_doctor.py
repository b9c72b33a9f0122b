"""`forge doctor`: engines with their builds and versions, GPUs with their users, and fixes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from forge.commands import doctor
from forge.commands.doctor import Finding, examine
from forge.config.schema import ServeTable
from forge.process.devices import Gpu, Vendor
from forge.process.gpu_users import GpuUser
from forge.runner.plan.machine import this_machine
from forge.serve.installed.engines import ENGINES
from forge.serve.installed.versions import Interpreter

if TYPE_CHECKING:
    import pytest

ALL = frozenset(module for kind in ENGINES.values() for module in kind.requires)


def findings(
    monkeypatch: pytest.MonkeyPatch, python: Interpreter, *, gpus: tuple[str, ...] = ()
) -> dict[str, Finding]:
    monkeypatch.setattr(doctor, "read_interpreter", lambda _serve: python)
    monkeypatch.setattr("forge.serve.installed.engines.read_interpreter", lambda _serve: python)
    monkeypatch.setattr(doctor, "inventory", lambda: gpus)
    return {finding.name: finding for finding in examine(Path("/tmp"))}


def test_a_vllm_that_does_not_match_torch_is_named_with_both_versions_and_the_fix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    python = Interpreter(
        python="/opt/python",
        versions={"vllm": "0.24.0", "torch": "2.13.0"},
        modules=ALL,
        vllm_requires=("torch==2.11.0",),
    )
    found = findings(monkeypatch, python, gpus=("GPU-1",))
    vllm = found["engine vllm"]
    assert not vllm.is_ok
    assert vllm.found == "0.24.0, which does not match torch 2.13.0"
    assert "needs torch 2.11.0" in vllm.fix
    assert found["serve.python"].found == "/opt/python: vllm 0.24.0, torch 2.13.0"


def test_an_untested_vllm_is_reported_and_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    python = Interpreter(python="", versions={"vllm": "0.99.1", "torch": "2.13.0"}, modules=ALL)
    found = findings(monkeypatch, python, gpus=("GPU-1",))["engine vllm"]
    assert found.is_ok
    assert found.found == "0.99.1; tested is 0.24"


def test_a_gpu_machine_without_a_fast_engine_gets_install_advice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = Interpreter(
        python="", modules=ALL - {"vllm"}, llama_backends=frozenset({"base", "cpu"})
    )
    found = findings(monkeypatch, plain, gpus=("GPU-1",))
    assert found["engine llama"].found == "installed, built for cpu"
    assert "make setup LLAMA=cuda" in found["engine llama"].fix
    assert not found["engine of runs"].is_ok
    assert found["engine of runs"].found.startswith("hf: vllm is not installed, and llama is built")
    built = Interpreter(
        python="", modules=ALL - {"vllm"}, llama_backends=frozenset({"base", "cpu", "cuda"})
    )
    found = findings(monkeypatch, built, gpus=("GPU-1",))
    assert found["engine llama"].found == "installed, built for cpu, cuda"
    assert found["engine of runs"].is_ok
    without_gpus = findings(monkeypatch, plain)
    assert without_gpus["engine of runs"].found == "llama: the fastest on a CPU"
    assert without_gpus["engine llama"].fix == without_gpus["engine vllm"].fix == ""


def test_an_interpreter_that_does_not_run_is_a_finding(tmp_path: Path) -> None:
    found = {f.name: f for f in examine(tmp_path, serve=ServeTable(python=tmp_path / "absent"))}
    assert not found["engines"].is_ok
    assert "is not a working Python" in found["engines"].found


def test_users_of_a_gpu_and_hidden_gpus_are_listed(tmp_path: Path) -> None:
    card = Gpu(
        vendor=Vendor.NVIDIA, index=0, uuid="GPU-0", name="H200", memory_bytes=141 << 30,
        free_bytes=100 << 30,
    )  # fmt: skip
    machine = replace(
        this_machine(tmp_path),
        gpus=(card,),
        gpu_users={"GPU-0": (GpuUser(pid=7, name="python", memory_bytes=44 << 30),)},
        hidden_gpus="GPU 1 is split into MIG slices",
    )
    found = {each.name: each.found for each in doctor._hardware(machine, tmp_path)}
    expected = "H200, 107 of 151 GB free, GPU-0; pid 7 (python) holds 47.2 GB"
    assert found["GPU 0"] == expected
    assert found["hidden GPUs"] == "GPU 1 is split into MIG slices"
