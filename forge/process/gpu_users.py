"""Who is on a card already: processes of others, and what they hold of its memory.

Asks NVML anew at each call (the inventory is asked once). In a container NVML counts the memory but
often names no process: then the user is unknown, with the bytes that are gone.
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
"""What the driver, a display and a monitor hold of an idle card at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUser:
    """A process on a card, or all that cannot be seen from here."""

    memory_bytes: int
    pid: int | None = None
    name: str = ""

    def __str__(self) -> str:
        held = f"{self.memory_bytes / 1e9:.1f} GB"
        if self.pid is None:
            return f"{held} are held by processes that cannot be seen from here"
        return f"pid {self.pid} ({self.name or 'unknown'}) holds {held}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Of a card, now."""

    free_bytes: int
    users: tuple[GpuUser, ...]


def occupancies(gpus: Sequence[Gpu]) -> dict[str, Occupancy]:
    """By UUID; a card that does not answer is left out. Of AMD's the bytes are told, not whose."""
    nvidia = [gpu for gpu in gpus if gpu.vendor is Vendor.NVIDIA]
    if len(nvidia) < len(gpus):
        return {gpu.uuid: _of_amd(gpu) for gpu in amd_gpus()}
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


def _of_amd(gpu: Gpu) -> Occupancy:
    used = gpu.memory_bytes - gpu.free_bytes
    return Occupancy(free_bytes=gpu.free_bytes, users=users_of([], used_bytes=used))


def users_of(running: Iterable[tuple[int, int | None]], *, used_bytes: int) -> tuple[GpuUser, ...]:
    """From pids with their bytes (None where the driver does not tell), and what is gone in all."""
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
    """False for one that is gone, and for a stranger who has that pid in our container only."""
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
