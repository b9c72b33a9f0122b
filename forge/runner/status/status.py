"""Status of each process of a run: phase, health with its figure, memory, progress, restarts and
the last line of its log. `forge status` and the TUI read it.

    once a second   attributes (event loop, microseconds) ──▶ thread: /proc, NVML, ends of logs
                                                                └──▶ `latest`, which /status copies

A task beside the work of a run, started by `run.py`; nothing waits for it. Health:

    red      failed (quarantined), recovering (ended, being restarted), or silent beyond its limit
    yellow   a queue at its bound, memory over 90 %, or restarted within the last two minutes
    green    otherwise
"""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from forge.process.control import ComponentStatus
from forge.runner.status.observed import (
    FULL,
    Component,
    Fill,
    Queue,
    observe_judges,
    observe_serving,
    observe_supervisor,
    observe_trainer,
)
from forge.runner.status.vitals import Card, LastLogLines, Vitals, VitalsSampler
from forge.views.text import numbers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.process.control import Health
    from forge.process.machine import HostMemory
    from forge.runner.stages.run_context import RunContext

LOOK_EVERY_S = 1.0
VITALS_EVERY = 2
"""Looks between two passes over /proc, which take 15 us of a core for each process there."""
RESTARTED_S = 120.0
"""A restart is shown for this long: the component's state was lost and its caches are cold."""
LATE_S, STUCK_S = 1.0, 5.0
"""Delays of the supervisor's loop: above the first every child waits, above the second
`forge status` times out."""
LATE_FOR_S = 20.0
"""A delay of the event loop stays visible for this long."""


@dataclass(slots=True)
class _History:
    """Changes seen in successive looks at a component. Times are monotonic seconds."""

    owner: object
    marks: tuple[object, ...]
    moved_at: float | None = None
    asked_at: float | None = None
    was_up: bool = False
    num_restarts_up: int = 0
    """Restarts when it was last up."""
    restarted_at: float | None = None

    def update(self, component: Component, now: float) -> None:
        if component.marks != self.marks:
            self.marks, self.moved_at = component.marks, now
        if not component.is_asked:
            self.asked_at = None
        elif self.asked_at is None:
            self.asked_at = now
        if not component.is_gone:
            if self.was_up and component.num_restarts > self.num_restarts_up:
                self.restarted_at = now
            self.was_up, self.num_restarts_up = True, component.num_restarts

    def silent_s(self, component: Component, now: float) -> float | None:
        if component.silent_s is not None:
            return component.silent_s
        if self.asked_at is None:
            return None
        return now - max(self.asked_at, self.moved_at or 0.0)


