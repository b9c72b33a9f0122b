"""GPUs and machines that are made up."""

from typing import Any

from forge.process.devices import Gpu, Vendor
from forge.runner.plan.machine import Machine


def make_gpu(index: int = 0, **changes: Any) -> Gpu:
    """A GPU of NVIDIA with 141 GiB, all of them free, except for these changes."""
    facts = {"vendor": Vendor.NVIDIA, "index": index, "uuid": f"GPU-{index}", "name": "H200"}
    return Gpu(**{**facts, "memory_bytes": 141 << 30, "free_bytes": 141 << 30, **changes})


def make_machine(*, num_gpus: int = 0, **changes: Any) -> Machine:
    """A small machine with one engine, except for these changes."""
    facts = {"cores": 2, "memory_bytes": 16 << 30, "free_disk_bytes": 100 << 30}
    gpus = tuple(make_gpu(index) for index in range(num_gpus))
    return Machine(**{**facts, "gpus": gpus, "engines": frozenset({"llama"}), **changes})
