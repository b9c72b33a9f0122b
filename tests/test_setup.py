"""Setup: one line per missing thing, no replaced builds, nothing left incomplete."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from forge.errors import MachineError
from forge.exits import EXTRAS, ending_of
from forge.install import setup
from forge.install.__main__ import PYTHON_AT_LEAST, find_unsupported
from forge.serve import engines

ROOT = Path(__file__).resolve().parents[1]


def put_tools(directory: Path, *names: str) -> Path:
    """A directory for PATH that holds links to these tools only."""
    directory.mkdir()
    for name in names:
        found = shutil.which(name)
        assert found, f"{name} is needed for this test"
        (directory / name).symlink_to(found)
    return directory


@pytest.mark.parametrize(
    ("tools", "need_bytes", "faults"),
    [
        ("make cc c++", 0, []),
        ("", 0, ["apt install make", "apt install gcc", "apt install g++"]),
        ("make cc c++", 1 << 60, ["setup needs 1073741824.0 GiB"]),
    ],
)
def test_each_missing_thing_is_one_line_with_its_fix(tools, need_bytes, faults, tmp_path):
    env = {"PATH": str(put_tools(tmp_path / "bin", *tools.split()))}
    found = setup.find_faults(tmp_path, env, need_bytes=need_bytes)
    found = [each for each in found if "Python.h" not in each and "TMPDIR" not in each]
    assert len(found) == len(faults)
    assert all(words in each for words, each in zip(faults, found, strict=True))
    assert all("\n" not in each for each in found)


def test_no_cxx_compiler_ends_setup_with_exit_3_and_makes_nothing(tmp_path):
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "forge/install", checkout / "forge/install")
    for name in (
        *("forge/__init__.py", "forge/errors.py", "forge/version.py"),
        *("pyproject.toml", "constraints.txt"),
    ):
        shutil.copy(ROOT / name, checkout / name)
    tools = put_tools(tmp_path / "bin", "make", "cc")
    ran = subprocess.run(
        [sys.executable, "-m", "forge.install"],
        cwd=checkout,
        env={"PATH": str(tools), "TORCH": "cpu"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = [line for line in ran.stderr.splitlines() if "disk:" not in line]
    assert ran.returncode == 3
    assert len(lines) == 1
    assert lines[0].startswith("setup: no C++ compiler on PATH")
    assert lines[0].endswith("apt install g++")
    assert not (checkout / ".venv").exists()


def test_a_compiler_named_by_the_environment_is_used(tmp_path):
    tools = put_tools(tmp_path / "bin", "make", "cc", "c++")
    env = {"PATH": str(tools), "CC": "cc -O2", "CXX": "no-such-compiler"}
    found = "\n".join(setup.find_faults(tmp_path, env, need_bytes=0))
    assert "no C++ compiler" in found
    assert "no C compiler" not in found


def test_other_systems_and_old_pythons_are_refused_at_once():
    assert find_unsupported("darwin", (3, 12)) == "forge runs on Linux only; this is darwin"
    assert "PYTHON=python3.11" in (find_unsupported("linux", (3, 9)) or "")
    assert find_unsupported("linux", (3, 14)) is None


def test_the_minimum_python_is_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">={}.{}".format(*PYTHON_AT_LEAST)
    assert engines.PYTHON_AT_LEAST == PYTHON_AT_LEAST


def test_the_entry_point_of_setup_loads_under_an_old_python():
    for name in ("__init__.py", "version.py", "install/__init__.py", "install/__main__.py"):
        source = (ROOT / "forge" / name).read_text(encoding="utf-8")
        ast.parse(source, feature_version=(3, 6))
        assert "import annotations" not in source, "Python 3.6 does not know it"


def test_the_index_of_cpu_wheels_is_used_only_if_it_answers():
    def args(name: str, is_up: bool) -> tuple[str, ...]:
        return setup.choose_torch(
            name, tested="torch==2.13.0", rocm="7.0", is_cpu_index_up=is_up
        ).pip_args

    assert args("cpu", False) == ("torch==2.13.0",)
    assert args("cpu", True)[1:] == ("--extra-index-url", "https://download.pytorch.org/whl/cpu")
    assert args("cuda", True) == ("torch==2.13.0",)
    assert args("rocm", True)[-1].endswith("/rocm7.0")
    assert args("torch==2.12 --pre", True) == ("torch==2.12", "--pre")


def test_rocm_without_a_version_is_an_error_with_advice(tmp_path):
    info = tmp_path / "version"
    info.write_text("7.0.2-56\n")
    assert setup.read_rocm_version(info) == "7.0"
    assert setup.read_rocm_version(tmp_path / "absent") is None
    with pytest.raises(MachineError, match="TORCH="):
        setup.choose_torch("rocm", tested="torch==2.13.0", rocm=None, is_cpu_index_up=False)


def test_a_gpu_that_nvidia_smi_lists_means_cuda(tmp_path):
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'GPU 0: H200 (UUID: GPU-1)'\n")
    smi.chmod(0o755)
    assert setup.detect_accelerator({"PATH": str(tmp_path)}) == "cuda"
    smi.write_text("#!/bin/sh\nexit 9\n")
    assert setup.detect_accelerator({"PATH": str(tmp_path)}) != "cuda"


def test_an_unreachable_index_costs_little_time():
    assert not setup.is_reachable("http://127.0.0.1:9/", patience_s=1.0)


def test_torch_is_pinned_to_the_installed_build():
    tested = "numpy==2.4.6\ntorch==2.13.0\ntriton==3.9.0\n"
    cpu = setup.pin_torch(tested, torch="2.13.0+cpu", triton="3.9.0").splitlines()
    assert cpu == ["numpy==2.4.6", "triton==3.9.0", "torch==2.13.0+cpu"]
    cuda = setup.pin_torch(tested, torch="2.13.0", triton="3.8.1").splitlines()
    assert cuda == ["numpy==2.4.6", "torch==2.13.0", "triton==3.8.1"]
    assert "triton" not in setup.pin_torch(tested, torch="2.13.0+rocm7.0", triton=None)


def test_pypi_triton_does_not_replace_the_one_of_rocm():
    wanted = ["trl>=1.16", "triton>=3.5; platform_system == 'Linux'"]
    assert setup.drop_triton(wanted, torch="2.13.0+rocm7.0", triton=None) == wanted[:1]
    assert setup.drop_triton(wanted, torch="2.13.0+cpu", triton=None) == wanted
    assert setup.drop_triton(wanted, torch="2.13.0", triton="3.8.1") == wanted


def test_an_interrupted_install_is_found_by_its_record(tmp_path):
    for name, record in {
        "whole": "whole.py,sha256=x,5\nwhole-1.dist-info/RECORD,,\n__pycache__/a.pyc,,\n",
        "cut": "cut.py,sha256=x,5\n",
        "absent": "absent.py,sha256=x,5\n",
    }.items():
        info = tmp_path / f"{name}-1.dist-info"
        info.mkdir()
        (info / "RECORD").write_text(record)
    (tmp_path / "no_record-1.dist-info").mkdir()
    (tmp_path / "whole.py").write_text("12345")
    (tmp_path / "cut.py").write_text("12")
    damaged = {info.name.partition("-")[0] for info in setup.find_damaged(tmp_path)}
    assert damaged == {"absent", "cut", "no_record"}


def test_the_stamp_is_valid_until_an_input_changes(tmp_path):
    venv = tmp_path / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin/forge").touch()
    (venv / "lib/python3.11").mkdir(parents=True)
    project = setup.load_project(ROOT)
    wanted = setup.fingerprint(project, ROOT, {})

    def done(root: Path = tmp_path, **asked: str) -> bool:
        choices: dict[str, str | None] = {"torch": None, "python": None, "llama": None, **asked}
        return setup.is_done(venv, root=root, wanted=wanted, **choices)

    assert not done()
    setup.write_stamp(
        venv, setup.Stamp(fingerprint=wanted, torch="cpu", root=str(tmp_path), llama="cuda")
    )
    assert json.loads((venv / "setup.json").read_text())["torch"] == "cpu"
    assert not (venv / "setup.json.new").exists()
    assert done()
    assert done(torch="cpu", python="python3.11", llama="cuda")
    assert not done(torch="cuda")
    assert not done(python="python3.12")
    assert not done(llama="cpu")
    assert not done(root=ROOT)
    changed = replace(project, constraints=project.constraints + "six==1.17.0\n")
    assert setup.fingerprint(changed, ROOT, {}) != wanted
    assert setup.fingerprint(project, ROOT, {"CMAKE_ARGS": "-DGGML_CUDA=on"}) != wanted
    linted = replace(project, tables={**project.tables, "tool": {"ruff": {"line-length": 1}}})
    assert setup.fingerprint(linted, ROOT, {}) == wanted, "it changes no package"


def test_a_failed_step_is_named_below_its_own_output(tmp_path, capfd):
    python = make_tool(tmp_path / ".venv/bin/python", "no matching distribution", code=7)
    (tmp_path / ".venv/lib/python3.11/site-packages").mkdir(parents=True)
    installer = setup.Installer(tmp_path, setup.load_project(ROOT), {})
    choice = setup.choose_torch("cpu", tested="torch", rocm=None, is_cpu_index_up=False)
    with pytest.raises(MachineError, match=r"2/5 torch \(cpu\): pip failed"):
        installer.install_torch(choice, is_other=False)
    assert capfd.readouterr().out == "no matching distribution\n"
    assert setup.run_command([str(python)], env=os.environ) == 7


def direct_dependencies(project: setup.Project) -> list[str]:
    lines = [*project.requirements, project.llama, project.torch]
    return [re.split(r"[\[>=;]", line)[0].lower().replace("_", "-") for line in lines]


def test_constraints_pin_every_direct_dependency_which_is_declared_once():
    project = setup.load_project(ROOT)
    names = direct_dependencies(project)
    assert len(names) == len(set(names))
    pinned = {line.partition("==")[0] for line in project.constraints.splitlines()}
    assert set(names) <= pinned


def test_the_extras_are_those_that_a_missing_module_names():
    extras = setup.load_project(ROOT).tables["project"]["optional-dependencies"]
    for extra, modules in EXTRAS.items():
        lines = [line for line in extras[extra] if not line.startswith("forge-kernels[")]
        names = [re.split(r"[\[>=;]", line)[0].replace("-", "_") for line in lines]
        assert names == list(modules)


def test_the_judge_extra_needs_nothing_of_a_trainer():
    tables = setup.load_project(ROOT).tables["project"]
    lines = [*tables["dependencies"], *tables["optional-dependencies"]["judge"]]
    names = {re.split(r"[\[>=;]", line)[0] for line in lines}
    assert names.isdisjoint({"trl", "textual", "transformers", "datasets", "peft", "tokenizers"})


def test_a_package_of_an_extra_that_is_missing_is_one_line():
    error = ModuleNotFoundError("No module named 'textual.app'", name="textual.app")
    ending = ending_of(ExceptionGroup("g", [error]))
    assert (ending.code, ending.message) == (
        3, "textual is not installed: pip install 'forge-kernels[train]', or make setup"
    )  # fmt: skip
    assert ending_of(ModuleNotFoundError("no", name="forge.none")).is_bug


def test_setup_compiles_forge_for_its_first_command(tmp_path):
    shutil.copytree(ROOT / "forge/install", tmp_path / "forge/install")
    (tmp_path / ".venv/lib/python3.11/site-packages").mkdir(parents=True)
    (tmp_path / ".venv/bin").mkdir()
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    shutil.rmtree(tmp_path / "forge/install/__pycache__", ignore_errors=True)
    setup.Installer(tmp_path, setup.load_project(ROOT), {}).compile_bytecode()
    assert list(tmp_path.glob("forge/install/__pycache__/setup.*.pyc"))


def make_tool(path: Path, *lines: str, code: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    said = "".join(f"echo '{line}'\n" for line in lines)
    path.write_text(f"#!/bin/sh\n{said}exit {code}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CUDA toolkit and nothing else: no ROCm."""
    home = tmp_path / "cuda"
    make_tool(home / "bin/nvcc")
    monkeypatch.setattr("forge.install.setup.CUDA_HOME", tmp_path / "absent")
    monkeypatch.setattr("forge.install.setup.ROCM_HOME", tmp_path / "absent")
    return home