@dataclass(slots=True, kw_only=True)
class Components:
    """Status of all components of a run, read from its context."""

    run: RunContext
    log_path: Path
    """The supervisor's log."""
    latest: Sequence[ComponentStatus] = ()
    _histories: dict[str, _History] = field(default_factory=dict[str, _History])
    _vitals: Vitals = field(default_factory=Vitals)
    _last_lines: dict[Path, str] = field(default_factory=dict[Path, str])
    _sampler: VitalsSampler = field(default_factory=VitalsSampler)
    _logs: LastLogLines = field(default_factory=LastLogLines)
    _late: tuple[float, float] = (0.0, 0.0)
    """Delay of the event loop, and when it was measured."""

    def to_json(self) -> dict[str, Any]:
        """The components' part of /status."""
        return {"components": [each.to_json() for each in self.latest]}

    async def watch(self) -> None:
        """Updates `latest` once a second until cancelled."""
        for num_looks in itertools.count():
            components = self._observe(time.monotonic())
            await anyio.to_thread.run_sync(
                self._read_vitals, components, num_looks, abandon_on_cancel=True
            )
            self.latest = self._statuses(components, now=time.monotonic())
            began = time.monotonic()
            await anyio.sleep(LOOK_EVERY_S)
            now = time.monotonic()
            late = now - began - LOOK_EVERY_S
            if late > self._late[0] or now - self._late[1] > LATE_FOR_S:
                self._late = late, now

    def _observe(self, now: float) -> list[Component]:
        run = self.run
        seen, experiment = run.observer.seen, run.experiment
        length, bound = run.writer.backlog
        return [
            observe_supervisor(
                run.progress,
                pid=os.getpid(),
                log_path=self.log_path,
                queue=Queue(length=length, bound=bound, what="records for the store"),
            ),
            *observe_trainer(run.desk, seen, experiment, now=now),
            *observe_serving(run.replicas, experiment, seen=seen),
            *observe_judges(run.pool, experiment, seen=seen),
        ]

    def _read_vitals(self, components: Sequence[Component], num_looks: int) -> None:
        """Reads files and asks the driver; in a thread."""
        self._last_lines = self._logs.read(each.seen.log_path for each in components if each.seen)
        if num_looks % VITALS_EVERY:
            return
        own = os.getpid()
        pids = {each.living.pid for each in components if each.living} - {own}
        uuids = [gpu.uuid for gpu in self.run.placement.gpus]
        self._vitals = self._sampler.sample(pids, alone=[own], uuids=uuids)

    def _statuses(self, components: Sequence[Component], *, now: float) -> list[ComponentStatus]:
        histories = dict[str, _History]()
        for each in components:
            history = self._histories.get(each.name)
            if history is None or history.owner is not each.owner:
                history = _History(each.owner, each.marks)
            history.update(each, now)
            histories[each.name] = history
        self._histories = histories
        sole_users = _sole_users(components)
        return [self._status(each, sole_users, now) for each in components]

    def _status(
        self, component: Component, sole_users: Mapping[str, str], now: float
    ) -> ComponentStatus:
        history = self._histories[component.name]
        seen, living, known = component.seen, component.living, self._vitals.cards
        cards = {uuid: known[uuid] for uuid in component.uuids if uuid in known}
        is_ending = component.is_gone and component.role in self.run.ending
        health, why = self._health(component, history, cards, now)
        uses = [card.use for card in cards.values() if card.use is not None]
        return ComponentStatus(
            name=component.name,
            role=component.role,
            device=component.address or _on_node(component) or self._device(component.uuids),
            phase="ending" if is_ending else component.phase,
            health=health,
            why=why,
            memory_bytes=self._vitals.resident.get(living.pid) if living else None,
            gpu_memory_bytes=self._gpu_memory_bytes(component, cards, sole_users),
            gpu_use=sum(uses) / len(uses) if uses else None,
            progress_age_s=None if history.moved_at is None else round(now - history.moved_at, 1),
            num_restarts=component.num_restarts,
            last_words=self._last_lines.get(seen.log_path, "") if seen else "",
            cpu_cores=self._cpu_cores(living.pid) if living else None,
            node=component.node,
            num_judged=component.num_judged,
        )

    def _cpu_cores(self, pid: int) -> float | None:
        cores = self._vitals.cpu_cores.get(pid)
        return None if cores is None else round(cores, 2)

    def _health(
        self, component: Component, history: _History, cards: Mapping[str, Card], now: float
    ) -> tuple[Health, str]:
        """The worst colour that applies, and the figure that decides; no figure for green."""
        if component.failure:
            return "red", component.failure
        is_restarting = component.is_gone and component.role not in self.run.ending
        if is_restarting and (history.was_up or component.num_restarts > 0):
            reason = (component.seen.reason if component.seen else "") or "it does not answer"
            return "red", f"recovering: {reason}"
        silent_s, limit_s = history.silent_s(component, now), component.limit_s
        if silent_s is not None and limit_s is not None and silent_s > limit_s:
            return "red", f"silent {silent_s:.0f} s of {limit_s:.0f} s"
        late_s = self._late[0] if component.role == "supervisor" else 0.0
        if late_s > LATE_S:
            return "red" if late_s > STUCK_S else "yellow", f"loop late by {late_s:.1f} s"
        strain = self._strain(component, history, cards, now)
        return "yellow" if strain else "green", strain

    def _strain(
        self, component: Component, history: _History, cards: Mapping[str, Card], now: float
    ) -> str:
        """The figure that makes a working component yellow; empty for none."""
        queue = component.queue
        if queue is not None and queue.length >= queue.bound:
            return f"{queue.what} {queue.length} of {queue.bound}"
        memories: list[Card | HostMemory] = [*cards.values()] if component.fills_cards else []
        if component.role == "supervisor" and self._vitals.memory is not None:
            memories = [self._vitals.memory]
        fills = (*component.fills, *map(_fill, memories))
        fullest = max(fills, key=lambda fill: fill.share, default=None)
        if fullest is not None and fullest.share > FULL:
            return f"memory {100 * fullest.share:.0f} % of {fullest.of}"
        if history.restarted_at is not None and now - history.restarted_at < RESTARTED_S:
            return f"restarted {now - history.restarted_at:.0f} s ago"
        return ""

    def _gpu_memory_bytes(
        self, component: Component, cards: Mapping[str, Card], sole_users: Mapping[str, str]
    ) -> int | None:
        """GPU memory of a component on its cards. Where the driver names no process of ours, as in
        a container, all memory in use counts for the card's sole user."""
        if component.seen is None:
            return None
        tree = self._vitals.trees.get(component.seen.pid, frozenset())
        held: list[int] = []
        for uuid, card in cards.items():
            if any(pid in self._vitals.ours for pid in card.by_pid):
                held.append(sum(card.by_pid.get(pid, 0) for pid in tree))
            elif sole_users.get(uuid) == component.name:
                held.append(card.used_bytes)
        return sum(held) if held else None

    def _device(self, uuids: Sequence[str]) -> str:
        index = {gpu.uuid: str(gpu.index) for gpu in self.run.placement.gpus}
        return "GPU " + ",".join(index.get(uuid, uuid) for uuid in uuids) if uuids else "cpu"


def _sole_users(components: Sequence[Component]) -> dict[str, str]:
    """Card to its component, for cards with a single one."""
    users = [(uuid, component.name) for component in components for uuid in component.uuids]
    counts = Counter(uuid for uuid, _ in users)
    return {uuid: name for uuid, name in users if counts[uuid] == 1}


def _on_node(component: Component) -> str:
    """`gpu-7 10.0.0.7: GPU-1a2b3c4d`; empty for a process of this machine."""
    if component.seen is None or not component.node:
        return ""
    cards = [part.strip()[:12] for part in component.seen.devices.split(",")]
    return f"{component.node}: {', '.join(cards)}"


def _fill(memory: Card | HostMemory) -> Fill:
    total = memory.total_bytes
    return Fill(share=memory.used_bytes / total, of=numbers.gigabytes(total, places=0))
