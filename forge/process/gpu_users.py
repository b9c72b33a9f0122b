"""Processes on a GPU and the memory that they hold.

Queries NVML at each call, while the inventory is cached. In a container NVML counts the memory but
often lists no process: then one unknown user has the missing bytes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.process.devices import Vendor, amd_gpus

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from forge.process.devices import Gpu

IDLE_BYTES = 1 << 30
"""Maximum memory that driver, display and monitoring hold on an idle GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUser:
    """A process on a GPU, or all invisible ones together (without pid)."""

    memory_bytes: int
    pid: int | None = None
    name: str = ""

    def __str__(self) -> str:
        held = f"{self.memory_bytes / 1e9:.1f} GB"
        if self.pid is None:
            return f"{held} are held by processes that are not visible here"
        return f"pid {self.pid} ({self.name or 'unknown'}) holds {held}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Free memory and users of a GPU at one moment."""

    free_bytes: int
    users: tuple[GpuUser, ...]


def occupancies(gpus: Sequence[Gpu]) -> dict[str, Occupancy]:
    """Occupancy by UUID, without GPUs that do not answer. AMD reports bytes but no processes."""
    nvidia = [gpu for gpu in gpus if gpu.vendor is Vendor.NVIDIA]
    if len(nvidia) < len(gpus):
        used = {gpu: gpu.memory_bytes - gpu.free_bytes for gpu in amd_gpus()}
        return {
            gpu.uuid: Occupancy(free_bytes=gpu.free_bytes, users=users_of([], used_bytes=held))
            for gpu, held in used.items()
        }
    if not nvidia:
        return {}
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    try:
        return {gpu.uuid: found for gpu in nvidia if (found := _ask(pynvml, gpu)) is not None}
    finally:
        pynvml.nvmlShutdown()


def users_of(running: Iterable[tuple[int, int | None]], *, used_bytes: int) -> tuple[GpuUser, ...]:
    """Users from pids with their bytes (None if the driver does not report them) and the total."""
    seen = [
        GpuUser(pid=pid, name=_name(pid), memory_bytes=held or 0)
        for pid, held in sorted(running)
        if _is_on_a_card(pid)
    ]
    rest = used_bytes - sum(user.memory_bytes for user in seen)
    if rest > IDLE_BYTES and not any(user.memory_bytes == 0 for user in seen):
        seen.append(GpuUser(memory_bytes=rest))
    return tuple(seen)


def _ask(pynvml: Any, gpu: Gpu) -> Occupancy | None:
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:
        return None
    pids = [(int(each.pid), each.usedGpuMemory) for each in running]
    return Occupancy(free_bytes=int(memory.free), users=users_of(pids, used_bytes=int(memory.used)))


def _is_on_a_card(pid: int) -> bool:
    """False if the process is gone, or if the pid is another process's in this container."""
    try:
        opened = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
    except PermissionError:
        return True
    except OSError:
        return False
    return any(path.startswith("/dev/nvidia") for path in opened)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