def test_cuda_is_built_for_the_gpus_of_this_machine(toolkit, tmp_path):
    make_tool(tmp_path / "bin/nvidia-smi", "9.0", "8.9", "9.0")
    path = f"{toolkit / 'bin'}:{tmp_path / 'bin'}"
    choice = setup.choose_llama("cuda", {"PATH": path})
    assert (
        choice.cmake_args == f"{setup.COMMON_ARGS} -DGGML_CUDA=on -DCMAKE_CUDA_ARCHITECTURES=89;90"
    )
    assert choice.library == "libggml-cuda.so"
    assert choice.path == ""
    given = "-DCMAKE_CUDA_ARCHITECTURES=100 -DGGML_NATIVE=OFF"
    named = setup.choose_llama("cuda", {"PATH": str(toolkit / "bin"), "CMAKE_ARGS": given})
    assert named.cmake_args == f"{setup.COMMON_ARGS} -DGGML_CUDA=on {given}", (
        "the user's comes last"
    )


def test_a_compiler_beside_the_toolkit_is_found_without_being_on_path(toolkit, monkeypatch):
    monkeypatch.setattr("forge.install.setup.CUDA_HOME", toolkit)
    env = {"PATH": "/nonexistent", "CMAKE_ARGS": "-DCMAKE_CUDA_ARCHITECTURES=90"}
    assert setup.choose_llama("cuda", env).path == str(toolkit / "bin")


