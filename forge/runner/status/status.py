"""What `forge status` and the TUI are told of each process of a run: phase, health with its figure,
memory, progress, restarts, last words.

    once a second   sights (event loop, microseconds) ──▶ thread: /proc, NVML, ends of logs
                                                             └──▶ `latest`, which /status reads

Beside the work of a run, started by `run.py`; nobody waits for it, and a status costs a copy.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from forge.control.records import ComponentStatus
from forge.runner.status.health import Facts, Fill, Queue, judge_health
from forge.runner.status.last_words import LastWords
from forge.runner.status.observed import Sight, see_judges, see_serving, see_supervisor, see_trainer
from forge.runner.status.vitals import Sampler, Vitals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.config.schema import Experiment
    from forge.control.records import Role
    from forge.evalpool.pool import Pool
    from forge.process.devices import Gpu
    from forge.runner.live.observer import StoreObserver
    from forge.runner.live.progress import Progress
    from forge.runner.stages.control import Control
    from forge.runner.stages.run_context import Run
    from forge.store.write.writer import Writer

LOOK_EVERY_S = 1.0
VITALS_EVERY = 2
"""Looks from one walk over /proc to the next: it takes 15 us of a core for each process there."""
LATE_FOR_S = 20.0
"""How long a loop that was late is told of."""


@dataclass(slots=True)
class _Life:
    """What is remembered of a component from look to look. Times are monotonic seconds."""

    owner: object
    marks: tuple[object, ...]
    moved_at: float | None = None
    asked_at: float | None = None
    was_up: bool = False
    num_restarts_up: int = 0
    """When it was last up."""
    restarted_at: float | None = None

    def look(self, sight: Sight, now: float) -> None:
        if sight.marks != self.marks:
            self.marks, self.moved_at = sight.marks, now
        if not sight.is_asked:
            self.asked_at = None
        elif self.asked_at is None:
            self.asked_at = now
        if not sight.is_gone:
            if self.was_up and sight.num_restarts > self.num_restarts_up:
                self.restarted_at = now
            self.was_up, self.num_restarts_up = True, sight.num_restarts

    def silent_s(self, sight: Sight, now: float) -> float | None:
        if sight.silent_s is not None:
            return sight.silent_s
        if self.asked_at is None:
            return None
        return now - max(self.asked_at, self.moved_at or 0.0)


@dataclass(slots=True, kw_only=True)
class Components:
    """All of a run. What it looks at comes in as it is opened: `pool`, then `run`."""

    experiment: Experiment
    progress: Progress
    control: Control
    observer: StoreObserver
    gpus: Sequence[Gpu] = ()
    log_path: Path
    """The supervisor's."""
    writer: Writer
    pool: Pool | None = None
    run: Run | None = None
    ending: set[Role] = field(default_factory=set)
    """Those whose work is done: one that goes is not being started again."""
    latest: Sequence[ComponentStatus] = ()
    _lives: dict[str, _Life] = field(default_factory=dict)
    _vitals: Vitals = field(default_factory=Vitals)
    _words: dict[Path, str] = field(default_factory=dict)
    _late: tuple[float, float] = (0.0, 0.0)
    """By how much the loop was late, and when."""

    def to_json(self) -> dict[str, Any]:
        """Their part of /status."""
        return {"components": [each.to_json() for each in self.latest]}

    async def watch(self) -> None:
        """Look once a second until cancelled."""
        sampler, lines, num_looks = Sampler(), LastWords(), 0
        while True:
            sights = self._sights(time.monotonic())
            look = partial(self._look, sampler, lines, sights, num=num_looks)
            await anyio.to_thread.run_sync(look, abandon_on_cancel=True)
            self.latest = self._statuses(sights, now=time.monotonic())
            num_looks += 1
            began = time.monotonic()
            await anyio.sleep(LOOK_EVERY_S)
            now = time.monotonic()
            late = now - began - LOOK_EVERY_S
            if late > self._late[0] or now - self._late[1] > LATE_FOR_S:
                self._late = late, now

    def _sights(self, now: float) -> list[Sight]:
        seen = self.observer.seen
        served = None if self.run is None else self.run.replicas
        length, bound = self.writer.backlog
        return [
            see_supervisor(
                self.progress,
                pid=os.getpid(),
                log_path=self.log_path,
                queue=Queue(length=length, bound=bound, what="records for the store"),
            ),
            *see_trainer(self.control.desk, seen, self.experiment, now=now),
            *see_serving(served, self.experiment, seen=seen),
            *see_judges(self.pool, self.experiment, seen=seen),
        ]

    def _look(
        self, sampler: Sampler, lines: LastWords, sights: Sequence[Sight], *, num: int
    ) -> None:
        """What needs files and the driver; in a thread."""
        logs = [sight.seen.log_path for sight in sights if sight.seen is not None]
        self._words = lines.of(logs)
        if num % VITALS_EVERY == 0:
            self._vitals = self._sample(sampler, sights)

    def _sample(self, sampler: Sampler, sights: Sequence[Sight]) -> Vitals:
        alive = [s.seen.pid for s in sights if s.seen is not None and s.seen.ended_at is None]
        own = os.getpid()
        return sampler.look(
            [pid for pid in alive if pid != own],
            alone=[own],
            uuids=[gpu.uuid for gpu in self.gpus],
        )

    def _statuses(self, sights: Sequence[Sight], *, now: float) -> list[ComponentStatus]:
        lives = {sight.name: self._life(sight, now) for sight in sights}
        self._lives = lives
        shares = _cards_alone(sights)
        return [self._status(sight, lives[sight.name], shares, now) for sight in sights]

    def _life(self, sight: Sight, now: float) -> _Life:
        life = self._lives.get(sight.name)
        if life is None or life.owner is not sight.owner:
            life = _Life(sight.owner, sight.marks)
        life.look(sight, now)
        return life

    def _status(
        self, sight: Sight, life: _Life, alone: Mapping[str, str], now: float
    ) -> ComponentStatus:
        seen = sight.seen if sight.seen is not None and sight.seen.ended_at is None else None
        uuids = _uuids(sight)
        cards = {uuid: self._vitals.cards[uuid] for uuid in uuids if uuid in self._vitals.cards}
        finding = judge_health(self._facts(sight, life, now))
        uses = [card.use for card in cards.values() if card.use is not None]
        return ComponentStatus(
            name=sight.name,
            role=sight.role,
            device=sight.address or self._device(uuids),
            phase="ending" if sight.is_gone and sight.role in self.ending else sight.phase,
            health=finding.health,
            why=finding.why,
            memory_bytes=self._vitals.resident.get(seen.pid) if seen else None,
            gpu_memory_bytes=self._held(sight, cards, alone),
            gpu_use=sum(uses) / len(uses) if uses else None,
            progress_age_s=None if life.moved_at is None else round(now - life.moved_at, 1),
            num_restarts=sight.num_restarts,
            last_words=self._words.get(sight.seen.log_path, "") if sight.seen else "",
        )

    def _facts(self, sight: Sight, life: _Life, now: float) -> Facts:
        is_back_soon = sight.is_gone and sight.role not in self.ending
        is_recovering = is_back_soon and (life.was_up or sight.num_restarts > 0)
        reason = (sight.seen.reason if sight.seen else "") or "it does not answer"
        is_us = sight.role == "supervisor"
        return Facts(
            failure=sight.failure,
            recovering=reason if is_recovering else "",
            silent_s=life.silent_s(sight, now),
            silent_limit_s=sight.limit_s,
            queue=sight.queue,
            fills=(*sight.fills, *(self._host_fill() if is_us else self._card_fills(sight))),
            restarted_s=None if life.restarted_at is None else now - life.restarted_at,
            late_s=self._late[0] if is_us else None,
        )

    def _host_fill(self) -> tuple[Fill, ...]:
        memory = self._vitals.memory
        if memory is None:
            return ()
        share = memory.used_bytes / memory.total_bytes
        return (Fill(share=share, of=_gb(memory.total_bytes)),)

    def _card_fills(self, sight: Sight) -> tuple[Fill, ...]:
        if not sight.fills_cards:
            return ()
        cards = [self._vitals.cards[u] for u in _uuids(sight) if u in self._vitals.cards]
        return tuple(
            Fill(share=card.used_bytes / card.total_bytes, of=_gb(card.total_bytes))
            for card in cards
        )

    def _held(self, sight: Sight, cards: Mapping[str, Any], alone: Mapping[str, str]) -> int | None:
        """Of its cards. Where the driver names no process of ours, as in a container, a card that
        it has for itself is its."""
        if sight.seen is None or not cards:
            return None
        tree = self._vitals.trees.get(sight.seen.pid, frozenset())
        held: list[int] = []
        for uuid, card in cards.items():
            if any(pid in self._vitals.ours for pid in card.by_pid):
                held.append(sum(card.by_pid.get(pid, 0) for pid in tree))
            elif alone.get(uuid) == sight.name:
                held.append(card.used_bytes)
        return sum(held) if held else None

    def _device(self, uuids: Sequence[str]) -> str:
        index = {gpu.uuid: str(gpu.index) for gpu in self.gpus}
        return "GPU " + ",".join(index.get(uuid, uuid) for uuid in uuids) if uuids else "cpu"


def _uuids(sight: Sight) -> list[str]:
    if sight.seen is None or sight.seen.devices == "cpu":
        return []
    return [part.strip() for part in sight.seen.devices.split(",") if part.strip()]


def _cards_alone(sights: Sequence[Sight]) -> dict[str, str]:
    """Card to the one component on it."""
    users: dict[str, list[str]] = {}
    for sight in sights:
        for uuid in _uuids(sight):
            users.setdefault(uuid, []).append(sight.name)
    return {uuid: names[0] for uuid, names in users.items() if len(names) == 1}


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.0f} GB"
