"""The card that a judge owns: its name, its peaks, its speed of the moment, its facts for captures.

Called by `trial.gpu`, in the judge's own context.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

import torch

from forge.evalpool.cards import FLOPS_PER_CLOCK, find_card

BF16_SIZE = 2048
PROBE_BYTES = 256 << 20
NUM_WARM_UPS, NUM_PROBES = 1, 3
PROBE_REPEATS = 20
"""Times that a probe does its piece of work: 3 ms of an H200, more than a time slice. A shorter one
fits into the judge's own slice, and does not see that others use the card."""
PROBE_CYCLES = 400_000
"""About 0.2 ms of the card, so that the host has queued the work before its start is reached."""
PROBE_S = 0.5
"""Age up to which a probe stands for the card's speed, in seconds."""
DOUBLE_RATE = 2
"""Transfers a clock of NVIDIA's memory."""
AMD_DRIVER = Path("/sys/module/amdgpu/version")
"""Absent where the driver is the kernel's own."""


class GpuDevice:
    """The first visible card: the pool shows a judge no other."""

    def __init__(self, uuid: str) -> None:
        properties = torch.cuda.get_device_properties()
        self.name: str = properties.name
        self.identity = f"{uuid} {self.name} {driver()}"
        """By what a measured time is kept."""
        self.uuid = uuid
        self.memory_bytes: int = properties.total_memory
        self.target = target_of(properties)
        self._peak_gbps = peak_gbps(properties)
        clock_khz = getattr(properties, "clock_rate", 0) or 0
        self._clocks_per_us = properties.multi_processor_count * clock_khz / 1e3
        self._flops_per_clock = FLOPS_PER_CLOCK.get(self.target["arch"], {})
        self._probe = torch.empty(PROBE_BYTES, dtype=torch.uint8, device="cuda")
        self._factor = torch.ones(BF16_SIZE, BF16_SIZE, dtype=torch.bfloat16, device="cuda")
        self._probed = -math.inf, 0.0
        """Time of the last probe, monotonic, and its result in us."""

    def probe_us(self) -> float:
        """Time of a fixed piece of work, memory and arithmetic; it follows the clocks. The first
        ones bring an idle card up to them."""
        times = [self._probe_once() for _ in range(NUM_WARM_UPS + NUM_PROBES)][NUM_WARM_UPS:]
        self._probed = time.monotonic(), sorted(times)[NUM_PROBES // 2]
        return self._probed[1]

    def recent_probe_us(self) -> float:
        """The last probe if it is younger than `PROBE_S`; else a new one."""
        at, found = self._probed
        return found if time.monotonic() - at < PROBE_S else self.probe_us()

    def roofline_share(
        self, *, us: float, num_bytes: int, flops: int, precision: str, is_tf32: bool
    ) -> float | None:
        """Achieved over peak, of memory or arithmetic, whichever bounds; None where not known."""
        shares = []
        if self._peak_gbps:
            shares.append(num_bytes / us / 1e3 / self._peak_gbps)
        kind = "half" if precision != "fp32" else "tf32" if is_tf32 else "fp32"
        if flops and (rate := self._flops_per_clock.get(kind)):
            shares.append(flops / us / (rate * self._clocks_per_us))
        return max(shares, default=None)

    def _probe_once(self) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(PROBE_CYCLES)
        start.record()
        for _ in range(PROBE_REPEATS):
            self._probe.zero_()
            for _ in range(4):
                torch.mm(self._factor, self._factor)
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1000


FACTS = (
    *("name", "multi_processor_count", "total_memory", "shared_memory_per_block_optin"),
    *("regs_per_multiprocessor", "max_threads_per_multi_processor", "L2_cache_size"),
    *("clock_rate", "memory_clock_rate", "memory_bus_width"),
)
"""Torch's properties of a card that the made-up one has."""


def target_of(properties: Any) -> dict[str, Any]:
    """Target of captures for this card: backend, architecture, warp size and its properties."""
    is_hip = bool(torch.version.hip)
    arch = str(properties.gcnArchName).split(":")[0] if is_hip else None
    found = {name: getattr(properties, name, None) for name in FACTS}
    return {
        "backend": "hip" if is_hip else "cuda",
        "arch": arch or properties.major * 10 + properties.minor,
        "warp_size": int(getattr(properties, "warp_size", 64 if is_hip else 32)),
        "properties": {name: value for name, value in found.items() if value},
    }


def peak_gbps(properties: Any) -> float:
    """Memory rate in 1e9 bytes a second: the data sheet's; of another NVIDIA card, from its clock
    (kHz) and bus width (bits), which differ from data sheets by 3 % at most; 0 where not known."""
    if (card := find_card(properties.name)) is not None:
        return card.gbps
    if torch.version.hip:
        return 0.0
    clock = getattr(properties, "memory_clock_rate", 0) or 0
    width = getattr(properties, "memory_bus_width", 0) or 0
    return DOUBLE_RATE * clock * 1e3 * width / 8 / 1e9


def driver() -> str:
    """Its version and that of torch's libraries: with either, times may change."""
    if torch.version.hip:  # not tried on a machine: none was at hand
        version = AMD_DRIVER.read_text().strip() if AMD_DRIVER.exists() else os.uname().release
        return f"{version} hip {torch.version.hip}"
    import pynvml

    pynvml.nvmlInit()
    try:
        return f"{pynvml.nvmlSystemGetDriverVersion()} cuda {torch.version.cuda}"
    finally:
        pynvml.nvmlShutdown()
