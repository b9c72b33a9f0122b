"""Chooses the builds of torch (`TORCH=`) and of llama.cpp (`LLAMA=`): for the CPU, or for GPUs too.

Inspects the machine without changing anything. The user's CMAKE_ARGS come last and win, so a
machine can build for GPUs that it does not have.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forge.errors import MachineError

TORCH_INDEX = "https://download.pytorch.org/whl/"
PROBE_S = 2.0
"""Maximum wait for the index of torch's CPU builds, which a mirror may make unreachable."""
ROCM_VERSION = Path("/opt/rocm/.info/version")

COMMON_ARGS = "-DLLAVA_BUILD=OFF"
"""Builds without image input, since the engine reads token ids."""
LINK_ARGS = "-Wl,--exclude-libs,libstdc++.a" if sys.platform == "linux" else ""
"""Hides the copies of libstdc++ that some compilers link into each library. Otherwise they mix, and
the process crashes when it loads a model. No effect with a shared libstdc++."""
TOOL_TIMEOUT_S = 20.0
CUDA_HOME = Path("/usr/local/cuda")
ROCM_HOME = Path("/opt/rocm")
CUDA_ARCHITECTURES = "CMAKE_CUDA_ARCHITECTURES"
AMD_TARGETS = "GPU_TARGETS"
Plan = tuple[list[str], str, str]
"""Faults, arguments of cmake, and the compiler's directory if it is not on PATH."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchChoice:
    """Arguments of `pip install` for torch, and the name of the build in stamp and messages."""

    name: str
    """cpu, cuda, rocm, or the user's own requirement."""
    pip_args: tuple[str, ...]


def detect_accelerator(env: Mapping[str, str]) -> str:
    """cuda if nvidia-smi lists a GPU, rocm if the amdgpu compute device exists, else cpu."""
    if "GPU" in output_of(("nvidia-smi", "-L"), env):
        return "cuda"
    return "rocm" if Path("/dev/kfd").exists() else "cpu"


def choose_torch(name: str, *, tested: str, rocm: str | None, is_cpu_index_up: bool) -> TorchChoice:
    """Chooses a build by name: cpu, cuda, rocm or a pip requirement.

    On a CPU pip gets the tested version: a `+cpu` build, from the extra index or from the user's
    find-links, ranks above PyPI's CUDA build of the same version. Raises MachineError: rocm without
    a version.

    Args:
        name: the build.
        tested: the requirement in constraints.txt.
        rocm: version of ROCm, or None if unknown.
        is_cpu_index_up: True if the index of CPU builds answers.
    """
    if name == "cpu":
        extra = ("--extra-index-url", TORCH_INDEX + "cpu") if is_cpu_index_up else ()
        return TorchChoice(name=name, pip_args=(tested, *extra))
    if name == "cuda":
        return TorchChoice(name=name, pip_args=(tested,))
    if name == "rocm":
        if rocm is None:
            raise MachineError(
                f"an AMD GPU, but no {ROCM_VERSION} to choose wheels by: name them, e.g."
                f" TORCH='torch>=2.9 --index-url {TORCH_INDEX}rocm7.0' (or TORCH=cpu)"
            )
        args = ("torch>=2.9", "--index-url", TORCH_INDEX + "rocm" + rocm)
        return TorchChoice(name=name, pip_args=args)
    return TorchChoice(name=name, pip_args=tuple(shlex.split(name)))


def read_rocm_version(info: Path = ROCM_VERSION) -> str | None:
    """Major and minor version of ROCm: `7.0` for `7.0.2-123`; None if unknown."""
    with suppress(OSError):
        found = re.match(r"(\d+\.\d+)", info.read_text())
        return found.group(1) if found else None
    return None


