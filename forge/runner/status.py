"""Status of each process of a run: phase, health with its figure, memory, progress, restarts and
the last line of its log. `forge status` and the TUI read it.

    once a second   attributes (event loop, microseconds) ──▶ thread: /proc, NVML, ends of logs
                                                                └──▶ `latest`, which /status copies

A task beside the work of a run, started by `run.py`; nothing waits for it. Health:

    red      failed (quarantined), recovering (ended, being restarted), or silent beyond its limit
    yellow   a queue at its bound, memory over 90 %, or restarted within the last two minutes
    green    otherwise

Attributes are read from the objects that own a component. Memory by process tree comes from one
pass over /proc, and that of cards from NVML. What cannot be read is None or absent, never an error:
a process may end between two samples, and in a container NVML reports the memory of a card without
its processes. /proc is read without psutil, which opens several files for each process: 1.0 ms
against 4.3 ms a sample of 118 processes (`process_iter`), 8.4 ms by `Process.children` for four
trees of five.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import anyio.to_thread

from forge.config.schema import Experiment
from forge.evalpool.pool import MAX_QUEUED, Pool, request_timeout_s
from forge.evalpool.seating import State
from forge.process.control import ComponentStatus, Health, Role
from forge.process.machine import HostMemory, read_memory
from forge.runner.live.stopping import Seen
from forge.runner.stages.desk import TrainerDesk, TrainerState
from forge.runner.stages.run_context import RunContext
from forge.serve.remote import Remote
from forge.serve.replica import Replica
from forge.serve.replicas import Replicas
from forge.views.text import gigabytes, printable

FULL = 0.9
"""Share of a memory above which the next long sample or large batch may not fit."""
MODEL_MAKER = "init-model"
"""The child of `prepare` that makes a tiny model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One component at one moment."""

    name: str
    role: Role
    owner: object
    """The object it was read from. A new owner means a new component of the same name, without
    history."""
    phase: str
    is_gone: bool = False
    """True if no process answers: it is being started."""
    num_restarts: int = 0
    marks: tuple[object, ...] = ()
    """Values that change whenever it makes progress."""
    is_asked: bool = False
    """True if something waits for it."""
    limit_s: float | None = None
    """Maximum silence while it is asked."""
    silent_s: float | None = None
    """Seconds of silence, where its owner measures them; else they follow from the marks."""
    failure: str = ""
    strain: str = ""
    """A queue at its bound or a full cache: `queue 256 of 256`; empty for neither."""
    fills_cards: bool = False
    """True if it allocates GPU memory while it works, and may run out of it."""
    seen: Seen | None = None
    address: str = ""
    num_judged: int | None = None

    @property
    def node(self) -> str:
        """Name and address of its machine; empty for this one."""
        return self.seen.node if self.seen is not None else ""

    @property
    def devices(self) -> list[str]:
        """UUIDs of the cards of its process, on any machine."""
        if self.seen is None or self.seen.devices == "cpu":
            return []
        return [part.strip() for part in self.seen.devices.split(",") if part.strip()]

    @property
    def uuids(self) -> list[str]:
        """UUIDs of its cards on this machine."""
        return [] if self.node else self.devices

    @property
    def pid(self) -> int | None:
        """Its process, unless it has ended or is another machine's."""
        if self.seen is None or self.node or self.seen.ended_at is not None:
            return None
        return self.seen.pid


def _queue(length: int, bound: int, what: str = "queue") -> str:
    return f"{what} {length} of {bound}" if length >= bound else ""


def observe_trainer(
    desk: TrainerDesk | None, seen: Mapping[str, Seen], experiment: Experiment, *, now: float
) -> Iterator[Component]:
    """The trainer of the current stage, and the process that makes a tiny model before."""
    maker = seen.get(MODEL_MAKER)
    if maker is not None and maker.ended_at is None:
        yield Component(
            name=MODEL_MAKER, role="trainer", owner=maker, phase="making the model", seen=maker
        )
    if desk is None:
        return
    child = seen.get("trainer")
    is_gone = desk.state is TrainerState.STARTING or child is None or child.ended_at is not None
    stage = experiment.stage[desk.stage]
    yield Component(
        name="trainer",
        role="trainer",
        owner=desk,
        phase=_trainer_phase(desk, is_gone=is_gone),
        is_gone=is_gone,
        num_restarts=desk.num_restarts,
        marks=(desk.trained_step, desk.state is TrainerState.TRAINING, desk.is_publishing),
        is_asked=True,
        silent_s=None if math.isinf(desk.last_heard) else max(0.0, now - desk.last_heard),
        limit_s=getattr(stage, "step_timeout_s", None),
        fills_cards=True,
        seen=child,
    )


