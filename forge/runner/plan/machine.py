"""The machine that a plan is made for: cores, memory, disk, GPUs, engines.

`assume` makes the machine of `forge plan --assume "8xH100-80GB"`, which need not exist: its other
resources follow from its cards, as is usual for such machines; every engine is installed, and no
other process uses a card. "4x8xH100-80GB" are four of them.

`open_claimed` claims the cards of a command before their free memory is checked:

    lay out as if cards were empty ──▶ claim (or wait) ──▶ lay out beside the cards' other users

The other users of a card are read under the claim. Read before it, a run that is about to end would
cause the next run to be refused, or limited for good by memory that is free when its turn comes.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from forge.errors import ConfigError, MachineError
from forge.process.devices import Gpu, GpuUser, Vendor, hidden_gpus, inventory, occupancies
from forge.process.gpu_locks import Claim, claim, claimed
from forge.process.machine import free_bytes, total_memory_bytes
from forge.serve.engines import ENGINES, installed_engines
from forge.store.layout import runs_on_these_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from forge.config.schema import ServeTable
    from forge.runner.plan.placement import Placement
    from forge.runner.plan.plan import Plan

ASSUMED_FORM = re.compile(
    r"(?:(?P<nodes>\d{1,3})x)?(?P<num>\d{1,3})x(?P<name>[A-Za-z][\w .]*?)-(?P<size>\d{1,4})GB"
)
MAX_ASSUMED_CARDS = 4096
CORES_PER_CARD, MEMORY_PER_CARD, DISK_PER_CARD = 16, 128 << 30, 500 << 30
"""Cores, bytes of memory and bytes of disk of an assumed machine, for each card."""
AMD_NAMES = re.compile(r"(AMD|MI|RX|Radeon)[ \d]", re.IGNORECASE)
AMD_ARCHS = {"MI2": "gfx90a", "MI3": "gfx942"}

LEFTOVERS_S, LOOK_AGAIN_S = 10.0, 2.0
"""A killed process leaves its card within seconds."""


class CardBusy(MachineError):
    """Other processes hold too much memory of a card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    cores: int
    """Cores that this process may run on, by affinity."""
    memory_bytes: int
    """Physical memory, or the container's limit where that is lower."""
    free_disk_bytes: int
    gpus: tuple[Gpu, ...]
    engines: frozenset[str]
    hidden_gpus: str = ""
    """Message that says why `gpus` has fewer cards than the machine; empty if it has all."""
    gpu_users: Mapping[str, tuple[GpuUser, ...]] = field(
        default_factory=dict[str, tuple[GpuUser, ...]]
    )
    busy: frozenset[str] = frozenset()
    """UUIDs of cards with other users or claimed by another run: `auto` takes them last."""
    others: tuple[str, ...] = ()
    is_here: bool = False
    """True for this machine, whose interpreters can be asked."""
    assumed: str = ""
    num_nodes: int = 0
    """Further machines like this one that were assumed: nodes of a cluster, whose head this is."""

    @property
    def title(self) -> str:
        return "the assumed machine" if self.assumed else "this machine"


def this_machine(store_dir: Path, *, serve: ServeTable | None = None) -> Machine:
    """Reads this machine. Takes a millisecond without GPUs. `serve` names the interpreter with the
    engines; absent means this one."""
    present = inventory()
    found = occupancies(present)
    users = {uuid: each.users for uuid, each in found.items() if each.users}
    gpus = tuple(
        replace(gpu, free_bytes=found[gpu.uuid].free_bytes) if gpu.uuid in found else gpu
        for gpu in present
    )
    return Machine(
        cores=count_cores(),
        memory_bytes=total_memory_bytes(),
        free_disk_bytes=free_bytes(store_dir),
        gpus=gpus,
        hidden_gpus=hidden_gpus(),
        gpu_users=users,
        busy=claimed(gpus) | users.keys(),
        engines=installed_engines(serve),
        others=tuple(runs_on_these_cores()),
        is_here=True,
    )


def count_cores() -> int:
    """Cores that this process may run on; all on a system without affinity (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def assume(text: str, *, here: Machine) -> Machine:
    """The machine that [NODESx]NUMBERxNAME-SIZEGB describes, with at least the cores, memory and
    disk of `here`; the first of several. Raises ConfigError for another text."""
    match = ASSUMED_FORM.fullmatch(text.strip())
    num, num_nodes, size = (
        (int(match["num"]), int(match["nodes"] or 1), int(match["size"])) if match else (0, 0, 0)
    )
    if match is None or not (num and num_nodes and size):
        raise ConfigError(
            f'--assume: found "{text}"; NUMBERxNAME-SIZEGB is allowed, such as "8xH100-80GB", '
            '"1xMI300X-192GB" or "2xRTX4090-24GB", and "4x8xH100-80GB" for four machines'
        )
    if num_nodes * num > MAX_ASSUMED_CARDS:
        found = f'"{text}", {num_nodes * num} GPUs'
        raise ConfigError(f"--assume: found {found}; up to {MAX_ASSUMED_CARDS} are allowed")
    memory_bytes = size << 30
    return replace(
        here,
        cores=max(here.cores, num * CORES_PER_CARD),
        memory_bytes=max(here.memory_bytes, num * MEMORY_PER_CARD),
        free_disk_bytes=max(here.free_disk_bytes, num * DISK_PER_CARD),
        gpus=tuple(_card(index, match["name"], memory_bytes) for index in range(num)),
        num_nodes=num_nodes - 1,
        engines=frozenset(ENGINES),
        hidden_gpus="",
        gpu_users={},
        busy=frozenset(),
        others=(),
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


T = TypeVar("T", bound="Plan | Placement")


@contextmanager
def open_claimed(
    lay_out: Callable[[Machine], T], *, look: Callable[[], Machine], run: str, wait_s: float = 0.0,
    say: Callable[[str], None],
) -> Generator[tuple[T, Claim]]:  # fmt: skip
    """Yields the result of `lay_out` for this machine, which `look` reads, and the claim on its
    cards. Blocks, up to `wait_s` for cards of another run. Raises CardBusy if processes without a
    claim leave too little memory on a card; MachineError."""
    machine = look()
    made = lay_out(replace(machine, gpu_users={}))
    with claim(made.gpus, run=run, wait_s=wait_s, say=say) as cards:
        if made.gpus:
            # `busy` stays: another order of cards would lay out other cards than the claimed ones.
            made = _fitted(lay_out, lambda: replace(look(), busy=machine.busy), say)
        yield made, cards


def _fitted(
    lay_out: Callable[[Machine], T], look: Callable[[], Machine], say: Callable[[str], None]
) -> T:
    """Lays out beside the cards' other users. Waits for processes of a run that was just killed."""
    deadline, has_said = time.monotonic() + LEFTOVERS_S, False
    while True:
        try:
            return lay_out(look())
        except CardBusy as error:
            if time.monotonic() >= deadline:
                raise
            if not has_said:
                say(f"{error}; trying again for {LEFTOVERS_S:.0f} s")
                has_said = True
            time.sleep(LOOK_AGAIN_S)
