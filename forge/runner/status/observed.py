"""How each component of a run looks at this moment, read off the objects that own it.

Called by `components.py` in the event loop once a second: attributes are read and nothing is asked,
so it costs microseconds a component.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from forge.evalpool.pool import MAX_QUEUED, request_timeout_s
from forge.evalpool.seating import State
from forge.runner.live.observer import Seen
from forge.runner.status.health import FULL, Fill, Queue
from forge.serve.remote.remote import Remote
from forge.serve.replicas import Replicas

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from forge.config.schema import Experiment
    from forge.control.records import Role
    from forge.evalpool.pool import Pool
    from forge.evalpool.seating import Seat
    from forge.runner.live.progress import Progress
    from forge.runner.stages.trainer_desk import TrainerDesk
    from forge.serve.remote.remote import RemoteServer
    from forge.serve.replica import Replica

MODEL_MAKER = "init-model"
"""The child of prepare that makes a tiny model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """One component now."""

    name: str
    role: Role
    owner: object
    """What it is read off: another one is another component of the same name, with no past."""
    phase: str
    is_gone: bool = False
    """No process answers: it is being started."""
    num_restarts: int = 0
    marks: tuple[object, ...] = ()
    """They change when it gets on."""
    is_asked: bool = False
    """Something waits for it."""
    limit_s: float | None = None
    """How long it may be silent while it is asked."""
    silent_s: float | None = None
    """Where that is known without looking at the marks."""
    failure: str = ""
    queue: Queue | None = None
    fills: tuple[Fill, ...] = ()
    fills_cards: bool = False
    """Takes memory of its cards as it goes, and may find them full."""
    seen: Seen | None = None
    address: str = ""
    """Of one that is not ours."""


def see_supervisor(progress: Progress, *, pid: int, log_path: Path, queue: Queue | None) -> Sight:
    """Us."""
    seen = Seen(pid=pid, devices="cpu", log_path=log_path, started_at=progress.started_at)
    return Sight(
        name="supervisor",
        role="supervisor",
        owner=progress,
        phase=progress.label,
        marks=(progress.label, progress.done, progress.tokens.total, progress.judged.total),
        queue=queue,
        seen=seen,
    )


def see_trainer(
    desk: TrainerDesk | None, seen: Mapping[str, Seen], experiment: Experiment, *, now: float
) -> Iterator[Sight]:
    """The trainer of the stage that runs, if one does; and who makes the model before."""
    maker = seen.get(MODEL_MAKER)
    if maker is not None and maker.ended_at is None:
        yield Sight(
            name=MODEL_MAKER, role="trainer", owner=maker, phase="making the model", seen=maker
        )
    if desk is None:
        return
    child = seen.get("trainer")
    is_gone = desk.is_starting or child is None or child.ended_at is not None
    stage = experiment.stage[desk.stage]
    yield Sight(
        name="trainer",
        role="trainer",
        owner=desk,
        phase=_trainer_phase(desk, is_gone=is_gone),
        is_gone=is_gone,
        num_restarts=desk.num_restarts,
        marks=(desk.trained_step, desk.is_training, desk.is_publishing),
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
    if desk.is_training:
        return f"step {desk.trained_step + 1}"
    if desk.is_publishing:
        return "publishing"
    if desk.is_taking:
        return "held for an evaluation" if desk.is_held else "waiting for a batch"
    return "training"


def see_serving(
    served: object, experiment: Experiment, *, seen: Mapping[str, Seen]
) -> Iterator[Sight]:
    """Engines of ours, or servers behind URLs. Those that start before anybody has them are known
    by their processes."""
    limit_s = experiment.serve.request_timeout_s
    if served is None:
        yield from _see_starting("serve", seen)
    if isinstance(served, Replicas):
        for replica in served.all:
            yield _see_replica(replica, experiment, limit_s, seen.get(replica.name))
    elif isinstance(served, Remote):
        for server in served.servers:
            yield _see_server(server, limit_s)


def _see_starting(role: Role, seen: Mapping[str, Seen]) -> Iterator[Sight]:
    for name, child in seen.items():
        if name.startswith(f"{role}-") and child.ended_at is None:
            yield Sight(
                name=name, role=role, owner="starting", phase="starting", is_gone=True, seen=child
            )


def _see_replica(
    replica: Replica, experiment: Experiment, limit_s: float, seen: Seen | None
) -> Sight:
    told = replica.health
    engine = told.get("engine", "")
    return Sight(
        name=replica.name,
        role="serve",
        owner=replica,
        phase=_replica_phase(replica, slots=experiment.serve.slots),
        is_gone=not told,
        num_restarts=replica.num_deaths,
        marks=(replica.generated_tokens, told.get("generated_tokens"), told.get("step_s")),
        is_asked=replica.load > 0 and replica.is_up,
        limit_s=limit_s,
        fills=_kv_fill(told) if engine == "vllm" else (),
        fills_cards=engine == "hf",  # the others take their share when they start
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


def _kv_fill(told: Mapping[str, float]) -> tuple[Fill, ...]:
    """A full cache is a fault only where samples wait for room in it."""
    if told.get("waiting", 0) and told.get("kv_use", 0.0) > FULL:
        return (Fill(share=told["kv_use"], of="the KV cache"),)
    return ()


def _see_server(server: RemoteServer, limit_s: float) -> Sight:
    return Sight(
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


def see_judges(
    pool: Pool | None, experiment: Experiment, *, seen: Mapping[str, Seen]
) -> Iterator[Sight]:
    """All seats; those that start before there is a pool are known by their processes."""
    if pool is None:
        yield from _see_starting("judge", seen)
        return
    seats = pool.seating.seats
    in_line = pool.seating.num_waiting + sum(seat.num_running for seat in seats)
    queue = Queue(length=min(in_line, MAX_QUEUED), bound=MAX_QUEUED)
    for seat in seats:
        yield _see_seat(seat, experiment, queue, seen.get(seat.name))


def _see_seat(seat: Seat, experiment: Experiment, queue: Queue, seen: Seen | None) -> Sight:
    is_timed = seat.is_remote or any(kind.device != "cpu" for kind in seat.kinds)
    return Sight(
        name=seat.name,
        role="judge",
        owner="judges",
        phase=_seat_phase(seat),
        is_gone=seat.state is State.DOWN,
        num_restarts=max(0, seen.num_starts - 1) if seen else 0,
        marks=(seat.num_taken - seat.num_running,),
        is_asked=seat.num_running > 0,
        limit_s=request_timeout_s(experiment.judge, is_timed=is_timed),
        failure=f"quarantined: {seat.why}" if seat.state is State.QUARANTINED else "",
        queue=queue,
        fills_cards=True,
        seen=seen,
        address=_url(seat, experiment),
    )


def _url(seat: Seat, experiment: Experiment) -> str:
    """`pool-1` is the second of `judge.url`."""
    if not seat.is_remote:
        return ""
    return experiment.judge.url[int(seat.name.rpartition("-")[2])]


def _seat_phase(seat: Seat) -> str:
    if seat.state is State.UP and seat.num_running:
        return f"judging {seat.num_running} of {seat.capacity}"
    return {
        State.UP: "judging a canary" if seat.is_doubted else "idle",
        State.SUSPECT: "judging a canary",
        State.DOWN: "restarting",
        State.QUARANTINED: "quarantined",
    }[seat.state]
