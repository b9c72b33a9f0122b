"""What this machine has, asked once: cores, memory, disk, GPUs, engines. `plan` and `forge doctor`
read it.

Asks the kernel, NVML or amdsmi, and the list of installed packages; imports none of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from forge.process.devices import Gpu, hidden_gpus, inventory
from forge.process.disk import free_bytes
from forge.process.gpu_claim import claimed
from forge.process.gpu_users import GpuUser, occupancies
from forge.process.memory import total_memory_bytes
from forge.serve.installed.engines import installed_engines

if TYPE_CHECKING:
    from pathlib import Path

    from forge.config.schema import ServeTable


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
    """Engines that are installed in the interpreter that serves."""
    hidden_gpus: str = ""
    """Why there are fewer cards than the machine has, in words."""
    gpu_users: Mapping[str, tuple[GpuUser, ...]] = field(default_factory=dict)
    """Processes of others on the cards, by UUID."""
    busy: frozenset[str] = frozenset()
    """UUIDs of the cards that others use or another run has claimed: `auto` takes them last."""
    is_here: bool = False
    """It is this one, so its interpreters can be asked."""
    assumed: str = ""
    """`forge plan --assume`: what was assumed; empty for a machine that is there."""


def this_machine(store_dir: Path, *, serve: ServeTable | None = None) -> Machine:
    """Asks. Takes a millisecond without GPUs.

    Args:
        serve: whose interpreter is asked for engines; absent means ours.
    """
    gpus, users = _gpus_now()
    return Machine(
        cores=count_cores(),
        memory_bytes=total_memory_bytes(),
        free_disk_bytes=free_bytes(store_dir),
        gpus=gpus,
        hidden_gpus=hidden_gpus(),
        gpu_users=users,
        busy=claimed(gpus) | users.keys(),
        engines=installed_engines(serve),
        is_here=True,
    )


def _gpus_now() -> tuple[tuple[Gpu, ...], dict[str, tuple[GpuUser, ...]]]:
    """The cards with what is free on them now, and who else is on them."""
    gpus = inventory()
    found = occupancies(gpus)
    free = {uuid: each.free_bytes for uuid, each in found.items()}
    users = {uuid: each.users for uuid, each in found.items() if each.users}
    return tuple(replace(gpu, free_bytes=free.get(gpu.uuid, gpu.free_bytes)) for gpu in gpus), users


def count_cores() -> int:
    """Those that we may run on; all of them where the system has no affinity (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
