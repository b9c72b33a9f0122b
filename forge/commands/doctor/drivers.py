"""Device nodes and drivers of the GPUs, against what torch and Triton need.

Sources of the minima: NVIDIA's "CUDA Compatibility" (minor version compatibility), Triton's README
(compute capability, ROCm). A kernel that ran is stronger evidence than a version.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.commands.doctor.container import docker
from forge.commands.doctor.finding import Finding, Severity, warning
from forge.commands.doctor.software import TorchBuild
from forge.process.devices import Gpu, Vendor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MIN_DRIVER = {11: 450, 12: 525, 13: 580}
"""Oldest driver by major version of CUDA, for all its minor versions."""
MIN_CAPABILITY = (8, 0)
MIN_ROCM = (6, 2)
PCI_VENDORS = {"0x10de": Vendor.NVIDIA, "0x1002": Vendor.AMD}
GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
"""PCI classes of GPUs: VGA, 3D, other display controllers, processing accelerators."""
AMD_FLAGS = ("--device /dev/kfd", "--device /dev/dri", "--group-add video", "--group-add render")


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFacts:
    """Reports of the kernel, /dev, the drivers and torch."""

    gpus: Sequence[Gpu] = ()
    on_bus: frozenset[Vendor] = frozenset()
    """Makers of GPUs on the PCI bus, which a container sees whatever its devices are."""
    nodes: frozenset[str] = frozenset()
    """Names in /dev: nvidiactl, nvidia-uvm, kfd, dri/renderD128."""
    is_kfd_open: bool = False
    """True if this user may open /dev/kfd."""
    nvidia_driver: str = ""
    """Version of the driver, 580.65.06."""
    nvml_fault: str = ""
    """Error of NVIDIA's management library."""
    amd_driver: str = ""
    """Version of the kernel module amdgpu; empty for the kernel's own."""
    builds: Mapping[str, TorchBuild] = field(default_factory=dict[str, TorchBuild])
    """torch by interpreter: "torch", "torch of serve.python"."""
    has_run: bool = False
    """True if a kernel ran on each GPU that was tried."""
    is_container: bool = False


def read_nodes(*, root: Path = Path("/")) -> dict[str, Any]:
    """The fields of DriverFacts that /sys and /dev have."""
    dev, on_bus = root / "dev", set[Vendor]()
    for device in (root / "sys/bus/pci/devices").glob("*"):
        vendor = PCI_VENDORS.get(_read(device / "vendor"))
        if vendor is not None and _read(device / "class").startswith(GPU_CLASSES):
            on_bus.add(vendor)
    names = [*dev.glob("nvidia*"), *dev.glob("kfd"), *dev.glob("dri/renderD*")]
    return {
        "on_bus": frozenset(on_bus),
        "nodes": frozenset(str(path.relative_to(dev)) for path in names),
        "is_kfd_open": os.access(dev / "kfd", os.R_OK | os.W_OK),
        "amd_driver": _read(root / "sys/module/amdgpu/version"),
    }


def check_drivers(facts: DriverFacts) -> Iterator[Finding]:
    """Missing devices, drivers that are too old, and builds of torch for other devices."""
    yield from _check_nvidia_nodes(facts)
    yield from _check_amd_nodes(facts)
    vendors = {gpu.vendor for gpu in facts.gpus}
    for name, build in facts.builds.items():
        if Vendor.NVIDIA in vendors:
            yield from _check_cuda(name, build, facts)
        elif Vendor.AMD in vendors:
            yield from _check_rocm(name, build, facts)
    for gpu in facts.gpus:
        if gpu.capability is not None and gpu.capability < MIN_CAPABILITY:
            found = "GPU {} has compute capability {}.{}".format(gpu.index, *gpu.capability)
            fix = "Triton supports 8.0 (Ampere) and later; CUDA_VISIBLE_DEVICES hides this GPU"
            yield warning("compute capability", found, fix=fix)


