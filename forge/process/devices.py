"""The GPUs of this machine, their memory and users, and the environment that limits a child to
some.

Supports NVIDIA (NVML) and AMD (amdsmi). Both libraries are imported lazily; without them there is
no GPU. Queries create no CUDA context. GPUs hidden by the user with CUDA_VISIBLE_DEVICES (HIP_ on
AMD) do not exist for forge. The inventory is cached; occupancies are asked at each call. In a
container NVML counts the memory but often lists no process: then one unknown user has the missing
bytes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

logger = logging.getLogger(__name__)

VULKAN = "GGML_VK_VISIBLE_DEVICES"
"""The only variable that llama.cpp's Vulkan backend reads."""
AMD_VARIABLES = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
VISIBILITY_VARIABLES = {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", VULKAN, *AMD_VARIABLES}
BLOCKING_VARIABLES = {
    *("CUDA_LAUNCH_BLOCKING", "HIP_LAUNCH_BLOCKING"),
    *("AMD_SERIALIZE_KERNEL", "AMD_SERIALIZE_COPY"),
}
"""Each makes a kernel launch block, which spoils measured times. Children never get them."""

KFD = Path("/dev/kfd")
"""Device of AMD's driver."""
AMD_SETTINGS = {
    "HIP_PLATFORM": "amd", "HSA_ENABLE_SDMA": "0", "HSA_ENABLE_COREDUMP": "0",
    "HIP_ENABLE_COREDUMP": "0", "ROCM_DISABLE_CRASH_DUMP": "1", "AMD_LOG_LEVEL": "0",
    "GPU_MAX_HW_QUEUES": "1",
}  # fmt: skip
IDLE_BYTES = 1 << 30
"""Maximum memory that driver, display and monitoring hold on an idle GPU."""


class Vendor(StrEnum):
    NVIDIA = "nvidia"
    AMD = "amd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    vendor: Vendor
    index: int
    """Position in PCI order (AMD: in HIP's order) among all GPUs of the machine."""
    uuid: str
    name: str
    memory_bytes: int
    free_bytes: int
    arch: str = ""
    """AMD: architecture, e.g. gfx942."""
    minor: int | None = None
    """NVIDIA: number of its node, /dev/nvidia<minor>."""
    capability: tuple[int, int] | None = None
    """NVIDIA: compute capability, as (9, 0); None for an assumed GPU."""
    is_cut: bool = False
    """NVIDIA: True in MIG mode, with or without slices."""


@cache
def inventory() -> tuple[Gpu, ...]:
    """GPUs that the user allows, in PCI order or in the order of the user's variable."""
    # CUDA runs only in the slices of a GPU in MIG mode.
    whole = [gpu for gpu in _nvidia_gpus() if not gpu.is_cut]
    nvidia = _visible(whole, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return nvidia or _visible(amd_gpus(), os.environ.get(_amd_variable()))


@cache
def hidden_gpus() -> str:
    """The reason why GPUs are missing from the inventory, for people; empty if none is."""
    nvidia = _nvidia_gpus()
    if cut := ", ".join(str(gpu.index) for gpu in nvidia if gpu.is_cut):
        return f"GPU {cut} is split into MIG slices; forge uses whole GPUs: nvidia-smi -mig 0"
    name = "CUDA_VISIBLE_DEVICES" if nvidia else _amd_variable()
    return why_hidden(nvidia or amd_gpus(), os.environ.get(name), variable=name)


def why_hidden(gpus: Sequence[Gpu], value: str | None, *, variable: str) -> str:
    """GPUs that the user's variable hides, for people; empty if it hides none."""
    chosen = _visible(gpus, value)
    if value is None or len(chosen) == len(gpus):
        return ""
    unknown = next((name for name in _names(value) if len(matching(gpus, name)) != 1), None)
    twice = "; a GPU named twice hides all" if _names(value) and not chosen else ""
    why = twice if unknown is None else f"; {unknown!r} is not one whole GPU here"
    return f"{variable} = {value!r} leaves {len(chosen)} of {len(gpus)}{why}"


def visibility(uuids: Sequence[str], *, gpus: Sequence[Gpu] | None = None) -> dict[str, str]:
    """Environment variables that limit a process to these GPUs; an empty list hides all.

    Vulkan has no UUIDs: its loader lists discrete GPUs in PCI order, like `Gpu.index`. Not tested
    with GPUs of two vendors in one machine.
    """
    if not uuids:
        return {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1", VULKAN: ""}
    known = {gpu.uuid: gpu for gpu in (inventory() if gpus is None else gpus)}
    cards = [known[uuid] for uuid in uuids if uuid in known]
    indices = ",".join(str(gpu.index) for gpu in cards)
    if any(gpu.vendor is Vendor.AMD for gpu in cards):
        arch = {"PYTORCH_ROCM_ARCH": cards[0].arch} if cards[0].arch else {}
        return {"HIP_VISIBLE_DEVICES": indices, VULKAN: indices, **AMD_SETTINGS, **arch}
    by_uuid = {"CUDA_VISIBLE_DEVICES": ",".join(uuids), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return {**by_uuid, VULKAN: indices}


def matching(gpus: Sequence[Gpu], name: str) -> list[Gpu]:
    """GPUs that a name can mean: an index, a UUID, or the start of a UUID (not a number)."""
    exact = [gpu for gpu in gpus if name in (str(gpu.index), gpu.uuid)]
    if exact or not name or name.isdecimal():
        return exact
    return [gpu for gpu in gpus if gpu.uuid.startswith(name)]


def _visible(gpus: Sequence[Gpu], variable: str | None) -> tuple[Gpu, ...]:
    """The GPUs that the user's variable names, in its order. As in CUDA, a name without exactly one
    match ends the list, and a GPU named twice empties it."""
    if variable is None:
        return tuple(gpus)
    chosen: list[Gpu] = []
    for name in _names(variable):
        matches = matching(gpus, name)
        if len(matches) != 1:
            break
        if matches[0] in chosen:
            return ()
        chosen.append(matches[0])
    return tuple(chosen)


def _names(variable: str) -> list[str]:
    return [part.strip() for part in variable.split(",") if part.strip()]


def _amd_variable() -> str:
    return next((name for name in AMD_VARIABLES if name in os.environ), AMD_VARIABLES[0])


def _nvidia_gpus() -> list[Gpu]:
    if not _has_nvidia_driver():
        return []
    import pynvml

    try:
        pynvml.nvmlInit()
        found = [_nvidia_gpu(index) for index in range(pynvml.nvmlDeviceGetCount())]
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        logger.warning("the NVIDIA driver does not answer: %s", error)
        return []
    return [gpu for gpu in found if gpu is not None]


def nvidia_fault() -> str:
    """The error of the library of NVIDIA's driver; empty for none, and without a driver."""
    if not _has_nvidia_driver():
        return ""
    import pynvml

    try:
        pynvml.nvmlInit()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return str(error)
    return ""


def _has_nvidia_driver() -> bool:
    return Path("/proc/driver/nvidia").exists() or Path("/dev/nvidiactl").exists()


def _nvidia_gpu(index: int) -> Gpu | None:
    """The GPU; None if it does not answer, as when it fell off the bus."""
    import pynvml

    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        is_cut = False
        with suppress(pynvml.NVMLError):  # a GPU without such a mode
            is_cut = bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
        return Gpu(
            vendor=Vendor.NVIDIA,
            index=index,
            uuid=pynvml.nvmlDeviceGetUUID(handle),
            name=pynvml.nvmlDeviceGetName(handle),
            memory_bytes=int(memory.total),
            free_bytes=int(memory.free),
            minor=int(pynvml.nvmlDeviceGetMinorNumber(handle)),
            capability=(int(major), int(minor)),
            is_cut=is_cut,
        )
    except pynvml.NVMLError as error:
        logger.warning("GPU %d does not answer and is left out: %s", index, error)
        return None


def amd_gpus() -> list[Gpu]:
    """AMD's GPUs as of now. Not tested on real hardware."""
    if not KFD.exists():
        return []
    try:
        import amdsmi  # pyright: ignore[reportMissingImports]
    except ImportError:
        logger.warning("there is an AMD GPU, but amdsmi is not installed")
        return []
    amdsmi.amdsmi_init()
    try:
        gpus = [_amd_gpu(amdsmi, handle) for handle in amdsmi.amdsmi_get_processor_handles()]
    finally:
        amdsmi.amdsmi_shut_down()
    return sorted(gpus, key=lambda gpu: gpu.index)  # amdsmi has an order of its own


def _amd_gpu(amdsmi, handle) -> Gpu:
    asic = amdsmi.amdsmi_get_gpu_asic_info(handle)
    vram = amdsmi.amdsmi_get_gpu_vram_usage(handle)
    total = int(vram["vram_total"]) << 20
    return Gpu(
        vendor=Vendor.AMD,
        index=int(amdsmi.amdsmi_get_gpu_enumeration_info(handle)["hip_id"]),
        uuid=str(amdsmi.amdsmi_get_gpu_device_uuid(handle)),
        name=str(asic["market_name"]),
        memory_bytes=total,
        free_bytes=total - (int(vram["vram_used"]) << 20),
        arch=str(asic.get("target_graphics_version", "")),
    )


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

    found: dict[str, Occupancy] = {}
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        for gpu in nvidia:
            with suppress(pynvml.NVMLError):
                handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
                memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
                running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
                pids = [(int(each.pid), each.usedGpuMemory) for each in running]
                users = users_of(pids, used_bytes=int(memory.used))
                found[gpu.uuid] = Occupancy(free_bytes=int(memory.free), users=users)
        pynvml.nvmlShutdown()
    return found


def users_of(running: Iterable[tuple[int, int | None]], *, used_bytes: int) -> tuple[GpuUser, ...]:
    """Users from pids with their bytes (None if the driver does not report them) and the total."""
    seen: list[GpuUser] = []
    for pid, held in sorted(running):
        if _is_on_a_card(pid):
            name = ""
            with suppress(OSError):
                name = Path(f"/proc/{pid}/comm").read_text().strip()
            seen.append(GpuUser(pid=pid, name=name, memory_bytes=held or 0))
    rest = used_bytes - sum(user.memory_bytes for user in seen)
    if rest > IDLE_BYTES and not any(user.memory_bytes == 0 for user in seen):
        seen.append(GpuUser(memory_bytes=rest))
    return tuple(seen)


def _is_on_a_card(pid: int) -> bool:
    """False if the process is gone, or if the pid is another process's in this container."""
    try:
        opened = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
    except PermissionError:
        return True
    except OSError:
        return False
    return any(path.startswith("/dev/nvidia") for path in opened)