def _trainer_phase(desk: TrainerDesk, *, is_gone: bool) -> str:
    if is_gone:
        return "restarting" if desk.num_restarts else "starting"
    if desk.is_stopping:
        return "saving"
    if desk.state is TrainerState.TRAINING:
        return f"step {desk.trained_step + 1}"
    if desk.is_publishing:
        return "publishing"
    if desk.state is TrainerState.WAITING:
        return "held for an evaluation" if desk.is_held else "waiting for a batch"
    return "training"


def observe_serving(
    served: object, experiment: Experiment, *, seen: Mapping[str, Seen]
) -> Iterator[Component]:
    """Replicas, or servers behind URLs. Replicas that start before `served` exists are known by
    their processes."""
    limit_s = experiment.serve.request_timeout_s
    if served is None:
        yield from _observe_starting("serve", seen)
    if isinstance(served, Replicas):
        for replica in served.all:
            yield _observe_replica(replica, experiment, limit_s, seen.get(replica.name))
    elif isinstance(served, Remote):
        for server in served.all:
            yield Component(
                name=server.name,
                role="serve",
                owner=server,
                phase=f"answering {server.load}" if server.load else "idle",
                is_gone=not server.is_up,
                num_restarts=server.num_deaths,
                marks=(server.generated_tokens,),
                is_asked=server.load > 0 and server.is_up,
                limit_s=limit_s,
                address=server.name,
            )


def _observe_starting(role: Role, seen: Mapping[str, Seen]) -> Iterator[Component]:
    for name, child in seen.items():
        if name.startswith(f"{role}-") and child.ended_at is None:
            yield Component(
                name=name, role=role, owner="starting", phase="starting", is_gone=True, seen=child
            )


def _observe_replica(
    replica: Replica, experiment: Experiment, limit_s: float, seen: Seen | None
) -> Component:
    health = replica.health
    engine, use = health.get("engine", ""), health.get("kv_use", 0.0)
    # A full KV cache is a problem only while samples wait for room in it.
    is_full = engine == "vllm" and health.get("waiting", 0) and use > FULL
    return Component(
        name=replica.name,
        role="serve",
        owner=replica,
        phase=_replica_phase(replica, slots=experiment.serve.slots),
        is_gone=not health,
        num_restarts=replica.num_deaths,
        marks=(replica.generated_tokens, health.get("generated_tokens"), health.get("step_s")),
        is_asked=replica.load > 0 and replica.is_up,
        limit_s=limit_s,
        strain=_memory(use, "the KV cache") if is_full else "",
        fills_cards=engine == "hf",  # other engines allocate all memory at the start
        seen=seen,
    )


def _replica_phase(replica: Replica, *, slots: int) -> str:
    if not replica.health:
        return "restarting" if replica.num_deaths else "starting"
    if replica.health.get("is_asleep"):
        return "asleep"
    if not replica.is_up:
        return "loading weights"
    if not replica.load:
        return "idle"
    waiting = f", {replica.load - slots} wait" if replica.load > slots else ""
    return f"decoding {min(replica.load, slots)} of {slots}{waiting}"