def is_reachable(url: str, *, patience_s: float = PROBE_S) -> bool:
    """True if the URL answers in time. Uses a thread, since a name lookup ignores timeouts."""
    answers: list[bool] = []

    def ask() -> None:
        with suppress(OSError, ValueError):
            urllib.request.urlopen(url, timeout=patience_s).close()
            answers.append(True)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(patience_s)
    return bool(answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaChoice:
    """Name of a build, and the arguments of cmake for it."""

    name: str
    cmake_args: str
    path: str = ""

    @property
    def library(self) -> str:
        """Library that a wheel of this build has beside libllama."""
        return f"libggml-{self.name}.so"


def choose_llama(name: str, env: Mapping[str, str]) -> LlamaChoice:
    """Chooses a build by name. Raises MachineError: one line for each thing that the build needs
    and this machine lacks."""
    given = env.get("CMAKE_ARGS", "")
    if name not in PLANS:
        raise MachineError(f"LLAMA={name}: allowed is {', '.join(PLANS)}")
    faults, args, path = PLANS[name](env, given)
    if faults:
        raise MachineError("\n".join(f"LLAMA={name}: {fault}" for fault in faults))
    return LlamaChoice(
        name=name, cmake_args=" ".join(filter(None, (COMMON_ARGS, args, given))), path=path
    )


def _plan_cpu(_env: Mapping[str, str], _given: str) -> Plan:
    return [], "", ""


def _plan_cuda(env: Mapping[str, str], given: str) -> Plan:
    nvcc, path = _find_tool("nvcc", env, beside=CUDA_HOME / "bin")
    faults: list[str] = []
    if nvcc is None and not env.get("CUDACXX"):
        faults.append("no nvcc on PATH or in /usr/local/cuda; install NVIDIA's CUDA toolkit")
    args = "-DGGML_CUDA=on"
    if CUDA_ARCHITECTURES in given:
        return faults, args, path
    ask = ("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
    caps = re.findall(r"^(\d+)\.(\d+)\s*$", output_of(ask, env), flags=re.MULTILINE)
    targets = sorted({f"{major}{minor}" for major, minor in caps})
    if not targets:
        faults.append(_no_gpus("nvidia-smi lists no GPU", f"-D{CUDA_ARCHITECTURES}=90"))
    return faults, f"{args} -D{CUDA_ARCHITECTURES}={';'.join(targets)}", path


def _plan_hip(env: Mapping[str, str], given: str) -> Plan:
    hipcc, path = _find_tool("hipcc", env, beside=ROCM_HOME / "bin")
    faults = [] if hipcc else ["no hipcc on PATH or in /opt/rocm; install AMD's ROCm with its SDK"]
    args = "-DGGML_HIP=on"
    if AMD_TARGETS in given:
        return faults, args, path
    found = output_of(("rocm_agent_enumerator",), env, beside=ROCM_HOME / "bin")
    targets = sorted(set(re.findall(r"^gfx[0-9a-f]+$", found, flags=re.MULTILINE)) - {"gfx000"})
    if not targets:
        faults.append(_no_gpus("rocm_agent_enumerator lists no GPU", f"-D{AMD_TARGETS}=gfx942"))
    return faults, f"{args} -D{AMD_TARGETS}={';'.join(targets)}", path


def _plan_vulkan(env: Mapping[str, str], _given: str) -> Plan:
    glslc, path = _find_tool("glslc", env, beside=Path(env.get("VULKAN_SDK", ""), "bin"))
    faults = [] if glslc else ["no glslc on PATH; Debian, Ubuntu: apt install glslc libvulkan-dev"]
    return faults, "-DGGML_VULKAN=on", path


PLANS: dict[str, Callable[[Mapping[str, str], str], Plan]] = {
    "cpu": _plan_cpu,
    "cuda": _plan_cuda,
    "hip": _plan_hip,
    "vulkan": _plan_vulkan,
}


def _no_gpus(found: str, example: str) -> str:
    return f"{found} to build for; CMAKE_ARGS='{example}' builds for the GPUs of another machine"


def _find_tool(name: str, env: Mapping[str, str], *, beside: Path | None) -> tuple[str | None, str]:
    """Path of a tool, and the directory to add to PATH if it is found only in `beside`."""
    if found := shutil.which(name, path=env.get("PATH", os.defpath)):
        return found, ""
    found = shutil.which(name, path=str(beside)) if beside else None
    return found, str(beside) if found else ""


def output_of(argv: Sequence[str], env: Mapping[str, str], *, beside: Path | None = None) -> str:
    """Output of a vendor's tool; empty if it is missing or fails."""
    tool, _ = _find_tool(argv[0], env, beside=beside)
    if tool is None:
        return ""
    with suppress(OSError, subprocess.TimeoutExpired):
        ran = subprocess.run(
            [tool, *argv[1:]], capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False
        )
        return ran.stdout if ran.returncode == 0 else ""
    return ""
