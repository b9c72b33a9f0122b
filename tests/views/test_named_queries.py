"""Each named query has rows in a real run, and its numbers are right."""

import json
import math
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import correlation
from typing import Any

import anyio
import pytest

from forge.cli import run_command
from forge.errors import ConfigError
from forge.records import Event, Status
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from forge.views.report.charts import TERMS
from forge.views.sql import QUERIES
from tests.store.storefactory import attempt, evaluation, group, problem, timing, turn, write_run
from tests.views.terminals import told

WITHOUT_ROWS = ("judge-noise", "unjudgeable", "fast-p")
"""Queries without rows here: no kernel was timed, all problems were judged, and evaluations of that
version held no figures of speed."""


def ask(root: Path | RunPaths, name: str, **params: Any) -> list[dict[str, Any]]:
    with open_run(root) as reader:
        return reader.rows(QUERIES[name].sql, QUERIES[name].bind(params))


def write(root: Path, records: list) -> Path:
    anyio.run(write_run, root, records)
    return root


def test_a_real_run_has_rows_for_each_query_here_and_in_stock_sqlite3(
    canned_template: RunPaths,
) -> None:
    with closing(sqlite3.connect(canned_template.run_db)) as stock:
        for name, query in QUERIES.items():
            found = ask(canned_template, name)
            assert found or name in WITHOUT_ROWS, name
            if found:
                assert len(stock.execute(query.sql, query.bind({})).fetchall()) == len(found), name


def test_the_best_kernel_of_a_problem_is_shown_with_its_repeated_timings(tmp_path: Path) -> None:
    best = turn(1, 0, speed=timing(4.0), code="def fast(): ...", version=3)
    again = [turn(2, n, speed=timing(s), code="def fast(): ...") for n, s in ((0, 2.0), (1, 4.0))]
    root = write(
        tmp_path / "toy-1",
        [attempt(), problem(0), problem(1, family="matmul"),
         group(0, [[Status.CORRECT]], problem_id="matmul-0001", speed=timing(9.0)),
         *(replace(group(n, [[Status.CORRECT]]), trajectories=()) for n in (1, 2)), best, *again],
    )  # fmt: skip
    (row,) = ask(root, "best-of-problem", problem="softmax-0000")
    assert (row["turn_id"], row["policy_version"], row["speedup"]) == ("g1.r0.t0", 3, 4.0)
    assert row["num_times"] == 3
    assert (row["speedup_best_again"], row["speedup_worst_again"]) == (4.0, 2.0)
    (most,) = ask(root, "best-of-problem")
    assert most["problem_id"] == "matmul-0001", "the best of all where none is named"


def test_a_slower_gpu_is_found(tmp_path: Path) -> None:
    turns = []
    for n, (device, speedup) in enumerate((("gpu-0", 2.0), ("gpu-0", 2.0), ("gpu-3", 1.0),
                                           ("gpu-3", 1.0))):  # fmt: skip
        timed = turn(0, n, speed=timing(speedup), code="def k(): ...")
        turns.append(replace(timed, verdict=replace(timed.verdict, device=device)))
    played = group(0, [[Status.CORRECT]])
    root = write(tmp_path / "toy-1", [attempt(), problem(0), played, *turns])
    found = {row["device"]: row["slower_than_fastest_device"] for row in ask(root, "judge-noise")}
    assert found == {"gpu-0": 1.0, "gpu-3": 2.0}


def test_high_rewards_are_shown_with_their_suspicious_signs(tmp_path: Path) -> None:
    honest = turn(0, 0, speed=timing(2.0))
    silent = turn(0, 1, speed=timing(2.0), num_launches=0)
    torch = replace(honest, rollout=2, verdict=replace(honest.verdict, torch_share=0.9))
    still = turn(0, 3, speed=replace(timing(2.0), candidate_spread_us=0.0))
    played = group(0, [[Status.CORRECT]])
    every = []
    for each in (honest, silent, torch, still):
        root = tmp_path / f"toy-{each.rollout + 1}"
        every += ask(write(root, [attempt(), problem(0), played, each]), "suspects")
    assert [row["odd"] for row in every] == [
        "", "no kernel launched", "torch does most of it", "times do not vary"]  # fmt: skip


def test_a_problem_is_shown_under_two_policy_versions(tmp_path: Path) -> None:
    groups = [group(n, [[Status.CORRECT]], step=n + 1, version=n) for n in range(4)]
    other = group(9, [[Status.CORRECT]], problem_id="matmul-0001", step=9, version=9)
    root = write(
        tmp_path / "toy-1", [attempt(), problem(0), problem(1, family="matmul"), *groups, other]
    )
    assert [row["policy_version"] for row in ask(root, "side-by-side")] == [0, 3]
    chosen = ask(root, "side-by-side", problem="softmax-0000", older=1, newer=2)
    assert [row["policy_version"] for row in chosen] == [1, 2]
    assert "kernel_1_0_0" in chosen[0]["completion"]


