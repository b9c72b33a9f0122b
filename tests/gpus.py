"""GPUs that no machine has."""

from typing import Any

from forge.process.devices import Gpu, Vendor


def make_gpu(index: int = 0, **changes: Any) -> Gpu:
    """A GPU of NVIDIA with 141 GiB, all of them free, except for these changes."""
    facts = {"vendor": Vendor.NVIDIA, "index": index, "uuid": f"GPU-{index}", "name": "H200"}
    return Gpu(**{**facts, "memory_bytes": 141 << 30, "free_bytes": 141 << 30, **changes})
