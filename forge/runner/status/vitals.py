"""What the processes of a run take of the machine: memory by process tree, GPU memory and use.

Called by `components.py` in a thread, at most once a second: one pass over /proc (2 ms for 300
processes), and NVML where there are cards. Promise: what cannot be read is None or absent, never an
error: a process ends between two looks, and in a container NVML counts a card's memory without
saying whose it is.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.process.memory import HostMemory, read_memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PROC = Path("/proc")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A GPU now, whoever uses it."""

    used_bytes: int
    total_bytes: int
    use: float | None
    """0..1: the share of time with a kernel on it."""
    by_pid: Mapping[int, int] = field(default_factory=dict)
    """Bytes of the processes that the driver names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """One look."""

    resident: Mapping[int, int] = field(default_factory=dict)
    """Root pid to the resident bytes of it and all it started. Pages that several of them share
    (forked judges) count for each."""
    trees: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """Root pid to the pids of its tree."""
    ours: frozenset[int] = frozenset()
    """All of them."""
    memory: HostMemory | None = None
    cards: Mapping[str, Card] = field(default_factory=dict)
    """By UUID; a card that does not answer is absent."""


class Sampler:
    """Keeps NVML open between looks."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._is_tried = False

    def look(self, roots: Iterable[int], *, alone: Iterable[int], uuids: Sequence[str]) -> Vitals:
        """Of these processes with all they started (of those in `alone` without it) and cards."""
        parents, resident = _processes()
        trees = _trees(roots, parents) | {pid: frozenset({pid}) for pid in alone}
        return Vitals(
            resident={
                root: sum(resident.get(pid, 0) for pid in tree)
                for root, tree in trees.items()
                if root in resident
            },
            trees=trees,
            ours=frozenset().union(*trees.values()),
            memory=read_memory(),
            cards=self._cards(uuids),
        )

    def _cards(self, uuids: Sequence[str]) -> dict[str, Card]:
        if not uuids or not self._open():
            return {}
        found = {uuid: self._card(uuid) for uuid in uuids}
        return {uuid: card for uuid, card in found.items() if card is not None}

    def _open(self) -> bool:
        """Whether NVML answers; asked once, as a driver does not come while we run."""
        if not self._is_tried:
            self._is_tried = True
            import pynvml

            try:
                pynvml.nvmlInit()
                self._nvml = pynvml
            except pynvml.NVMLError:  # no driver, or another vendor's
                self._nvml = None
        return self._nvml is not None

    def _card(self, uuid: str) -> Card | None:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except nvml.NVMLError:
            return None
        try:
            use = float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
        except nvml.NVMLError:  # not told by all cards
            use = None
        held = {int(one.pid): int(one.usedGpuMemory) for one in running if one.usedGpuMemory}
        return Card(
            used_bytes=int(memory.used), total_bytes=int(memory.total), use=use, by_pid=held
        )


def _processes() -> tuple[dict[int, int], dict[int, int]]:
    """Pid to its parent, and to its resident bytes; psutil asks several files of each."""
    parents: dict[int, int] = {}
    resident: dict[int, int] = {}
    for name in os.listdir(PROC):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:  # it has ended
            continue
        # proc(5): after the name in brackets come state, ppid, ...; rss is the 24th of all.
        parents[int(name)], resident[int(name)] = int(fields[1]), int(fields[21]) * PAGE_BYTES
    return parents, resident


def _trees(roots: Iterable[int], parents: Mapping[int, int]) -> dict[int, frozenset[int]]:
    children: dict[int, list[int]] = defaultdict(list)
    for pid, parent in parents.items():
        children[parent].append(pid)
    found: dict[int, frozenset[int]] = {}
    for root in roots:
        tree, rest = {root}, [root]
        while rest:
            rest += (new := [pid for pid in children[rest.pop()] if pid not in tree])
            tree.update(new)
        found[root] = frozenset(tree)
    return found