def test_shares_and_correlations_of_reward_terms_match_the_turns(tmp_path: Path) -> None:
    terms = [{"correct": 0.5 * (n % 3 == 0), "fast": 0.1 * n} for n in range(12)]
    terms[5] = {"fast": 0.5}  # a term that paid nothing may be absent
    turns = [
        replace(turn(0, n), reward_terms=paid, reward=math.fsum(paid.values()))
        for n, paid in enumerate(terms)
    ]
    played = group(0, [[Status.CORRECT]])
    root = write(tmp_path / "toy-1", [attempt(), problem(0), played, *turns])
    found = {row["term"]: row for row in ask(root, "reward-shares")}
    rewards = [math.fsum(paid.values()) for paid in terms]
    for name in ("correct", "fast"):
        values = [paid.get(name, 0.0) for paid in terms]
        share = math.fsum(values) / math.fsum(rewards)
        assert found[name]["share_of_reward"] == pytest.approx(share, abs=1e-3)
        assert found[name]["correlation_with_reward"] == pytest.approx(
            correlation(values, rewards), abs=1e-3
        )


def test_means_of_reward_terms_add_up_to_the_reward(tmp_path: Path) -> None:
    paid = [{"compiled": 0.05, "correct": 0.75}, {"compiled": 0.05}, {}, {}]
    turns = [
        replace(turn(0, n), reward_terms=p, reward=sum(p.values())) for n, p in enumerate(paid)
    ]
    played = group(0, [[Status.CORRECT]])
    root = write(tmp_path / "toy-1", [attempt(), problem(0), played, *turns])
    found = {row["term"]: (row["mean"], row["paid_share"]) for row in ask(root, "reward-terms")}
    assert found == {"compiled": (0.025, 0.5), "correct": (0.1875, 0.25)}
    with open_run(root) as reader:
        values = {row["name"]: row["value"] for row in reader.rows(TERMS)}
        reward = reader.value("SELECT reward FROM v_steps")
    assert values == pytest.approx({"compiled": 0.025, "correct": 0.1875})
    assert math.fsum(values.values()) == pytest.approx(reward)


def test_the_first_evaluation_with_an_interval_above_the_first_is_found(tmp_path: Path) -> None:
    measured = [
        evaluation("eval-0", step=0, at=1.0, pass_at_1=0.2),  # 0.1 to 0.3
        evaluation("grpo-1@1", step=1, at=2.0, pass_at_1=0.5),  # from 0.25
        evaluation("grpo-1@2", step=2, at=3.0, pass_at_1=0.7),  # from 0.35
        evaluation("grpo-1@3", step=3, at=4.0, pass_at_1=0.8),
    ]
    (row,) = ask(write(tmp_path / "toy-1", [attempt(), *measured]), "first-better")
    assert (row["stage"], row["compared_with"], row["ci_high_then"]) == (
        "grpo-1@2", "eval-0", pytest.approx(0.3))  # fmt: skip


def test_the_last_minute_ends_at_the_last_record(tmp_path: Path) -> None:
    events = [Event(at=at, kind="x", message=f"at {at:.0f}") for at in (1.0, 950.0, 990.0)]
    root = write(tmp_path / "toy-1", [attempt(), *events])
    assert [row["words"] for row in ask(root, "last-minute")] == ["at 950", "at 990"]
    assert [row["words"] for row in ask(root, "last-minute", seconds=10)] == ["at 990"]


def test_the_batch_of_any_step_can_be_queried(canned_run: RunPaths) -> None:
    last = ask(canned_run, "batch")
    assert {(row["stage"], row["step"]) for row in last} == {(3, 20)}
    early = ask(canned_run, "batch", step=2)
    assert {(row["stage"], row["step"]) for row in early} == {(3, 2)}
    assert not {row["sample_id"] for row in last} & {row["sample_id"] for row in early}


@pytest.mark.parametrize("param", ["turns", "most", "seconds"])
def test_the_described_default_of_a_parameter_is_the_one_in_the_sql(param: str) -> None:
    asking = [query for query in QUERIES.values() if param in query.params]
    assert asking
    for query in asking:
        assert f"coalesce(:{param}, {query.params[param].split()[-1]})" in query.sql


def test_a_parameter_that_a_query_lacks_is_one_line() -> None:
    with pytest.raises(ConfigError, match="this query has none"):
        QUERIES["failures"].bind({"problem": "x"})


def test_the_list_has_every_query_with_its_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    listed = told(capsys, "sql", "--list")
    assert all(name in listed for name in QUERIES)
    found = {each["name"]: each for each in json.loads(told(capsys, "sql", "--list", "--json"))}
    assert found.keys() == QUERIES.keys()
    assert found["batch"]["params"].keys() == {"stage", "step"}
    assert run_command(["sql", "--list", "--named", "batch"]) == 2
