"""Packages and engines in `forge doctor`: versions, imports that fail, the engine of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge.commands.doctor.finding import Finding, Severity
from forge.commands.doctor.probe import (
    PACKAGES,
    EngineFacts,
    Imported,
    check_engines,
    check_packages,
)
from forge.config.schema import ServeTable
from forge.process.devices import Gpu, Vendor
from forge.serve.engines import ENGINES, Interpreter

if TYPE_CHECKING:
    import pytest

ALL = frozenset(module for kind in ENGINES.values() for module in kind.requires)
CARD = Gpu(
    vendor=Vendor.NVIDIA, index=0, uuid="GPU-0", name="H200", memory_bytes=1, free_bytes=1
)  # fmt: skip


def check(python: Interpreter, **facts: Any) -> dict[str, Finding]:
    return {each.name: each for each in check_engines(EngineFacts(python=python, **facts))}


def test_a_package_that_does_not_import_is_an_error_with_its_words() -> None:
    packages = {name: Imported(version="1") for name in PACKAGES}
    packages["triton"] = Imported(fault="ImportError: libLLVM.so")
    packages["trl"] = Imported(fault="ModuleNotFoundError: ...", is_missing=True)
    found = {each.name: each for each in check_packages(packages)}
    assert found["torch"] == Finding(name="torch", found="1")
    assert found["triton"].severity is found["trl"].severity is Severity.ERROR
    assert "ImportError: libLLVM.so" in found["triton"].found
    assert found["trl"].found == "not installed"


def test_a_vllm_that_does_not_match_torch_is_named_with_both_versions_and_the_fix() -> None:
    python = Interpreter(
        python="/opt/python",
        versions={"vllm": "0.24.0", "torch": "2.13.0"},
        modules=ALL,
        vllm_requires=("torch==2.11.0",),
    )
    found = check(python, gpus=[CARD])
    vllm = found["engine vllm"]
    assert vllm.severity is Severity.ERROR
    assert vllm.found == "0.24.0, which does not match torch 2.13.0"
    assert "needs torch 2.11.0" in vllm.fix
    assert found["serve.python"].found == "/opt/python: vllm 0.24.0, torch 2.13.0"


def test_an_untested_vllm_is_reported_and_allowed() -> None:
    python = Interpreter(python="", versions={"vllm": "0.99.1", "torch": "2.13.0"}, modules=ALL)
    found = check(python, gpus=[CARD])["engine vllm"]
    assert (found.severity, found.found) == (Severity.OK, "0.99.1; tested is 0.24")


def test_a_vllm_whose_import_fails_is_an_error_where_a_run_would_take_it() -> None:
    python = Interpreter(python="/opt/python", versions={"vllm": "0.24.0"}, modules=ALL)
    fault = "ImportError: libcudart.so.13: cannot open shared object file"
    imported = {"vllm": Imported(fault=fault), "torch": Imported(version="2.11.0")}
    found = check(python, gpus=[CARD], imported=imported)["engine vllm"]
    assert found.severity is Severity.ERROR
    assert found.found == f"vllm does not import in /opt/python: {fault}"
    table = ServeTable(engine="llama")
    found = check(python, gpus=[CARD], imported=imported, table=table)["engine vllm"]
    assert found.severity is Severity.WARNING


def test_a_llama_whose_library_does_not_load_is_an_error_where_a_run_would_take_it() -> None:
    python = Interpreter(python="", modules=ALL)
    imported = {"llama_cpp": Imported(fault="killed by signal 4 while importing llama_cpp")}
    found = check(python, imported=imported)["engine llama"]
    assert found.severity is Severity.ERROR
    assert "killed by signal 4" in found.found
    assert "make setup" in found.fix


def test_an_engine_that_a_run_would_need_but_is_absent_is_an_error() -> None:
    found = check(Interpreter(python="", modules=frozenset()))
    assert found["engine llama"].severity is Severity.ERROR
    assert found["engine hf"].severity is Severity.WARNING
    assert found["engine vllm"].severity is Severity.OK
    asked = check(Interpreter(python="", modules=frozenset()), table=ServeTable(engine="vllm"))
    assert asked["engine vllm"].severity is Severity.ERROR


def test_a_gpu_machine_without_a_fast_engine_gets_install_advice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = Interpreter(
        python="", modules=ALL - {"vllm"}, llama_backends=frozenset({"base", "cpu"})
    )
    monkeypatch.setattr("forge.serve.engines.read_interpreter", lambda _table: plain)
    found = check(plain, gpus=[CARD])
    assert found["engine llama"].found == "installed, built for cpu"
    assert "make setup LLAMA=cuda" in found["engine llama"].fix
    slow = found["engine of runs"]
    assert slow.severity is Severity.WARNING
    assert slow.found.startswith("hf: vllm is not installed, and llama is built")
    without_gpus = check(plain)
    assert without_gpus["engine of runs"].found == "llama: the fastest on a CPU"
    assert without_gpus["engine llama"].fix == without_gpus["engine vllm"].fix == ""


def test_a_llama_for_gpus_is_the_engine_of_a_gpu_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    built = Interpreter(
        python="", modules=ALL - {"vllm"}, llama_backends=frozenset({"base", "cpu", "cuda"})
    )
    monkeypatch.setattr("forge.serve.engines.read_interpreter", lambda _table: built)
    found = check(built, gpus=[CARD])
    assert found["engine llama"].found == "installed, built for cpu, cuda"
    assert found["engine of runs"].found == "llama: vllm is not installed; llama is built for GPUs"
