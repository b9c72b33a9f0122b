"""Current state of each component of a run, read from the objects that own it.

Called by `status.py` in the event loop once a second: only attributes are read, which costs
microseconds a component.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge.evalpool.judges import request_timeout_s
from forge.evalpool.pool import MAX_QUEUED
from forge.evalpool.seating import State
from forge.runner.live.observer import Seen
from forge.runner.stages.desk import TrainerState
from forge.serve.remote.remote import Remote
from forge.serve.replicas import Replicas
from forge.serve.upload.sending import RemoteReplicas

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from forge.config.schema import Experiment
    from forge.evalpool.pool import Pool
    from forge.evalpool.seating import Seat
    from forge.process.control import Role
    from forge.runner.live.progress import Progress
    from forge.runner.stages.desk import TrainerDesk
    from forge.serve.remote.remote import RemoteServer
    from forge.serve.replica import Replica

FULL = 0.9
"""Share of a memory above which the next long sample or large batch may not fit."""
MODEL_MAKER = "init-model"
"""The child of `prepare` that makes a tiny model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Length and bound of the queue in front of a component."""

    length: int
    bound: int
    what: str = "queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """Fill level of a memory that a component may exhaust."""

    share: float
    """0..1"""
    of: str
    """Name of the memory: `80 GB`, `the KV cache`."""


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
    queue: Queue | None = None
    fills: tuple[Fill, ...] = ()
    fills_cards: bool = False
    """True if it allocates GPU memory while it works, and may run out of it."""
    seen: Seen | None = None
    address: str = ""
    """URL of a remote component."""
    num_judged: int | None = None
    """Verdicts of a judge so far."""

    @property
    def node(self) -> str:
        """Name and address of its machine; empty for this one."""
        return self.seen.node if self.seen is not None else ""

    @property
    def uuids(self) -> list[str]:
        """Cards of its process on this machine."""
        if self.seen is None or self.seen.node or self.seen.devices == "cpu":
            return []
        return [part.strip() for part in self.seen.devices.split(",") if part.strip()]

    @property
    def living(self) -> Seen | None:
        """Its process, unless it has ended or is another machine's."""
        if self.seen is None or self.seen.node or self.seen.ended_at is not None:
            return None
        return self.seen


def observe_supervisor(
    progress: Progress, *, pid: int, log_path: Path, queue: Queue | None
) -> Component:
    """The supervisor itself."""
    return Component(
        name="supervisor",
        role="supervisor",
        owner=progress,
        phase=progress.label,
        marks=(progress.label, progress.done, progress.tokens.total, progress.judged.total),
        queue=queue,
        seen=Seen(pid=pid, devices="cpu", log_path=log_path, started_at=progress.started_at),
    )


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
    elif isinstance(served, Remote | RemoteReplicas):
        for server in served.all:
            yield _observe_server(server, limit_s)


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
    engine = health.get("engine", "")
    fills = ()
    # A full KV cache is a problem only while samples wait for room in it.
    if engine == "vllm" and health.get("waiting", 0) and health.get("kv_use", 0.0) > FULL:
        fills = (Fill(share=health["kv_use"], of="the KV cache"),)
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
        fills=fills,
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


def _observe_server(server: RemoteServer, limit_s: float) -> Component:
    return Component(
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


def observe_judges(
    pool: Pool | None, experiment: Experiment, *, seen: Mapping[str, Seen]
) -> Iterator[Component]:
    """All judges. Those that start before the pool exists are known by their processes."""
    if pool is None:
        yield from _observe_starting("judge", seen)
        return
    seats = pool.seating.seats
    num_pending = pool.seating.num_waiting + sum(seat.num_running for seat in seats)
    queue = Queue(length=min(num_pending, MAX_QUEUED), bound=MAX_QUEUED)
    for seat in seats:
        yield _observe_seat(seat, experiment, queue, seen.get(seat.name))


def _observe_seat(seat: Seat, experiment: Experiment, queue: Queue, seen: Seen | None) -> Component:
    return Component(
        name=seat.name,
        role="judge",
        owner="judges",
        phase=_seat_phase(seat),
        is_gone=seat.state is State.DOWN,
        num_restarts=max(0, seen.num_starts - 1) if seen else 0,
        marks=(seat.num_taken - seat.num_running,),
        num_judged=seat.num_taken - seat.num_running,
        is_asked=seat.num_running > 0,
        limit_s=request_timeout_s(experiment.judge, is_timed=seat.is_timed),
        failure=f"quarantined: {seat.why}" if seat.state is State.QUARANTINED else "",
        queue=queue,
        fills_cards=True,
        seen=seen,
        # `pool-1` is the second entry of `judge.url`.
        address=experiment.judge.url[int(seat.name.rpartition("-")[2])] if seat.is_remote else "",
    )


def _seat_phase(seat: Seat) -> str:
    if seat.state is State.UP and seat.num_running:
        return f"judging {seat.num_running} of {seat.capacity}"
    return {
        State.UP: "idle",
        State.DOWN: "restarting",
        State.QUARANTINED: "quarantined",
    }[seat.state]
