"""Status of each process of a run, read from the real objects that own them: phase, health and the
figure that decides.
"""

import math
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import httpx
import pytest

from forge.commands.status import render
from forge.config.load import load_experiment
from forge.evalpool.pool import MAX_QUEUED, Pool
from forge.evalpool.seating import JudgeKind, Seat, Seating, State
from forge.process.child import ChildSpec
from forge.process.control import ComponentStatus, LiveStatus
from forge.process.devices import Gpu
from forge.process.machine import HostMemory
from forge.runner import status as components_module
from forge.runner.live.progress import Progress
from forge.runner.live.stopping import StoreObserver
from forge.runner.stages.desk import TrainerDesk, TrainerState
from forge.runner.status import (
    LAST_BYTES,
    Card,
    Components,
    LastLogLines,
    Vitals,
    VitalsSampler,
    observe_judges,
)
from forge.serve.remote import Dialect, Remote, RemoteServer
from forge.serve.replicas import Replicas
from forge.serve.weights import Weights
from tests.gpus import make_gpu
from tests.runner.stages.desks import make_desk
from tests.views.terminals import shown

EXPERIMENT = """\
name = "x"
[model]
init = "tiny"
[serve]
request_timeout_s = 30
[[stage]]
kind = "sft"
steps = 9
learning_rate = 1e-4
[[stage]]
kind = "grpo"
steps = 9
learning_rate = 1e-4
step_timeout_s = 100
"""
GB = 10**9


class Sink:
    async def put(self, *records: Any) -> None:
        pass


class Watched:
    """Components of a run with a clock that the test sets."""

    def __init__(self, folder: Path, *, gpus: tuple[Gpu, ...] = ()) -> None:
        (folder / "x.toml").write_text(EXPERIMENT)
        self.folder, self.now = folder, 1000.0
        self.observer = StoreObserver(Sink(), 1)
        self.progress = Progress(run="x-1", num_stages=1)
        self.backlog: tuple[int, int] = (0, 1024)
        self.run: Any = SimpleNamespace(
            experiment=load_experiment(folder / "x.toml"),
            progress=self.progress,
            desk=None,
            pool=None,
            replicas=None,
            ending=(),
            observer=self.observer,
            writer=self,
            placement=SimpleNamespace(gpus=gpus),
        )
        self.components = Components(run=self.run, log_path=folder / "supervisor.log")

    def start(self, name: str, *, pid: int = 7, devices: str = "cpu") -> None:
        log = self.folder / f"{name}.log"
        self.observer.started(name, pid=pid, devices=devices, log_path=log)

    def look(self, *, after_s: float = 1.0, **vitals: Any) -> dict[str, ComponentStatus]:
        """One look, as every second; statuses by name."""
        self.now += after_s
        if vitals:
            self.components._vitals = Vitals(**vitals)
        components = self.components._observe(self.now)
        found = self.components._statuses(components, now=self.now)
        return {each.name: each for each in found}


@pytest.fixture
async def watched(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Watched]:
    made = Watched(tmp_path, gpus=getattr(request, "param", ()))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.observer.drain)
        await anyio.wait_all_tasks_blocked()
        yield made
        tasks.cancel_scope.cancel()


def desk_of(watched: Watched) -> TrainerDesk:
    desk = make_desk(watched.folder, stage=1, last_step=9)
    desk.last_heard = watched.now
    watched.run.desk = desk
    return desk


def pool_of(watched: Watched, *seats: Seat) -> Pool:
    pool = watched.run.pool = Pool(watched.run.experiment.judge, Seating(seats))
    return pool


def replicas_of(watched: Watched) -> Replicas:
    spec = ChildSpec(
        name="serve-0", argv=("x",), log_path=watched.folder / "serve-0.log", env={},
        socket_path=watched.folder / "serve-0.sock", config={},
    )  # fmt: skip
    made = Replicas(
        [spec], table=watched.run.experiment.serve, weights=Weights(full=watched.folder),
        stop_token_ids=(1,),
    )  # fmt: skip
    watched.run.replicas = made
    return made


