"""Search stages: what a budget buys, and what an interrupted stage keeps."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from forge.commands.solve import load_curve, load_searches, render_searches
from forge.config.schema import Experiment
from forge.records import Group, GroupStart, Purpose, Status
from forge.runner.live.progress import Progress
from forge.runner.stages.run_context import RunContext
from forge.runner.stages.search import ENDED, GAIN, run_search_stage
from forge.serve.remote import RefusedRequest
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from tests.rollout.fakes import ports, problem
from tests.store.storefactory import attempt, group, write_run

PROBLEMS = [problem("easy"), problem("hard")]
CORRECT, WRONG, UNJUDGEABLE = Status.CORRECT, Status.WRONG, Status.UNJUDGEABLE


def run_of(root: Path, choose: Any, *, attempt: int = 1, slots: int = 4, **stage: Any) -> Any:
    """A run whose engine answers with `choose(seed, i, length)`: 1 is correct, 2 is wrong."""
    table = {"kind": "search", **stage}
    experiment = Experiment.model_validate(
        {"name": "x", "model": {"path": "m"}, "serve": {"slots": slots}, "stage": [table]}
    )
    given, sink, policy = ports(choose)

    @asynccontextmanager
    async def pinned_ports() -> AsyncIterator[Any]:
        yield given

    run: Any = SimpleNamespace(
        experiment=experiment,
        attempt=attempt,
        paths=RunPaths(root),
        problems_of=lambda split: [*PROBLEMS, problem("flagged")],
        refused={"flagged"},
        weights=SimpleNamespace(step=0),
        group_ids=count(100),
        busy=dict,
        progress=Progress(run="x", num_stages=1),
        console=SimpleNamespace(said=[], say=lambda line: run.console.said.append(line)),
        pinned_ports=pinned_ports,
        writer=sink,
        policy=policy,
    )
    run.rules, run.record = partial(RunContext.rules, run), partial(RunContext.record, run)
    return run


async def played(run: Any) -> list[Group]:
    (stage,) = run.experiment.stage
    await run_search_stage(run, stage, 0)
    return run.writer.of(Group)


async def test_a_budget_of_answers_is_spent_on_all_problems_and_no_more(tmp_path: Path) -> None:
    run = run_of(tmp_path, lambda seed, i, length: 2, budget="10")
    groups = await played(run)
    assert len(groups) == 10
    assert {each.purpose for each in groups} == {Purpose.SEARCH}
    assert sorted(each.problem_id for each in groups) == ["easy"] * 5 + ["hard"] * 5
    assert run.progress.done == 10


async def test_groups_name_the_turns_that_their_prompts_show(tmp_path: Path) -> None:
    run = run_of(tmp_path, lambda seed, i, length: 2, budget="12", depth=3)
    groups = {each.group_id: each for each in await played(run)}
    starts = {each.group_id: each.parents for each in run.writer.of(GroupStart)}
    assert {name: each.parents for name, each in groups.items()} == starts
    assert {len(each.parents) for each in groups.values()} == {0, 1, 2}
    for each in groups.values():
        shown = each.trajectories[0].turns[0]
        assert len(shown.prompt_ids) == 1 + len(each.parents)
        for name in each.parents:
            parent = groups[int(name.split(".")[0].removeprefix("g"))]
            assert parent.problem_id == each.problem_id


async def test_a_solved_problem_that_nobody_times_leaves_its_budget_to_others(
    tmp_path: Path,
) -> None:
    run = run_of(tmp_path, lambda seed, i, length: 1, budget="100")
    groups = await played(run)
    assert len(groups) <= 2 * 6, "those that were asked for at once"
    kinds = [each.kind for each in run.writer.records if hasattr(each, "kind")]
    assert [kinds.count(kind) for kind in (GAIN, ENDED)] == [2, 2]


async def test_a_budget_of_tokens_ends_with_the_answer_that_passes_it(tmp_path: Path) -> None:
    run = run_of(
        tmp_path, lambda seed, i, length: 2, slots=2, budget="3k-tokens", strategy="best-of-n"
    )
    assert 3000 <= len(await played(run)) <= 3000 + 3
    assert run.progress.done >= run.progress.total == 3000


def without_room(run: Any, *, room: int, by_server: bool) -> None:
    """Prompts that show `room` answers have no room: here, or since the server refuses them."""

    def refused(seed: int, i: int, length: int) -> int:
        if length > room:
            raise RefusedRequest("too long")
        return 2

    given, _, _ = ports(refused, room=10 if by_server else room)
    given = replace(given, sink=run.writer, refused=(RefusedRequest,))
    run.pinned_ports = lambda: _opened(given)


@pytest.mark.parametrize(("by_server", "said"), [(False, "not fit"), (True, "too long")])
async def test_a_prompt_without_room_ends_its_search(
    tmp_path: Path, by_server: bool, said: str
) -> None:
    run = run_of(tmp_path, lambda seed, i, length: 2, budget="1000")
    without_room(run, room=0, by_server=by_server)
    await played(run)
    assert run.progress.done == 0
    assert sum(said in line for line in run.console.said) == len(PROBLEMS)


@pytest.mark.parametrize("by_server", [False, True])
@pytest.mark.parametrize("strategy", ["refine", "evolve"])
async def test_an_answer_without_room_for_its_parents_spends_no_budget(
    tmp_path: Path, strategy: str, by_server: bool
) -> None:
    run = run_of(tmp_path, lambda seed, i, length: 2, budget="20", strategy=strategy)
    without_room(run, room=1, by_server=by_server)
    turns = [each.trajectories[0].turns for each in await played(run)]
    assert len(run.writer.of(GroupStart)) > 20, "some have no room"
    assert sum(map(len, turns)) == 20


@asynccontextmanager
async def _opened(given: Any) -> AsyncIterator[Any]:
    yield given


def searched(group_id: int, name: str, status: Status, *parents: str) -> Group:
    found = group(group_id, [[status]], problem_id=name, purpose=Purpose.SEARCH, stage=0, step=0)
    return replace(found, parents=parents)


def cut_off(group_id: int, name: str) -> GroupStart:
    return GroupStart(group_id=group_id, problem_id=name, purpose=Purpose.SEARCH, stage=0, step=0)


FIRST = [
    attempt(), *PROBLEMS,
    searched(0, "easy", CORRECT),
    searched(1, "hard", WRONG),
    searched(2, "hard", WRONG, "g1.r0.t0"),
    cut_off(3, "hard"),
]  # fmt: skip


async def test_an_interrupted_stage_keeps_its_answers_and_goes_on_behind_them(
    tmp_path: Path,
) -> None:
    root = tmp_path / "toy-1"
    await write_run(root, FIRST)
    run = run_of(root, lambda seed, i, length: 2, attempt=2, budget="7", depth=4)
    groups = await played(run)
    assert [each.problem_id for each in groups] == ["hard"] * 4, "easy was solved, 3 of 7 are spent"
    shown = [each.parents for each in groups]
    assert ("g1.r0.t0",) in shown or ("g1.r0.t0", "g2.r0.t0") in shown
    assert any("3 answers are kept" in line for line in run.console.said)


async def test_every_chain_of_an_interrupted_stage_goes_on(tmp_path: Path) -> None:
    root = tmp_path / "toy-1"
    judged = [
        searched(0, "hard", WRONG), searched(1, "hard", WRONG),
        searched(2, "hard", WRONG, "g0.r0.t0"), searched(3, "hard", WRONG, "g1.r0.t0"),
    ]  # fmt: skip
    await write_run(root, [attempt(), PROBLEMS[1], *judged])
    run = run_of(root, lambda seed, i, length: 2, attempt=2, slots=2, budget="6", depth=3)
    run.problems_of = lambda split: PROBLEMS[1:]
    shown = {each.parents for each in await played(run)}
    assert shown == {("g0.r0.t0", "g2.r0.t0"), ("g1.r0.t0", "g3.r0.t0")}


def test_a_search_is_read_by_problem_and_by_number_of_answers(tmp_path: Path) -> None:
    root = tmp_path / "toy-1"
    anyio.run(write_run, root, FIRST)
    with open_run(RunPaths(root)) as reader:
        easy, hard = load_searches(reader)
        curve = load_curve(reader)
    assert (easy["num_answers"], easy["best"]["turn_id"]) == (1, "g0.r0.t0")
    assert (hard["num_answers"], hard["num_correct"], hard["best"]) == (2, 0, None)
    assert [(each["n"], each["solved"]) for each in curve] == [(1, 0.5), (2, 0.5)]
    assert render_searches([easy, hard]).row_count == 2
