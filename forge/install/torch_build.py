"""Chooses the build of torch: CPU, CUDA or ROCm, by the machine or by `TORCH=`."""

from __future__ import annotations

import re
import shlex
import threading
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forge.errors import MachineError
from forge.install.llama_build import output_of

TORCH_INDEX = "https://download.pytorch.org/whl/"
PROBE_S = 2.0
"""Maximum wait for the index of torch's CPU builds, which a mirror may make unreachable."""
ROCM_VERSION = Path("/opt/rocm/.info/version")


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
    find-links, ranks above PyPI's CUDA build of the same version.

    Args:
        name: the build.
        tested: the requirement in constraints.txt.
        rocm: version of ROCm, or None if unknown.
        is_cpu_index_up: True if the index of CPU builds answers.

    Raises:
        MachineError: rocm without a version.
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
