"""What this machine has, asked once: cores, memory, disk, GPUs, engines. `plan` and `forge doctor`
read it.

Asks the kernel, NVML or amdsmi, and the list of installed packages; imports none of them.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from forge.process.devices import Gpu, inventory
from forge.process.disk import free_bytes

ENGINE_PACKAGES = {"llama": "llama_cpp"}
"""The module that each engine needs in its interpreter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Facts that a plan is made for."""

    cores: int
    """That we may run on, by affinity."""
    memory_bytes: int
    """Physical, or the container's limit where that is lower."""
    free_disk_bytes: int
    """Where runs are stored."""
    gpus: tuple[Gpu, ...]
    engines: frozenset[str]
    """Engines that are installed in our interpreter."""


def this_machine(store_dir: Path) -> Machine:
    """Asks. Takes a millisecond without GPUs."""
    installed = (name for name, module in ENGINE_PACKAGES.items() if _is_installed(module))
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=min(_physical_bytes(), _cgroup_bytes()),
        free_disk_bytes=free_bytes(store_dir),
        gpus=inventory(),
        engines=frozenset(installed),
    )


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _physical_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cgroup_bytes() -> int:
    """The limit of a cgroup v2 container; as good as none elsewhere."""
    path = Path("/sys/fs/cgroup/memory.max")
    text = path.read_text().strip() if path.is_file() else "max"
    return int(text) if text.isdecimal() else 1 << 62
