"""Vitals of a run's processes: memory by process tree, GPU memory and use, last lines of logs.

Called by `status.py` in a thread, at most once a second: one pass over /proc and NVML where there
are cards. Promise: what cannot be read is None or absent, never an error: a process may end between
two samples, and in a container NVML reports the memory of a card without its processes.

/proc is read without psutil, which opens several files for each process: 1.0 ms against 4.3 ms a
sample of 118 processes (`process_iter`), 8.4 ms by `Process.children` for four trees of five.
"""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.process.machine import HostMemory, read_memory
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PROC = Path("/proc")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
LAST_BYTES = 4096
"""Bytes read from the end of a log. A longer last line is cut; no table shows that much."""
STAMP = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (?:rank \d+ )?(?:[\w.]+ INFO |INFO [\w.]+: )?"
)
"""Beginning of a log line: time, and name and level of a remark. A table has its own column for the
age, and room for a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """State of a GPU, all its users included."""

    used_bytes: int
    total_bytes: int
    use: float | None
    """0..1: share of time with a kernel running."""
    by_pid: Mapping[int, int] = field(default_factory=dict[int, int])
    """Bytes by pid; empty where the driver names no processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """One sample."""

    resident: Mapping[int, int] = field(default_factory=dict[int, int])
    """Resident bytes of each process tree, by its root. Pages that several processes share (forked
    judges) count for each."""
    cpu_cores: Mapping[int, float] = field(default_factory=dict[int, float])
    """Cores used by each process tree since the sample before, by its root."""
    trees: Mapping[int, frozenset[int]] = field(default_factory=dict[int, frozenset[int]])
    """Pids of each process tree, by its root."""
    ours: frozenset[int] = frozenset()
    """Pids of all trees."""
    memory: HostMemory | None = None
    cards: Mapping[str, Card] = field(default_factory=dict[str, Card])
    """By UUID; a card that cannot be read is absent."""


class VitalsSampler:
    """Reads vitals; keeps NVML open and the CPU times between samples."""

    def __init__(self) -> None:
        self._ticks: dict[int, int] = {}
        """CPU time of each tree at the last sample, by its root."""
        self._sampled_at = 0.0

    def sample(self, roots: Iterable[int], *, alone: Iterable[int], uuids: Sequence[str]) -> Vitals:
        """Vitals of process trees and cards.

        Args:
            roots: pids counted with their descendants.
            alone: pids counted without their descendants.
            uuids: cards.
        """
        parents, resident, ticks = _processes()
        alone = frozenset(alone)
        trees = _trees(roots, parents) | {pid: frozenset({pid}) for pid in alone}
        return Vitals(
            resident={
                root: sum(resident.get(pid, 0) for pid in tree)
                for root, tree in trees.items()
                if root in resident
            },
            cpu_cores=self._cpu_cores(trees, ticks, alone=alone),
            trees=trees,
            ours=frozenset[int]().union(*trees.values()),
            memory=read_memory(),
            cards=self._cards(uuids),
        )

    def _cpu_cores(
        self,
        trees: Mapping[int, frozenset[int]],
        ticks: Mapping[int, tuple[int, int]],
        *,
        alone: frozenset[int],
    ) -> dict[int, float]:
        """Cores by root; none for a tree that is new in this sample. Of a process alone, the time
        of its ended children does not count.
        """
        now, before = time.monotonic(), self._ticks
        passed_s, self._sampled_at = now - self._sampled_at, now
        self._ticks = {
            root: sum(ticks[pid][root not in alone] for pid in tree if pid in ticks)
            for root, tree in trees.items()
            if root in ticks
        }
        return {
            root: max(0, total - before[root]) / TICKS_PER_S / max(passed_s, 1e-3)
            for root, total in self._ticks.items()
            if root in before
        }

    def _cards(self, uuids: Sequence[str]) -> dict[str, Card]:
        if not uuids or self._nvml is None:
            return {}
        found = {uuid: _card(self._nvml, uuid) for uuid in uuids}
        return {uuid: card for uuid, card in found.items() if card is not None}

    @cached_property
    def _nvml(self) -> Any:
        """NVML; None if it does not work. Tried once, since no driver appears during a run."""
        import pynvml  # pyright: ignore[reportMissingTypeStubs]

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:  # no driver, or a card of another vendor
            return None
        return pynvml


def _card(nvml: Any, uuid: str) -> Card | None:
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:
        return None
    try:
        use = float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
    except nvml.NVMLError:  # some cards do not report it
        use = None
    held = {int(one.pid): int(one.usedGpuMemory) for one in running if one.usedGpuMemory}
    return Card(used_bytes=int(memory.used), total_bytes=int(memory.total), use=use, by_pid=held)


def _processes() -> tuple[dict[int, int], dict[int, int], dict[int, tuple[int, int]]]:
    """Parent, resident bytes and ticks of CPU time of every process, each by pid; ticks without and
    with those of its ended children.
    """
    parents: dict[int, int] = {}
    resident: dict[int, int] = {}
    ticks: dict[int, tuple[int, int]] = {}
    for name in os.listdir(PROC):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:  # ended since
            continue
        # proc(5): the name in brackets is followed by state, ppid, ...; rss is field 24. Fields 14
        # to 17 are its CPU time and that of children which ended: a tree's sum never falls.
        parents[int(name)], resident[int(name)] = int(fields[1]), int(fields[21]) * PAGE_BYTES
        own, of_ended = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
        ticks[int(name)] = own, own + of_ended
    return parents, resident, ticks


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


@dataclass(slots=True)
class LastLogLines:
    """Last line of each log. A log is read only when its size has changed."""

    _known: dict[Path, tuple[int, str]] = field(default_factory=dict[Path, tuple[int, str]])
    """Size of a log, and its last line at that size."""

    def read(self, paths: Iterable[Path]) -> dict[Path, str]:
        """Printable last lines; empty for a log that is missing or has no line."""
        return {path: self._last(path) for path in paths}

    def _last(self, path: Path) -> str:
        try:
            size = path.stat().st_size
            if (known := self._known.get(path)) is not None and known[0] == size:
                return known[1]
            with path.open("rb") as file:
                file.seek(max(0, size - LAST_BYTES))
                text = file.read().decode("utf-8", errors="replace")
        except OSError:
            return ""
        lines = [line.rpartition("\r")[2] for line in text.split("\n") if line.strip()]
        last = printable(STAMP.sub("", lines[-1]).replace("\t", " ").strip()) if lines else ""
        self._known[path] = size, last
        return last