def test_each_missing_thing_of_a_build_is_a_line(toolkit, tmp_path):
    def said(name: str, **env: str) -> list[str]:
        with pytest.raises(MachineError) as raised:
            setup.choose_llama(name, {"PATH": str(tmp_path / "bin"), **env})
        return str(raised.value).splitlines()

    no_nvcc, no_card = said("cuda")
    assert no_nvcc.startswith("LLAMA=cuda: no nvcc on PATH or in /usr/local/cuda; install")
    assert "CMAKE_ARGS='-DCMAKE_CUDA_ARCHITECTURES=90' builds for the GPUs" in no_card
    assert [line.split(";")[0] for line in said("hip")] == [
        "LLAMA=hip: no hipcc on PATH or in /opt/rocm",
        "LLAMA=hip: rocm_agent_enumerator lists no GPU to build for",
    ]
    assert said("vulkan", VULKAN_SDK=str(tmp_path))[0].startswith("LLAMA=vulkan: no glslc")
    make_tool(tmp_path / "sdk/bin/glslc")
    choice = setup.choose_llama("vulkan", {"PATH": "", "VULKAN_SDK": str(tmp_path / "sdk")})
    assert choice.cmake_args == f"{setup.COMMON_ARGS} -DGGML_VULKAN=on"
    assert said("metal") == ["LLAMA=metal: allowed is cpu, cuda, hip, vulkan"]