async def test_the_supervisor_has_a_status_from_the_beginning(watched: Watched) -> None:
    watched.progress.label = "prepare: pairs"
    (found,) = watched.look().values()
    assert (found.name, found.role, found.device, found.phase, found.health) == (
        "supervisor", "supervisor", "cpu", "prepare: pairs", "green",
    )  # fmt: skip
    watched.backlog = (1024, 1024)
    memory = HostMemory(used_bytes=95, total_bytes=100)
    assert watched.look(memory=memory)["supervisor"].why == "records for the store 1024 of 1024"
    watched.backlog = (0, 1024)
    memory = HostMemory(used_bytes=93 * GB, total_bytes=100 * GB)
    assert watched.look(memory=memory)["supervisor"].why == "memory 93 % of 100 GB"
    for late_s, health in ((1.25, "yellow"), (6.0, "red")):
        watched.components._late = late_s, watched.now
        found = watched.look()["supervisor"]
        assert (found.health, found.why) == (health, f"loop late by {late_s:.1f} s")


async def test_a_trainer_has_a_status_from_start_to_restart(watched: Watched) -> None:
    desk = desk_of(watched)
    desk.trainer_starts()
    assert (watched.look()["trainer"].phase, watched.look()["trainer"].health) == (
        "starting", "green",
    )  # fmt: skip
    watched.start("trainer", pid=11)
    desk.state = TrainerState.TRAINING
    desk.last_heard = watched.now
    found = watched.look(resident={11: 5 * GB})["trainer"]
    assert (found.phase, found.health, found.memory_bytes) == ("step 1", "green", 5 * GB)
    desk.last_heard = watched.now - 101
    assert watched.look()["trainer"].why == "silent 102 s of 100 s"
    desk.last_heard = math.inf  # its publish has the word
    assert watched.look()["trainer"].health == "green"

    watched.observer.ended("trainer", pid=11, reason="killed by signal 9")
    desk.trainer_ended()
    desk.num_restarts += 1
    desk.trainer_starts()
    desk.last_heard = watched.now
    found = watched.look()["trainer"]
    assert (found.phase, found.health, found.why, found.num_restarts, found.memory_bytes) == (
        "restarting", "red", "recovering: killed by signal 9", 1, None,
    )  # fmt: skip
    watched.start("trainer", pid=12)
    assert watched.look()["trainer"].why == "recovering: killed by signal 9", "it has begun only"
    desk._end_step(3, {}, only_from=TrainerState.STARTING)
    found = watched.look()["trainer"]
    assert (found.health, found.why) == ("yellow", "restarted 0 s ago")
    desk.last_heard = watched.now + 20
    assert watched.look(after_s=20)["trainer"].why == "restarted 20 s ago"
    desk.last_heard = watched.now + 120
    assert watched.look(after_s=120)["trainer"].health == "green"
    assert watched.look()["trainer"].progress_age_s == 141

    watched.run.desk = None
    assert "trainer" not in watched.look(), "of no stage"
    desk_of(watched).trainer_starts()
    assert watched.look()["trainer"].health == "green", "of another stage: a start is no recovery"


async def test_the_status_of_a_judge_follows_its_seat(watched: Watched) -> None:
    watched.start("judge-0", pid=21)
    assert (watched.look()["judge-0"].phase, watched.look()["judge-0"].health) == (
        "starting", "green",
    )  # fmt: skip
    kind = JudgeKind(device="cpu", isolation="x", harness="y")
    seat, other = Seat("judge-0", state=State.UP, kinds=(kind,)), Seat("judge-1", state=State.UP)
    pool = pool_of(watched, seat, other)
    assert watched.look()["judge-0"].phase == "idle"
    seat.num_running, seat.num_taken = 1, 4
    assert (watched.look()["judge-0"].phase, watched.look()["judge-0"].progress_age_s) == (
        "judging 1 of 1", 1.0,
    )  # fmt: skip
    pool.seating._waiters.extend([None] * 300)  # pyright: ignore[reportArgumentType]
    assert watched.look()["judge-0"].why == f"queue {MAX_QUEUED} of {MAX_QUEUED}"
    pool.seating._waiters.clear()
    assert watched.look(after_s=1000)["judge-0"].why == "silent 1002 s of 200 s"
    seat.num_taken, seat.num_running = 5, 1
    assert watched.look()["judge-0"].health == "green", "it has answered one"

    seat.state = State.DOWN
    watched.observer.ended("judge-0", pid=21, reason="exit 1")
    assert watched.look()["judge-0"].why == "recovering: exit 1"
    watched.start("judge-0", pid=22)
    seat.state = State.UP
    found = watched.look()["judge-0"]
    assert (found.why, found.num_restarts) == ("restarted 0 s ago", 1)
    other.state, other.why = State.QUARANTINED, "gpu_fault"
    assert watched.look()["judge-1"].why == "quarantined: gpu_fault"


