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
from forge.serve.engines import ENGINES


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
    return Machine(
        cores=count_cores(),
        memory_bytes=memory_bytes(),
        free_disk_bytes=free_bytes(store_dir),
        gpus=inventory(),
        engines=frozenset(name for name, kind in ENGINES.items() if _has_all(kind.requires)),
    )


def count_cores() -> int:
    """Those that we may run on; all of them where the system has no affinity (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int:
    """Physical, or the container's limit where that is lower."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(physical, _cgroup_bytes())


def _has_all(modules: tuple[str, ...]) -> bool:
    return all(importlib.util.find_spec(module) for module in modules)


def _cgroup_bytes() -> int:
    """The limit of a cgroup v2 container; as good as none elsewhere."""
    path = Path("/sys/fs/cgroup/memory.max")
    text = path.read_text().strip() if path.is_file() else "max"
    return int(text) if text.isdecimal() else 1 << 62
