"""Files of this machine that a child on a GPU must see: device nodes, driver libraries, a compiler.

Called by the zygote before it builds its root. Triton compiles a launcher in C for each signature,
so the programs of /usr/bin are shown on GPU machines; they run in the same sandbox as the candidate
and can do no more than it. Nothing here asks a GPU: the zygote may not make a context.
"""

from __future__ import annotations

import os
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from forge.process.devices import AMD_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

NVIDIA_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
AMD_NODES = ("kfd",)
COMPILER = ("/bin", "/usr/bin", "/usr/libexec", "/usr/include")
DRIVER_LIBRARIES = ("libcuda.so.1", "libamdhip64.so")
AMD_FILES = ("/sys", "/opt/rocm")
"""ROCm finds its cards in /sys/class/kfd."""
PASSED_ON = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES", "LD_LIBRARY_PATH"),
    *(*AMD_SETTINGS, "PYTORCH_ROCM_ARCH"),
)
NO_CARDS = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
"""Environment of a zygote whose children have no card."""

NUM_QUEUES = "2"
"""Hardware queues of a context, CUDA's default being 8. A context's cost: on an H200, 16 processes
at once got 5.0 a second with 8, 6.7 with 4, 10.1 with 2, 13.6 with 1, where a candidate's streams
would no longer run beside each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFiles:
    """For one card."""

    devices: tuple[str, ...]
    """Names below /dev."""
    shown: tuple[str, ...]
    """Files and directories, read-only."""


def find_gpu_files(*, minor: int | None, dev: Path = Path("/dev")) -> GpuFiles:
    """Nodes and files of the card with this minor number; of every card where it is not known."""
    if (dev / "kfd").exists():
        devices = (*AMD_NODES, *(f"dri/{one.name}" for one in sorted(dev.glob("dri/renderD*"))))
        shown = [path for path in AMD_FILES if os.path.exists(path)]
    else:
        cards = "nvidia[0-9]*" if minor is None else f"nvidia{minor}"
        names = [*(one.name for one in sorted(dev.glob(cards))), *NVIDIA_NODES]
        devices = tuple(name for name in names if (dev / name).exists())
        shown = []
    headers = {sysconfig.get_paths()[name] for name in ("include", "platinclude")}
    shown += [*_driver_folders(), *sorted(headers)]
    shown += [path for path in COMPILER if not os.path.islink(path)]
    return GpuFiles(devices=devices, shown=tuple(path for path in shown if os.path.isdir(path)))


def child_environment() -> dict[str, str]:
    """Environment of a child on a GPU beyond `enter.CHILD_ENVIRONMENT`, less the interpreter's."""
    return {name: os.environ[name] for name in PASSED_ON if name in os.environ} | {
        "PATH": "/usr/bin:/bin",
        "CUDA_MODULE_LOADING": "LAZY",
        "CUDA_CACHE_DISABLE": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": NUM_QUEUES,
        # Of a baseline under torch.compile.
        "TORCHINDUCTOR_CACHE_DIR": "/tmp/inductor",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }


def _driver_folders() -> Iterator[str]:
    """Folders with the driver's library that are no system library's: of ldconfig, and the user's
    LD_LIBRARY_PATH."""
    told = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False)
    lines = (line.split()[-1] for line in told.stdout.splitlines() if "=>" in line)
    folders = [os.path.dirname(path) for path in lines if path.endswith(DRIVER_LIBRARIES)]
    folders += os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    for folder in dict.fromkeys(filter(None, folders)):
        has_driver = any(os.path.exists(f"{folder}/{name}") for name in DRIVER_LIBRARIES)
        if has_driver and not folder.startswith(("/lib", "/usr/lib")):
            yield folder