async def test_the_status_of_a_replica_follows_its_health(watched: Watched) -> None:
    watched.start("serve-0", pid=31)
    assert watched.look()["serve-0"].phase == "starting", "no run uses it yet"
    (replica,) = replicas_of(watched).all
    assert (watched.look()["serve-0"].phase, watched.look()["serve-0"].health) == (
        "starting", "green",
    )  # fmt: skip
    replica.health = {"engine": "vllm", "is_asleep": False, "kv_use": 0.95, "waiting": 0}
    assert watched.look()["serve-0"].phase == "loading weights"
    replica.health["is_asleep"] = True
    assert (watched.look()["serve-0"].phase, watched.look()["serve-0"].health) == (
        "asleep", "green",
    )  # fmt: skip
    replica.health |= {"is_asleep": False, "waiting": 3}
    assert watched.look()["serve-0"].why == "memory 95 % of the KV cache"
    replica.health, replica.num_deaths = {}, 1
    watched.observer.ended("serve-0", pid=31, reason="killed by signal 11")
    found = watched.look()["serve-0"]
    assert (found.phase, found.why) == ("restarting", "recovering: killed by signal 11")

    (fresh,) = replicas_of(watched).all
    watched.start("serve-0", pid=32)
    assert not fresh.health
    assert watched.look()["serve-0"].health == "green", "opened anew, as after an sft stage"


async def test_remote_servers_and_pools_show_their_urls(watched: Watched) -> None:
    client: Any = SimpleNamespace(url="http://there/v1", is_up=True)
    table = watched.run.experiment.serve
    chat: Any = None
    server = RemoteServer(client, Dialect.CHAT, "", chat=chat)
    remote = Remote([server], table=table, stop_token_ids=(1,))
    watched.run.replicas = remote
    judge = watched.run.experiment.judge.model_copy(update={"url": ["http://j:1"]})
    watched.run.experiment = watched.run.experiment.model_copy(update={"judge": judge})
    pool_of(watched, Seat("pool-0", is_remote=True, state=State.UP))
    found = watched.look()
    assert found["http://there/v1"].device == "http://there/v1"
    assert (found["pool-0"].device, found["pool-0"].memory_bytes) == ("http://j:1", None)
    client.is_up = False
    assert watched.look()["http://there/v1"].why == "recovering: it does not answer"