def observe_judges(
    pool: Pool | None, experiment: Experiment, *, seen: Mapping[str, Seen]
) -> Iterator[Component]:
    """All judges. Those that start before the pool exists are known by their processes."""
    if pool is None:
        yield from _observe_starting("judge", seen)
        return
    seats = pool.seating.seats
    num_pending = pool.seating.num_waiting + sum(seat.num_running for seat in seats)
    strain, urls = _queue(min(num_pending, MAX_QUEUED), MAX_QUEUED), experiment.judge.url
    for seat in seats:
        child, num_judged = seen.get(seat.name), seat.num_taken - seat.num_running
        working = f"judging {seat.num_running} of {seat.capacity}"
        phases = {
            State.UP: working if seat.num_running else "idle",
            State.DOWN: "restarting", State.QUARANTINED: "quarantined",
        }  # fmt: skip
        yield Component(
            name=seat.name,
            role="judge",
            owner="judges",
            phase=phases[seat.state],
            is_gone=seat.state is State.DOWN,
            num_restarts=max(0, child.num_starts - 1) if child else 0,
            marks=(num_judged,),
            num_judged=num_judged,
            is_asked=seat.num_running > 0,
            limit_s=request_timeout_s(experiment.judge, is_timed=seat.is_timed),
            failure=f"quarantined: {seat.why}" if seat.state is State.QUARANTINED else "",
            strain=strain,
            fills_cards=True,
            seen=child,
            # `pool-1` is the second entry of `judge.url`.
            address=urls[int(seat.name.rpartition("-")[2])] if seat.is_remote else "",
        )


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
    used_bytes: int
    total_bytes: int
    use: float | None
    """0..1: share of time with a kernel running."""
    by_pid: Mapping[int, int] = field(default_factory=dict[int, int])
    """Bytes by pid; empty where the driver names no processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    resident: Mapping[int, int] = field(default_factory=dict[int, int])
    """Resident bytes of each process tree, by its root. Pages that several processes share (forked
    judges) count for each."""
    cpu_cores: Mapping[int, float] = field(default_factory=dict[int, float])
    """Cores used by each process tree since the sample before, by its root."""
    trees: Mapping[int, frozenset[int]] = field(default_factory=dict[int, frozenset[int]])
    """Pids of each process tree, by its root."""
    memory: HostMemory | None = None
    cards: Mapping[str, Card] = field(default_factory=dict[str, Card])
    """By UUID; a card that cannot be read is absent."""


class VitalsSampler:
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
        processes = _processes()
        children: dict[int, list[int]] = defaultdict(list)
        for pid, each in processes.items():
            children[each.parent].append(pid)
        alone = frozenset(alone)
        trees = {root: _tree(root, children) for root in roots}
        trees |= {pid: frozenset({pid}) for pid in alone}
        found = {
            root: [processes[pid] for pid in tree if pid in processes]
            for root, tree in trees.items()
            if root in processes
        }
        now, before = time.monotonic(), self._ticks
        passed_s, self._sampled_at = max(now - self._sampled_at, 1e-3), now
        # Of a process alone, the time of its ended children does not count.
        self._ticks = {
            root: sum(each.ticks[root not in alone] for each in of) for root, of in found.items()
        }
        return Vitals(
            resident={root: sum(each.resident for each in of) for root, of in found.items()},
            cpu_cores={
                root: max(0, total - before[root]) / TICKS_PER_S / passed_s
                for root, total in self._ticks.items()
                if root in before
            },
            trees=trees,
            memory=read_memory(),
            cards={
                uuid: card
                for uuid in uuids
                if self._nvml is not None and (card := _card(self._nvml, uuid)) is not None
            },
        )

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


class _Process(NamedTuple):
    parent: int
    resident: int
    ticks: tuple[int, int]
    """CPU time without and with that of its ended children."""


def _processes() -> dict[int, _Process]:
    found: dict[int, _Process] = {}
    for name in filter(str.isdecimal, os.listdir(PROC)):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:  # ended since
            continue
        # proc(5): the name in brackets is followed by state, ppid, ...; rss is field 24. Fields 14
        # to 17 are its CPU time and that of children which ended: a tree's sum never falls.
        own, of_ended = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
        pages = int(fields[21])
        found[int(name)] = _Process(int(fields[1]), pages * PAGE_BYTES, (own, own + of_ended))
    return found


def _tree(root: int, children: Mapping[int, Sequence[int]]) -> frozenset[int]:
    tree, rest = {root}, [root]
    while rest:
        rest += (new := [pid for pid in children.get(rest.pop(), ()) if pid not in tree])
        tree.update(new)
    return frozenset(tree)


@dataclass(slots=True)
class LastLogLines:
    """Last line of each log. A log is read only when its size has changed."""

    _known: dict[Path, tuple[int, str]] = field(default_factory=dict[Path, tuple[int, str]])

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
        if component.silent_s is not None or self.asked_at is None:
            return component.silent_s
        return now - max(self.asked_at, self.moved_at or 0.0)


@dataclass(slots=True, kw_only=True)
class Components:
    """Status of all components of a run, read from its context."""

    run: RunContext
    log_path: Path
    latest: Sequence[ComponentStatus] = ()
    _histories: dict[str, _History] = field(default_factory=dict[str, _History])
    _vitals: Vitals = field(default_factory=Vitals)
    _last_lines: dict[Path, str] = field(default_factory=dict[Path, str])
    _sampler: VitalsSampler = field(default_factory=VitalsSampler)
    _logs: LastLogLines = field(default_factory=LastLogLines)
    _late: tuple[float, float] = (0.0, 0.0)
    """Delay of the event loop, and when it was measured."""

    def to_json(self) -> dict[str, Any]:
        return {"components": [asdict(each) for each in self.latest]}

    async def watch(self) -> None:
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
        seen, experiment, progress = run.observer.seen, run.experiment, run.progress
        supervisor = Component(
            name="supervisor",
            role="supervisor",
            owner=progress,
            phase=progress.label,
            marks=(progress.label, progress.done, progress.tokens.total, progress.judged.total),
            strain=_queue(*run.writer.backlog, "records for the store"),
            seen=Seen(
                pid=os.getpid(), devices="cpu", log_path=self.log_path,
                started_at=progress.started_at,
            ),
        )  # fmt: skip
        return [
            supervisor,
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
        pids = {each.pid for each in components if each.pid is not None} - {own}
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
        history, vitals, pid = self._histories[component.name], self._vitals, component.pid
        cards = {uuid: vitals.cards[uuid] for uuid in component.uuids if uuid in vitals.cards}
        is_ending = component.is_gone and component.role in self.run.ending
        health, why = self._health(component, history, cards, now)
        uses = [card.use for card in cards.values() if card.use is not None]
        cores = vitals.cpu_cores.get(pid) if pid is not None else None
        log_path = component.seen.log_path if component.seen else None
        return ComponentStatus(
            name=component.name,
            role=component.role,
            device=component.address or self._device(component),
            phase="ending" if is_ending else component.phase,
            health=health,
            why=why,
            memory_bytes=vitals.resident.get(pid) if pid is not None else None,
            gpu_memory_bytes=self._gpu_memory_bytes(component, cards, sole_users),
            gpu_use=sum(uses) / len(uses) if uses else None,
            progress_age_s=None if history.moved_at is None else round(now - history.moved_at, 1),
            num_restarts=component.num_restarts,
            last_words=self._last_lines.get(log_path, "") if log_path else "",
            cpu_cores=None if cores is None else round(cores, 2),
            node=component.node,
            num_judged=component.num_judged,
        )

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
        if component.strain:
            return component.strain
        memories: list[Card | HostMemory] = [*cards.values()] if component.fills_cards else []
        if component.role == "supervisor" and self._vitals.memory is not None:
            memories = [self._vitals.memory]
        fills = [(each.used_bytes / each.total_bytes, each.total_bytes) for each in memories]
        share, total = max(fills, default=(0.0, 0))
        if share > FULL:
            return _memory(share, gigabytes(total, places=0))
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
        trees = self._vitals.trees
        tree = trees.get(component.seen.pid, frozenset())
        held: list[int] = []
        for uuid, card in cards.items():
            if any(pid in ours for pid in card.by_pid for ours in trees.values()):
                held.append(sum(card.by_pid.get(pid, 0) for pid in tree))
            elif sole_users.get(uuid) == component.name:
                held.append(card.used_bytes)
        return sum(held) if held else None

    def _device(self, component: Component) -> str:
        """`cpu`, `GPU 0,1`; on another machine `gpu-7 10.0.0.7: GPU-1a2b3c4d`."""
        devices = component.devices
        if component.node:
            return f"{component.node}: {', '.join(each[:12] for each in devices) or 'cpu'}"
        index = {gpu.uuid: str(gpu.index) for gpu in self.run.placement.gpus}
        return "GPU " + ",".join(index.get(each, each) for each in devices) if devices else "cpu"


def _sole_users(components: Sequence[Component]) -> dict[str, str]:
    users = [(uuid, component.name) for component in components for uuid in component.uuids]
    counts = Counter(uuid for uuid, _ in users)
    return {uuid: name for uuid, name in users if counts[uuid] == 1}


def _memory(share: float, of: str) -> str:
    return f"memory {100 * share:.0f} % of {of}"