def test_hip_is_built_for_the_gpus_of_this_machine(toolkit, tmp_path):
    make_tool(tmp_path / "bin/hipcc")
    make_tool(tmp_path / "bin/rocm_agent_enumerator", "gfx000", "gfx942", "gfx942")
    choice = setup.choose_llama("hip", {"PATH": str(tmp_path / "bin")})
    assert choice.cmake_args == f"{setup.COMMON_ARGS} -DGGML_HIP=on -DGPU_TARGETS=gfx942"


class Recorded(setup.Installer):
    """An installer that records pip's arguments and fakes the build that they ask for."""

    def __init__(self, root: Path, *, builds: bool = True) -> None:
        super().__init__(root, setup.load_project(ROOT), {"PATH": "/usr/bin"})
        self.pips: list[tuple[str, ...]] = []
        self.cmake_args: list[str] = []
        self._builds = builds
        self.site = root / f".venv/lib/python3.{sys.version_info[1]}/site-packages"
        self.site.mkdir(parents=True, exist_ok=True)
        for name, version in (("torch", "2.13.0+cpu"), ("llama-cpp-python", "0.3.36")):
            info = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
            info.mkdir(exist_ok=True)
            (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")

    def _pip(self, label: str, *args: str) -> None:
        if "llama" not in label:
            return
        self.pips.append(args)
        self.cmake_args.append(self._env["CMAKE_ARGS"])
        library = self.site / "llama_cpp/lib/libggml-cuda.so"
        library.parent.mkdir(parents=True, exist_ok=True)
        library.unlink(missing_ok=True)
        if self._builds and "GGML_CUDA" in self._env["CMAKE_ARGS"]:
            library.touch()

    def _succeeds(self, code: str) -> bool:
        return True


CPU = setup.LlamaChoice(name="cpu", cmake_args=setup.COMMON_ARGS)
CUDA = setup.LlamaChoice(
    name="cuda", cmake_args=f"{setup.COMMON_ARGS} -DGGML_CUDA=on", path="/toolkit/bin"
)


def install(root: Path, choice: setup.LlamaChoice, *, builds: bool = True) -> Recorded:
    installer = Recorded(root, builds=builds)
    installer.install_rest(choice)
    return installer


def test_a_gpu_build_uses_no_wheel_cache_and_is_made_once(tmp_path):
    (plain,) = install(tmp_path, CPU).pips
    assert "--force-reinstall" not in plain
    assert "--no-cache-dir" not in plain
    built = install(tmp_path, CUDA)
    assert built.pips[0][:3] == ("--no-cache-dir", "--force-reinstall", "--no-deps")
    assert built.cmake_args == [CUDA.cmake_args] * 2
    assert not {"--no-deps", "--force-reinstall"} & set(built.pips[1]), "what it needs comes too"
    assert built._env["PATH"] == "/toolkit/bin:/usr/bin"
    assert install(tmp_path, CUDA).pips == [], "it is there"
    other = setup.LlamaChoice(name="cuda", cmake_args=f"{CUDA.cmake_args} -DGGML_NATIVE=OFF")
    assert len(install(tmp_path, other).pips) == 2, "by other arguments it is another build"
    (back,) = install(tmp_path, CPU).pips
    assert "--force-reinstall" in back, "pip would take the version for installed"
    assert "--no-cache-dir" not in back


def test_the_users_linker_arguments_come_last_and_cause_a_rebuild(tmp_path):
    assert install(tmp_path, CUDA)._env["LDFLAGS"] == setup.LINK_ARGS
    installer = Recorded(tmp_path)
    installer._env["LDFLAGS"] = "-L/x"
    installer.install_rest(CUDA)
    assert installer._env["LDFLAGS"] == f"{setup.LINK_ARGS} -L/x"
    assert len(installer.pips) == 2


def test_a_build_that_lacks_its_gpu_backend_fails(tmp_path):
    with pytest.raises(MachineError, match=r"built for cuda but does not load here"):
        install(tmp_path, CUDA, builds=False)
    assert len(install(tmp_path, CUDA).pips) == 2, "the next setup builds again"