@pytest.mark.parametrize("watched", [(make_gpu(0), make_gpu(3))], indirect=True)
async def test_gpu_memory_is_attributed_by_process_if_the_driver_names_it(watched: Watched) -> None:
    desk_of(watched)
    watched.start("trainer", pid=11, devices="GPU-3")
    watched.start("judge-0", pid=21, devices="GPU-3, GPU-0")
    pool_of(watched, Seat("judge-0", state=State.UP))
    full: dict[str, Any] = {"total_bytes": 80 * GB, "used_bytes": 76 * GB}
    trees = {11: frozenset({11, 12}), 21: frozenset({21})}
    named = Card(**full, use=0.5, by_pid={12: 30 * GB, 21: 40 * GB})
    seen: dict[str, Any] = {"trees": trees}
    found = watched.look(**seen, cards={"GPU-3": named})
    assert found["trainer"].device == "GPU 3"
    assert found["judge-0"].device == "GPU 3,0"
    assert (found["trainer"].gpu_memory_bytes, found["trainer"].gpu_use) == (30 * GB, 0.5)
    assert found["judge-0"].gpu_memory_bytes == 40 * GB
    assert found["trainer"].why == "memory 95 % of 80 GB"
    assert (found["supervisor"].gpu_memory_bytes, found["supervisor"].gpu_use) == (None, None)
    # In a container: card 0 has a single user, the memory of card 3 cannot be attributed.
    unnamed = Card(**full, use=None)
    found = watched.look(**seen, cards={"GPU-0": unnamed, "GPU-3": unnamed})
    assert found["judge-0"].gpu_memory_bytes == 76 * GB
    assert (found["trainer"].gpu_memory_bytes, found["trainer"].gpu_use) == (None, None)


async def test_a_status_has_vitals_and_survives_json(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(components_module, "LOOK_EVERY_S", 0.01)
    stamp = "2026-11-26 08:24:19,423 forge.process.child INFO "
    (watched.folder / "supervisor.log").write_text(f"{stamp}it began\n")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watched.components.watch)
        with anyio.fail_after(5):
            while not watched.components.latest:  # noqa: ASYNC110 - a look sets no event
                await anyio.sleep(0.005)
        tasks.cancel_scope.cancel()
    sent = watched.progress.snapshot() | watched.components.to_json()
    (found,) = LiveStatus.from_json(sent).components
    assert found == watched.components.latest[0]
    assert (found.last_words, found.health) == ("it began", "green")
    assert found.memory_bytes is not None
    assert found.memory_bytes > 1 << 20


def test_the_status_table_shows_reasons_and_is_readable_without_colour() -> None:
    one = ComponentStatus(
        name="trainer", role="trainer", device="GPU 3", phase="step 4", health="yellow",
        why="memory 95 % of 80 GB", memory_bytes=5 * GB, gpu_memory_bytes=76 * GB, gpu_use=0.5,
        progress_age_s=3.0, num_restarts=1, last_words="[bold]hello[/]" + 40 * " and on",
    )  # fmt: skip
    other = replace(one, name="judge-0", health="green", why="", gpu_use=None, memory_bytes=None)
    lines = shown(render([one, other]), width=100).splitlines()
    first, second = (" ".join(line.split()) for line in lines[1:])
    assert first == "▲ trainer GPU 3 step 4 5.0 GB 50% 76.0 GB 3 s 1 memory 95 % of 80 GB"
    begin = "● judge-0 GPU 3 step 4 – – 76.0 GB 3 s 1 [bold]hello[/] and on and"
    assert second.startswith(begin), "the last column alone gives way"
    assert [len(line) for line in lines] == [100] * 3


async def test_a_judge_on_a_node_shows_the_node_and_nothing_of_our_own_pids(
    watched: Watched,
) -> None:
    seat = Seat("judge-0", capacity=2)
    pool_of(watched, seat)
    seat.num_taken, seat.num_running = 5, 1
    watched.observer.started(
        "judge-0", pid=7, devices="GPU-1a2b3c4d-5e6f", log_path=watched.folder / "judge-0.log",
        node="gpu-7 10.0.0.7",
    )  # fmt: skip
    status = watched.look(resident={7: 99})["judge-0"]
    assert (status.node, status.device) == ("gpu-7 10.0.0.7", "gpu-7 10.0.0.7: GPU-1a2b3c4d")
    assert (status.memory_bytes, status.gpu_memory_bytes, status.num_judged) == (None, None, 4)
    assert ComponentStatus.from_json(asdict(status)) == status


QUICKSTART = load_experiment(Path(__file__).parents[3] / "experiments" / "quickstart.toml")


