"""`make setup LLAMA=`: arguments of cmake, missing tools, and no cached wheel of another build."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from forge.errors import MachineError
from forge.install.builds import (
    COMMON_ARGS,
    INCLUDES,
    LINK_ARGS,
    VULKAN_HEADERS,
    LlamaChoice,
    choose_llama,
)
from forge.install.project import Stamp, fingerprint, is_done, load_project, write_stamp
from forge.install.steps import Installer

ROOT = Path(__file__).resolve().parents[1]


VULKAN_CORE_TEXT = """\
#define VK_HEADER_VERSION {patch}
#define VK_HEADER_VERSION_COMPLETE VK_MAKE_API_VERSION(0, 1, 3, VK_HEADER_VERSION)
"""


def make_tool(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    path.chmod(0o755)
    return path


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CUDA toolkit and nothing else: no ROCm, no system headers."""
    home = tmp_path / "cuda"
    make_tool(home / "bin/nvcc")
    (home / "targets/x86_64-linux/include").mkdir(parents=True)
    (home / "targets/x86_64-linux/include/cublas_v2.h").touch()
    (home / "lib64").mkdir()
    (home / "lib64/libcublas.so").touch()
    monkeypatch.setattr("forge.install.builds.CUDA_HOME", tmp_path / "absent")
    monkeypatch.setattr("forge.install.builds.ROCM_HOME", tmp_path / "absent")
    monkeypatch.setattr("forge.install.builds.INCLUDES", ())
    return home


def test_cuda_is_built_for_the_gpus_of_this_machine(toolkit: Path, tmp_path: Path) -> None:
    make_tool(tmp_path / "bin/nvidia-smi", "9.0", "8.9", "9.0")
    path = f"{toolkit / 'bin'}:{tmp_path / 'bin'}"
    choice = choose_llama("cuda", {"PATH": path})
    assert choice.cmake_args == f"{COMMON_ARGS} -DGGML_CUDA=on -DCMAKE_CUDA_ARCHITECTURES=89;90"
    assert choice.library == "libggml-cuda.so"
    assert choice.path == ""
    given = "-DCMAKE_CUDA_ARCHITECTURES=100 -DGGML_NATIVE=OFF"
    named = choose_llama("cuda", {"PATH": str(toolkit / "bin"), "CMAKE_ARGS": given})
    assert named.cmake_args == f"{COMMON_ARGS} -DGGML_CUDA=on {given}", "the user's comes last"


