"""`forge plan --assume "8xH100-80GB"`: a machine that is not here, to plan for.

What follows from the cards is made up as such machines have it: cores, memory and disk by card,
every engine installed, nobody else on the cards.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from forge.errors import ConfigError
from forge.process.devices import Gpu, Vendor
from forge.serve.installed.engines import ENGINES

if TYPE_CHECKING:
    from forge.runner.plan.machine import Machine

FORM = re.compile(r"(?P<num>\d{1,3})x(?P<name>[A-Za-z][\w .]*?)-(?P<size>\d{1,4})GB")
CORES, MEMORY_BYTES, DISK_BYTES = 16, 128 << 30, 500 << 30
"""A card's part of its machine."""
AMD_NAMES = re.compile(r"(AMD|MI|RX|Radeon)[ \d]", re.IGNORECASE)
AMD_ARCHS = {"MI2": "gfx90a", "MI3": "gfx942"}
"""By the beginning of the name."""


def assume(text: str, *, here: Machine) -> Machine:
    """The machine that `text` says; what it does not say is `here`'s, if that is more.

    Raises ConfigError where it is not NUMxNAME-SIZEGB, or for no card at all.
    """
    match = FORM.fullmatch(text.strip())
    num = int(match["num"]) if match else 0
    if match is None or not num or not int(match["size"]):
        raise ConfigError(
            f'--assume: found "{text}"; NUMBERxNAME-SIZEGB, as "8xH100-80GB", "1xMI300X-192GB" or '
            '"2xRTX4090-24GB"'
        )
    return replace(
        here,
        cores=max(here.cores, num * CORES),
        memory_bytes=max(here.memory_bytes, num * MEMORY_BYTES),
        free_disk_bytes=max(here.free_disk_bytes, num * DISK_BYTES),
        gpus=tuple(_card(index, match["name"], int(match["size"]) << 30) for index in range(num)),
        engines=frozenset(ENGINES),
        hidden_gpus="",
        gpu_users={},
        busy=frozenset(),
        is_here=False,
        assumed=text.strip(),
    )


def _card(index: int, name: str, memory_bytes: int) -> Gpu:
    is_amd = AMD_NAMES.match(name) is not None
    return Gpu(
        vendor=Vendor.AMD if is_amd else Vendor.NVIDIA,
        index=index,
        uuid=f"GPU-assumed-{index}",
        name=name,
        memory_bytes=memory_bytes,
        free_bytes=memory_bytes,
        arch=AMD_ARCHS.get(name[:3].upper(), "") if is_amd else "",
        minor=None if is_amd else index,
    )