async def test_a_judge_is_idle_without_a_candidate() -> None:
    seats = Seating([Seat("judge-0", capacity=4)])
    pool = Pool(QUICKSTART.judge, seats)

    def phase() -> str:
        (seen,) = observe_judges(pool, QUICKSTART, seen={})
        return seen.phase

    seats.judge_opened(seats.seats[0], httpx.AsyncClient())
    assert phase() == "idle"
    seat = await seats.take()
    assert phase() == "judging 1 of 4"
    seats.give_back(seat)
    assert phase() == "idle"


async def test_a_judge_closed_at_the_end_has_not_failed(watched: Watched) -> None:
    watched.start("judge-0", pid=21)
    seat = Seat("judge-0", state=State.UP)
    pool_of(watched, seat)
    assert watched.look()["judge-0"].phase == "idle"
    watched.run.ending = ("judge",)
    seat.state = State.DOWN
    found = watched.look()["judge-0"]
    assert (found.phase, found.health, found.why) == ("ending", "green", "")


HOLDS = "import subprocess, sys; b = bytearray({size}); print(1, flush=True); {then}; input()"
"""A process that holds so many bytes, and runs more code."""


def test_a_process_counts_with_its_descendants_and_the_supervisor_without() -> None:
    size = 40 << 20
    inner = HOLDS.format(size=size, then="None")
    outer = HOLDS.format(
        size=size,
        then=f"p = subprocess.Popen([sys.executable, '-c', {inner!r}], stdout=subprocess.PIPE);"
        " p.stdout.readline(); print(2, flush=True)",
    )
    with subprocess.Popen(
        [sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout.readline() + child.stdout.readline() == b"1\n2\n"
        found = VitalsSampler().sample(
            [child.pid, 1 << 30], alone=[os.getpid()], uuids=["GPU-none"]
        )
        child.communicate(b"\n\n")
    assert len(found.trees[child.pid]) == 2
    assert 2 * size < found.resident[child.pid] < 6 * size
    assert found.trees[os.getpid()] == {os.getpid()}
    assert found.resident[os.getpid()] > 1 << 20
    assert 1 << 30 not in found.resident, "there is no such process"
    assert found.cards == {}


def test_the_cores_of_a_process_are_its_cpu_time_between_two_samples() -> None:
    sampler = VitalsSampler()
    assert sampler.sample([], alone=[os.getpid()], uuids=[]).cpu_cores == {}
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    cores = sampler.sample([], alone=[os.getpid()], uuids=[]).cpu_cores[os.getpid()]
    assert 0.0 < cores < 8.0


class Nvml:
    """Two cards: one names a process, one (as in a container) does not report its use."""

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid == "GPU-9":
            raise self.NVMLError
        return uuid

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(used=72, total=80)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        return [
            SimpleNamespace(pid=7, usedGpuMemory=64),
            SimpleNamespace(pid=8, usedGpuMemory=None),
        ]

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        if handle == "GPU-1":
            raise self.NVMLError
        return SimpleNamespace(gpu=55)


def test_a_card_has_the_figures_that_its_driver_reports() -> None:
    sampler = VitalsSampler()
    sampler._nvml = Nvml()
    cards = sampler.sample([], alone=[], uuids=["GPU-0", "GPU-1", "GPU-9"]).cards
    assert list(cards) == ["GPU-0", "GPU-1"]
    assert (cards["GPU-0"].used_bytes, cards["GPU-0"].total_bytes) == (72, 80)
    assert (cards["GPU-0"].use, cards["GPU-1"].use) == (0.55, None)
    assert cards["GPU-0"].by_pid == {7: 64}


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("one\ntwo\n", "two"),
        ("one\ntwo", "two"),
        ("one\n\n  \n", "one"),
        ("10%\r50%\r100%\n", "100%"),
        ("\x1b[31mred\x1b[0m [bold]\n", "␛[31mred␛[0m [bold]"),
        ("a" * 10_000 + "end", "a" * (LAST_BYTES - 3) + "end"),
        ("", ""),
    ],
)
def test_the_last_line_of_a_log_is_printable(tmp_path: Path, written: str, shown: str) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(written.encode())
    assert LastLogLines().read([log, tmp_path / "none.log"]) == {
        log: shown,
        tmp_path / "none.log": "",
    }