def test_a_compiler_beside_the_toolkit_is_found_without_being_on_path(
    toolkit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forge.install.builds.CUDA_HOME", toolkit)
    env = {"PATH": "/nonexistent", "CMAKE_ARGS": "-DCMAKE_CUDA_ARCHITECTURES=90"}
    assert choose_llama("cuda", env).path == str(toolkit / "bin")


def test_each_missing_thing_of_a_build_is_a_line(toolkit: Path, tmp_path: Path) -> None:
    def said(name: str, **env: str) -> list[str]:
        with pytest.raises(MachineError) as raised:
            choose_llama(name, {"PATH": str(tmp_path / "bin"), **env})
        return str(raised.value).splitlines()

    no_nvcc, no_card = said("cuda")
    assert no_nvcc.startswith("LLAMA=cuda: no nvcc on PATH or in /usr/local/cuda; install")
    assert "CMAKE_ARGS='-DCMAKE_CUDA_ARCHITECTURES=90' builds for the GPUs" in no_card
    shutil.rmtree(toolkit / "targets")
    (no_cublas,) = said(
        "cuda", PATH=str(toolkit / "bin"), CMAKE_ARGS="-DCMAKE_CUDA_ARCHITECTURES=90"
    )
    assert no_cublas.startswith("LLAMA=cuda: no cuBLAS (cublas_v2.h, libcublas.so) beside ")
    headers = tmp_path / "headers"
    headers.mkdir()
    (headers / "cublas_v2.h").touch()
    elsewhere = {"PATH": str(toolkit / "bin"), "CPATH": str(headers)}
    choose_llama("cuda", {**elsewhere, "CMAKE_ARGS": "-DCMAKE_CUDA_ARCHITECTURES=90"})
    (toolkit / "lib64/libcublas.so").unlink()
    assert len(said("cuda", **elsewhere)) == 2, "no library, no card"
    named = "-DCMAKE_CUDA_ARCHITECTURES=90 -DCUDA_cublas_LIBRARY=/x/libcublas.so.13"
    choose_llama("cuda", {**elsewhere, "CMAKE_ARGS": named})
    assert [line.split(";")[0] for line in said("hip")] == [
        "LLAMA=hip: no hipcc on PATH or in /opt/rocm",
        "LLAMA=hip: rocm_agent_enumerator lists no GPU to build for",
    ]
    assert said("vulkan", VULKAN_SDK=str(tmp_path))[0].startswith("LLAMA=vulkan: no glslc")
    make_tool(tmp_path / "sdk/bin/glslc")
    for header, package in VULKAN_HEADERS.items():
        lacking = said("vulkan", VULKAN_SDK=str(tmp_path / "sdk"))
        assert f"LLAMA=vulkan: no {header}; Debian, Ubuntu: apt install {package}" in lacking
        (tmp_path / "sdk/include" / header).parent.mkdir(parents=True)
        (tmp_path / "sdk/include" / header).touch()
    core = tmp_path / "sdk/include/vulkan/vulkan_core.h"
    core.write_text(VULKAN_CORE_TEXT.format(patch=239))
    (too_old,) = said("vulkan", VULKAN_SDK=str(tmp_path / "sdk"))
    assert too_old.startswith(f"LLAMA=vulkan: {core} is Vulkan 1.3.239, 1.3.272 or later is")
    named = {"CMAKE_ARGS": "-DVulkan_INCLUDE_DIR=/new"}
    assert choose_llama("vulkan", {"PATH": "", "VULKAN_SDK": str(tmp_path / "sdk"), **named})
    for text in (VULKAN_CORE_TEXT.format(patch=272), "of a form that nobody knows yet"):
        core.write_text(text)
        assert choose_llama("vulkan", {"PATH": "", "VULKAN_SDK": str(tmp_path / "sdk")})
    choice = choose_llama("vulkan", {"PATH": "", "VULKAN_SDK": str(tmp_path / "sdk")})
    assert choice.cmake_args == f"{COMMON_ARGS} -DGGML_VULKAN=on"
    assert said("metal") == ["LLAMA=metal: allowed is cpu, cuda, hip, vulkan"]


@pytest.mark.skipif(shutil.which("cpp") is None, reason="asks the compiler")
def test_headers_are_searched_in_the_order_of_the_compiler() -> None:
    ran = subprocess.run(
        ["cpp", "-v", os.devnull], capture_output=True, text=True, timeout=20, check=True
    )
    lines = [Path(line.strip()) for line in ran.stderr.splitlines()]
    assert [line for line in lines if line in INCLUDES] == [one for one in INCLUDES if one in lines]


def test_hip_is_built_for_the_gpus_of_this_machine(toolkit: Path, tmp_path: Path) -> None:
    make_tool(tmp_path / "bin/hipcc")
    make_tool(tmp_path / "bin/rocm_agent_enumerator", "gfx000", "gfx942", "gfx942")
    choice = choose_llama("hip", {"PATH": str(tmp_path / "bin")})
    assert choice.cmake_args == f"{COMMON_ARGS} -DGGML_HIP=on -DGPU_TARGETS=gfx942"


class Recorded(Installer):
    """An installer that records pip's arguments and fakes the build that they ask for."""

    def __init__(self, root: Path, *, builds: bool = True) -> None:
        super().__init__(root, load_project(ROOT), {"PATH": "/usr/bin"})
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


CPU = LlamaChoice(name="cpu", cmake_args=COMMON_ARGS)
CUDA = LlamaChoice(name="cuda", cmake_args=f"{COMMON_ARGS} -DGGML_CUDA=on", path="/toolkit/bin")


def install(root: Path, choice: LlamaChoice, *, builds: bool = True) -> Recorded:
    installer = Recorded(root, builds=builds)
    installer.install_rest(choice)
    return installer


def test_a_gpu_build_uses_no_wheel_cache_and_is_made_once(
    tmp_path: Path,
) -> None:
    (plain,) = install(tmp_path, CPU).pips
    assert "--force-reinstall" not in plain
    assert "--no-cache-dir" not in plain
    built = install(tmp_path, CUDA)
    assert built.pips[0][:3] == ("--no-cache-dir", "--force-reinstall", "--no-deps")
    assert built.cmake_args == [CUDA.cmake_args] * 2
    assert not {"--no-deps", "--force-reinstall"} & set(built.pips[1]), "what it needs comes too"
    assert built._env["PATH"] == "/toolkit/bin:/usr/bin"
    assert install(tmp_path, CUDA).pips == [], "it is there"
    other = LlamaChoice(name="cuda", cmake_args=f"{CUDA.cmake_args} -DGGML_NATIVE=OFF")
    assert len(install(tmp_path, other).pips) == 2, "by other arguments it is another build"
    (back,) = install(tmp_path, CPU).pips
    assert "--force-reinstall" in back, "pip would take the version for installed"
    assert "--no-cache-dir" not in back


def test_the_users_linker_arguments_come_last_and_cause_a_rebuild(tmp_path: Path) -> None:
    assert install(tmp_path, CUDA)._env["LDFLAGS"] == LINK_ARGS
    installer = Recorded(tmp_path)
    installer._env["LDFLAGS"] = "-L/x"
    installer.install_rest(CUDA)
    assert installer._env["LDFLAGS"] == f"{LINK_ARGS} -L/x"
    assert len(installer.pips) == 2


@pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("g++") is None, reason="links with GNU's tools"
)
def test_a_library_does_not_export_its_own_copy_of_libstdcxx(tmp_path: Path) -> None:
    (tmp_path / "x.cc").write_text(
        "#include <sstream>\n"
        "std::string shown(int x) { std::ostringstream s; s << x; return s.str(); }\n"
    )

    def exported(*args: str) -> str:
        argv = ["g++", "-shared", "-fPIC", "-static-libstdc++", "x.cc", "-o", "x.so", *args]
        subprocess.run(argv, cwd=tmp_path, check=True, timeout=60)
        nm = ["nm", "-D", "--defined-only", "-C", "x.so"]
        return subprocess.run(
            nm, cwd=tmp_path, check=True, timeout=60, capture_output=True, text=True
        ).stdout

    assert "_M_insert" in exported()
    hidden = exported(LINK_ARGS)
    assert "_M_insert" not in hidden
    assert "shown" in hidden


def test_a_build_that_lacks_its_gpu_backend_fails(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"built for cuda but does not load here"):
        install(tmp_path, CUDA, builds=False)
    assert len(install(tmp_path, CUDA).pips) == 2, "the next setup builds again"


def test_the_stamp_keeps_the_build_until_another_is_requested(tmp_path: Path) -> None:
    venv = tmp_path / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin/forge").touch()
    wanted = fingerprint(load_project(ROOT), ROOT, {})
    stamp = Stamp(fingerprint=wanted, torch="cuda", root=str(tmp_path), llama="cuda")
    write_stamp(venv, stamp)

    def done(llama: str | None) -> bool:
        return is_done(venv, root=tmp_path, wanted=wanted, torch=None, python=None, llama=llama)

    assert done(None)
    assert done("cuda")
    assert not done("cpu")
