"""The choice of an engine, and one-line errors for mismatches before anything starts."""

import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from forge.config.schema import ServeTable
from forge.errors import MachineError
from forge.process.devices import Vendor
from forge.serve.engines import (
    ENGINES,
    TESTED_VLLM,
    Interpreter,
    check_engine,
    choose_engine,
    find_fault,
    find_mismatch,
    is_tested_vllm,
    read_interpreter,
)
from tests.gpus import make_gpu

ROOT = Path(__file__).parents[2]
ALL = frozenset(ENGINES)
VLLM = Interpreter(
    python="/opt/vllm/bin/python",
    versions={"vllm": "0.24.0", "torch": "2.11.0+cu130"},
    modules=frozenset(ENGINES["vllm"].requires),
    vllm_requires=("numpy", 'torch==2.6.0; extra == "rocm"', "torch==2.11.0", "triton==3.6.0"),
)
LLAMA = Interpreter(
    python="",
    modules=frozenset(ENGINES["llama"].requires),
    llama_backends=frozenset({"base", "cpu", "cpu-haswell"}),
)


def make_python(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_a_torch_that_vllm_was_not_built_for_is_named_with_both_versions() -> None:
    assert find_mismatch(VLLM) is None
    other = replace(VLLM, versions={"vllm": "0.24.0", "torch": "2.13.0"})
    said = find_fault("vllm", other, num_gpus=1) or ""
    assert said.startswith(
        "vllm 0.24.0 in /opt/vllm/bin/python needs torch 2.11.0; found torch 2.13.0."
    )
    assert "serve.python" in said
    assert "\n" not in said
    loose = replace(other, vllm_requires=("torch>=2.9",))
    assert find_mismatch(loose) is None


def test_vllm_without_a_gpu_or_without_its_modules_is_refused() -> None:
    assert find_fault("vllm", VLLM, num_gpus=1) is None
    assert "it needs a GPU" in (find_fault("vllm", VLLM, num_gpus=0) or "")
    bare = replace(VLLM, modules=VLLM.modules - {"uvicorn"})
    said = find_fault("vllm", bare, num_gpus=1) or ""
    assert said.startswith("uvicorn is not installed in /opt/vllm/bin/python")


def test_a_llama_built_for_the_cpu_is_refused_on_gpus() -> None:
    assert find_fault("llama", LLAMA, num_gpus=0) is None
    said = find_fault("llama", LLAMA, num_gpus=2) or ""
    assert "built for the CPU, and devices.serve gives it 2 GPUs; `make setup LLAMA=cuda`" in said
    built = replace(LLAMA, llama_backends=LLAMA.llama_backends | {"cuda"})
    assert find_fault("llama", built, num_gpus=2) is None


@pytest.mark.parametrize(
    ("vendor", "backend", "fits"),
    [
        (Vendor.NVIDIA, "cuda", True), (Vendor.NVIDIA, "hip", False), (Vendor.AMD, "hip", True),
        (Vendor.AMD, "cuda", False), (Vendor.AMD, "vulkan", True), (Vendor.NVIDIA, "vulkan", True),
    ],
)  # fmt: skip
def test_a_llama_built_for_another_vendors_gpus_is_refused(
    monkeypatch: pytest.MonkeyPatch, vendor: Vendor, backend: str, fits: bool
) -> None:
    monkeypatch.setattr("forge.serve.engines.inventory", lambda: (make_gpu(vendor=vendor),))
    built = replace(LLAMA, llama_backends=frozenset({"cpu", backend}))
    said = find_fault("llama", built, num_gpus=1)
    if fits:
        assert said is None
    else:
        assert f"llama.cpp is built for {backend}, and devices.serve gives it 1 GPU" in (said or "")


def test_auto_is_the_fastest_engine_for_model_and_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    auto, gpu = ServeTable(engine="auto"), ("GPU-1",)

    def chosen(gpus: tuple[str, ...], *names: str, no_llama: str | None = None) -> str:
        name, reason = choose_engine(auto, gpus=gpus, installed=frozenset(names), no_llama=no_llama)
        assert reason
        return name

    assert chosen((), *ALL) == "llama"
    assert chosen((), *ALL, no_llama="rwkv") == "hf"
    assert chosen((), "hf") == "hf"
    assert chosen(()) == "llama", "whose advice says how to install it"
    assert chosen(gpu, *ALL) == "vllm"
    assert chosen(gpu, "llama", "hf", no_llama="afmoe") == "hf"
    monkeypatch.setattr("forge.serve.engines.read_interpreter", lambda _table: LLAMA)
    assert chosen(gpu, "llama", "hf") == "hf"
    built = replace(LLAMA, llama_backends=frozenset({"cpu", "vulkan"}))
    monkeypatch.setattr("forge.serve.engines.read_interpreter", lambda _table: built)
    assert chosen(gpu, "llama", "hf") == "llama"
    assert choose_engine(ServeTable(engine="hf"), gpus=gpu, installed=ALL)[0] == "hf"


def test_another_interpreter_reports_its_own_modules(tmp_path: Path) -> None:
    real = make_python(tmp_path / "real", f'exec {sys.executable} "$@"')
    found = read_interpreter(ServeTable(python=real))
    assert replace(found, python="") == read_interpreter()
    table = ServeTable(env={"PYTHONPATH": str(tmp_path)})
    (tmp_path / "vllm-0.24.0.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: vllm\nVersion: 0.24.0\nRequires-Dist: torch==1.0\n"
    (tmp_path / "vllm-0.24.0.dist-info/METADATA").write_text(metadata)
    said = find_mismatch(read_interpreter(table)) or ""
    assert "vllm 0.24.0" in said
    assert "needs torch 1.0; found torch" in said


def test_an_interpreter_that_fails_is_named_with_its_last_line(tmp_path: Path) -> None:
    broken = make_python(tmp_path / "broken", "echo first >&2; echo no such library >&2; exit 1")
    with pytest.raises(MachineError, match=r"broken. is not a working Python: no such library$"):
        check_engine(ServeTable(python=broken))
    talking = make_python(tmp_path / "talking", "echo hello")
    with pytest.raises(MachineError, match="is not a working Python"):
        check_engine(ServeTable(python=talking))
    with pytest.raises(MachineError, match="is not a working Python"):
        check_engine(ServeTable(python=tmp_path / "absent"))


def test_an_interpreter_too_old_or_without_forge_is_refused(tmp_path: Path) -> None:
    told = '{{"python": {}, "modules": [], "versions": {{}}}}'
    old = make_python(tmp_path / "old", f"echo '{told.format([3, 10])}'")
    with pytest.raises(MachineError, match=r"old. is Python 3\.10; forge needs 3\.11 or newer$"):
        check_engine(ServeTable(python=old))
    bare = make_python(tmp_path / "bare", f"echo '{told.format([3, 12])}'")
    with pytest.raises(MachineError, match=r"bare. has no forge"):
        check_engine(ServeTable(python=bare))


def test_the_extra_requires_the_tested_vllm() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["vllm"] == [f"vllm=={TESTED_VLLM}.*"]
    assert is_tested_vllm(f"{TESTED_VLLM}.3")
    assert not is_tested_vllm(f"{TESTED_VLLM}0.1")
