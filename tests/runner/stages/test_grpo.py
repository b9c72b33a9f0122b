"""A grpo stage: its plan, its ports, what it resumes from, and engines that sleep during training:
asleep with every batch, awake for every publish.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from forge.config.schema import Experiment
from forge.records import Finish, Group, Status
from forge.rollout.ports import Ports
from forge.rollout.sampling import make_sampler
from forge.runner.stages import desk as desk_module
from forge.runner.stages import grpo
from forge.runner.stages.desk import TrainerDesk, TrainerState
from forge.runner.weights.resume import StartingWeights
from forge.runner.weights.sync import TurnGate, WeightSync
from forge.serve.port import PREFIX_CACHE
from forge.serve.weights import Weights
from forge.store.layout import RunPaths
from tests.rollout.fakes import batch_plan
from tests.runner.stages.desks import batch, make_desk
from tests.store.storefactory import attempt, group, problem, write_run

STAGE = {"kind": "grpo", "steps": 9, "learning_rate": 1e-5}


def experiment(**tables: Any) -> Experiment:
    base: dict[str, Any] = {"name": "x", "model": {"path": "m"}, "stage": [STAGE]}
    return Experiment.model_validate({**base, **tables})


def run_of(found: Experiment, *, features: frozenset[str] = frozenset()) -> Any:
    gate = TurnGate(timeout_s=1)
    begin = StartingWeights(weights=Weights(full=Path("w")), last_version=4)
    sink: Any = None
    seats = [SimpleNamespace(capacity=2), SimpleNamespace(capacity=1)]
    return SimpleNamespace(
        experiment=found,
        weights=WeightSync(begin, attempt=1, precision="exact", gate=gate, sink=sink),
        replicas=SimpleNamespace(features=features, load=lambda: "load"),
        pool=SimpleNamespace(seating=SimpleNamespace(seats=seats)),
        ports=lambda: Ports(generate=sink, judge=sink, sink=sink, prompter=sink),
    )


@pytest.mark.parametrize(("rollout", "in_flight"), [({}, None), ({"groups_in_flight": 3}, 3)])
def test_groups_in_flight_are_configured_or_as_many_as_can_be_handled(
    rollout: dict[str, Any], in_flight: int | None
) -> None:
    found = experiment(rollout=rollout)
    stage: Any = found.stage[0]
    plan = grpo._batch_plan(run_of(found), stage, 0, first_step=1)
    assert plan.in_flight == in_flight
    assert plan.judge_capacity == 3


@pytest.mark.parametrize("is_apart", [True, False])
def test_rollouts_of_a_group_ask_separately_if_the_engine_caches_prefixes(is_apart: bool) -> None:
    features = frozenset({PREFIX_CACHE} if is_apart else ())
    use = grpo._training_ports(run_of(experiment(), features=features))
    assert use.is_apart is is_apart
    assert use.load() == "load"


def test_versions_of_earlier_attempts_and_stages_have_a_step(tmp_path: Path) -> None:
    run = run_of(experiment())
    desk = make_desk(tmp_path, stage=0, last_step=9)
    desk.steps[3] = 2
    path = tmp_path / "w"
    path.mkdir()
    run.weights._sink = SimpleNamespace(put=_nothing, flush=_nothing)
    anyio.run(lambda: run.weights.publish(path, stage=0, step=7, probe=None, keep=True))
    assert [grpo._step_of(run, desk, version) for version in (1, 3, 5)] == [0, 2, 7]


async def _nothing(*args: object) -> None: ...


def test_a_resumed_stage_uses_the_finished_groups_that_no_batch_has(tmp_path: Path) -> None:
    """Group 1 is offered, 2 waited, 3 ended later, and a fourth problem was in flight; 5 was too
    old, and 6 has no turn that may be trained."""
    root = tmp_path / "toy-1"
    rows = [[Status.WRONG], [Status.CORRECT]]
    groups = [group(number, rows, version=7) for number in (1, 2, 3)]
    groups += [group(5, rows, version=6), truncated(group(6, rows, version=7))]
    anyio.run(write_run, root, [attempt(), *(problem(n) for n in range(4)), *groups])
    steps = {6: 3, 7: 4}
    problems = [problem(n) for n in range(4)]
    names = [each.problem_id for each in problems]
    sampler = make_sampler("uniform", problems, seed=0)
    sampler.next()
    waiting = [{"group": 2, "problem": groups[1].problem_id}]
    state = {"sampler": sampler.state(), "waiting": waiting, "problems": [names[3]]}
    shelf: Any = SimpleNamespace(groups=lambda: {1}, last_state=state)
    again = make_sampler("uniform", problems, seed=0)
    run = run_of(experiment())
    run.paths = RunPaths(root)
    plan = batch_plan(stage=1, first_step=6, max_staleness=1, train_truncated=False)
    past = grpo.recall_groups(run, shelf, again, problems, plan, steps.__getitem__)
    assert [g.group_id for g in past.waiting] == [2]
    assert [g.group_id for g in past.ended] == [3]
    assert [p.problem_id for p in past.problems] == [names[3]]
    assert again.state() == sampler.state()


def truncated(found: Group) -> Group:
    """The group with every turn cut off by the token limit."""
    return replace(
        found,
        trajectories=tuple(
            replace(
                each,
                turns=tuple(
                    replace(turn, completion=replace(turn.completion, finish=Finish.LENGTH))
                    for turn in each.turns
                ),
            )
            for each in found.trajectories
        ),
    )


class Engines:
    def __init__(self) -> None:
        self.is_asleep = False
        self.slept = 0
        self.may_sleep = anyio.Event()
        self.may_sleep.set()

    async def sleep(self) -> None:
        await self.may_sleep.wait()
        self.is_asleep = True
        self.slept += 1

    async def wake(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.is_asleep = False


@asynccontextmanager
async def sleeping(
    desk: TrainerDesk, engines: Any, gate: TurnGate | None = None
) -> AsyncIterator[None]:
    gate = gate or TurnGate(timeout_s=5)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(grpo.alternate_with_training, engines, desk, gate)
            await anyio.wait_all_tasks_blocked()
            yield
            tasks.cancel_scope.cancel()


async def test_engines_sleep_with_a_batch_and_are_awake_between_steps(tmp_path: Path) -> None:
    desk, engines = make_desk(tmp_path), Engines()
    async with sleeping(desk, engines):
        for step in (1, 2):
            assert not engines.is_asleep, "turns run until there is a batch"
            await desk.offer(batch(step))
            assert (await desk.take(step - 1))["step"] == step
            assert engines.is_asleep
            await desk.trained(step, {})
            await desk.wait_until_awake()
            assert not engines.is_asleep, "a publish finds them awake"
    assert engines.slept == 2


async def test_a_batch_is_held_back_until_slow_engines_are_asleep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk_module, "TAKE_WAIT_S", 0.01)
    desk, engines = make_desk(tmp_path), Engines()
    engines.may_sleep = anyio.Event()
    async with sleeping(desk, engines):
        await desk.offer(batch(1))
        assert await desk.take(0) == {"kind": "wait"}
        engines.may_sleep.set()
        await anyio.wait_all_tasks_blocked()
        assert (await desk.take(0))["kind"] == "batch"


async def test_engines_wake_for_the_publish_after_a_trainer_died_before_it_got_its_batch(
    tmp_path: Path,
) -> None:
    desk, engines = make_desk(tmp_path), Engines()
    engines.may_sleep = anyio.Event()
    async with sleeping(desk, engines), anyio.create_task_group() as dead:
        await desk.offer(batch(1))
        dead.start_soon(desk.take, 0)
        await anyio.wait_all_tasks_blocked()
        desk.trainer_ended()
        engines.may_sleep.set()
        await anyio.wait_all_tasks_blocked()
        assert desk.state is TrainerState.GONE, "nobody has the batch"
        with desk.publishing():
            await desk.wait_until_awake()
            assert not engines.is_asleep


async def test_engines_do_not_fall_asleep_during_a_publish_of_a_dead_trainer(
    tmp_path: Path,
) -> None:
    desk, engines = make_desk(tmp_path), Engines()
    async with sleeping(desk, engines), anyio.create_task_group() as tasks:
        with desk.publishing():
            await desk.offer(batch(1))
            tasks.start_soon(desk.take, 0)
            await anyio.wait_all_tasks_blocked()
            assert engines.slept == 0
        await anyio.wait_all_tasks_blocked()
        assert engines.slept == 1


async def test_a_turn_that_waited_for_sleeping_engines_begins_after_the_publish(
    tmp_path: Path,
) -> None:
    desk, engines, gate = make_desk(tmp_path), Engines(), TurnGate(timeout_s=5)
    order: list[str] = []

    async def play() -> None:
        async with gate.turn():
            order.append("turn")
            await anyio.sleep(0.01)

    async with sleeping(desk, engines, gate), anyio.create_task_group() as turns:
        await desk.offer(batch(1))
        await desk.take(0)
        turns.start_soon(play)
        await anyio.wait_all_tasks_blocked()
        await desk.trained(1, {})
        await anyio.wait_all_tasks_blocked()
        assert order == [], "the weights of step 1 have not been published"
        with desk.publishing():
            await desk.wait_until_awake()
            await anyio.wait_all_tasks_blocked()
            assert order == [], "also between waking and the publish"
            async with gate.publish():
                order.append("publish")
                await anyio.wait_all_tasks_blocked()
    assert order == ["publish", "turn"]


async def test_a_stage_that_ends_leaves_the_engines_awake(tmp_path: Path) -> None:
    desk, engines, gate = make_desk(tmp_path), Engines(), TurnGate(timeout_s=5)
    async with sleeping(desk, engines, gate):
        await desk.offer(batch(1))
        await desk.take(0)
        desk.stop()
        assert await desk.take(0) == {"kind": "stop"}
    assert not engines.is_asleep
    assert not desk.engines_sleep
    await desk.wait_until_awake()
    async with gate.turn():
        pass