def _check_nvidia_nodes(facts: DriverFacts) -> Iterator[Finding]:
    name = "NVIDIA driver"
    if facts.nvml_fault:
        fix = "nvidia-smi; after an update of the driver, reboot or restart the container"
        yield warning(name, f"does not answer: {facts.nvml_fault}", fix=fix)
    elif Vendor.NVIDIA in facts.on_bus and "nvidiactl" not in facts.nodes:
        install = "install NVIDIA's driver, 580 or later for CUDA 13"
        fix = docker("--gpus all") if facts.is_container else install
        yield warning(name, "there is an NVIDIA GPU, but no /dev/nvidiactl", fix=fix)
    elif "nvidiactl" in facts.nodes and "nvidia-uvm" not in facts.nodes:
        load = "nvidia-modprobe -u -c=0"
        fix = f"{load} on the host, then {docker('--gpus all')}" if facts.is_container else load
        yield warning(name, "no /dev/nvidia-uvm, without which CUDA does not start", fix=fix)


def _check_amd_nodes(facts: DriverFacts) -> Iterator[Finding]:
    name, install = "AMD driver", "install ROCm's kernel driver: amdgpu-install --usecase=dkms"
    has_render = any(node.startswith("dri/renderD") for node in facts.nodes)
    if "kfd" not in facts.nodes:
        if Vendor.AMD in facts.on_bus:
            fix = docker(*AMD_FLAGS) if facts.is_container else install
            yield warning(name, "there is an AMD GPU, but no /dev/kfd", fix=fix)
    elif not has_render:
        fix = docker(*AMD_FLAGS) if facts.is_container else install
        yield warning(name, "/dev/kfd is there, but no /dev/dri/renderD*", fix=fix)
    elif not facts.is_kfd_open:
        join = "sudo usermod -aG render,video $USER, then log in again"
        fix = docker("--group-add video", "--group-add render") if facts.is_container else join
        yield warning(name, "this user may not open /dev/kfd", fix=fix)


def _check_cuda(name: str, build: TorchBuild, facts: DriverFacts) -> Iterator[Finding]:
    if build.cuda is None:
        found = f"{build.version} is not built for CUDA, and this machine has NVIDIA GPUs"
        yield _unless_run(f"{name} build", found, facts, fix="make setup TORCH=cuda")
        return
    major = int(build.cuda.split(".")[0])
    least = MIN_DRIVER.get(major, max(MIN_DRIVER.values()))
    driver = facts.nvidia_driver or "of unknown version"
    found = f"driver {driver}; {name} {build.version} is built for CUDA {build.cuda}"
    if facts.nvidia_driver and int(facts.nvidia_driver.split(".")[0]) < least:
        fix = f"install driver {least} or later, or a torch for an older CUDA: make setup TORCH=..."
        yield _unless_run("CUDA", f"{found}, which needs driver {least}", facts, fix=fix)
    else:
        yield Finding(name="CUDA", found=found)


def _check_rocm(name: str, build: TorchBuild, facts: DriverFacts) -> Iterator[Finding]:
    if build.hip is None:
        found = f"{build.version} is not built for ROCm, and this machine has AMD GPUs"
        yield _unless_run(f"{name} build", found, facts, fix="make setup TORCH=rocm")
        return
    driver = facts.amd_driver or "of the kernel"
    found = f"amdgpu {driver}; {name} {build.version} is built for ROCm {build.hip}"
    numbers = re.findall(r"\d+", build.hip)[:2]
    if tuple(map(int, numbers)) < MIN_ROCM:
        needed = "{}.{}".format(*MIN_ROCM)
        fix = f"make setup TORCH=rocm with ROCm {needed} or later"
        yield _unless_run("ROCm", f"{found}; Triton needs {needed}", facts, fix=fix)
    else:
        yield Finding(name="ROCm", found=found)


def _unless_run(name: str, found: str, facts: DriverFacts, *, fix: str) -> Finding:
    """An error, or a warning if kernels ran all the same (a forward compatibility package)."""
    severity = Severity.WARNING if facts.has_run else Severity.ERROR
    return Finding(name=name, found=found, severity=severity, fix=fix)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
