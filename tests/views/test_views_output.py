"""show, sql, rollouts, runs, state: the same data for people and programs, safe to print."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from forge.records import AttemptEnd, Metrics, Purpose, Status
from forge.store.layout import RunPaths, open_run_lock
from forge.store.reader import open_run
from forge.views import rollouts, runs, show, sql
from forge.views.run_state import load_idle, load_run_state
from forge.views.sql import QUERIES
from forge.views.text import printable
from tests.store.storefactory import (
    attempt,
    evaluation,
    group,
    problem,
    samples,
    small_run,
    timing,
    turn,
    use,
    write_run,
)
from tests.views.terminals import EVIL, shown


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("views") / "toy-1"
    anyio.run(lambda: write_run(path, small_run(), texts="zstd"))
    return path


def test_show_json_has_every_field(root: Path) -> None:
    data = json.loads(json.dumps(show.show_run(root)))
    keys = {
        "stage",
        "pass_at_1",
        "ci_low",
        "ci_high",
        "num_problems",
        "num_samples",
        "compile_rate",
    }
    assert [row["stage"] for row in data["evaluations"]] == ["eval-0", "grpo-1@3"]
    assert all(keys <= row.keys() for row in data["evaluations"])
    assert data["name"] == "toy-1"
    assert data["state"] == "done"
    assert [(s["name"], s["state"]) for s in data["stages"]] == [
        ("eval-0", "done"),
        ("grpo-1", "cut"),
    ]
    assert data["counters"]["turns"] == sum(data["verdicts"].values()) == 24
    assert data["idle"].keys() == {"grpo-1"}
    assert data["idle"]["grpo-1"] == pytest.approx({"judges": 0.2, "trainer": 0.4})
    assert data["best_kernel"]["problem_id"] == "matmul-0001"


def test_idle_shares_of_the_last_steps_equal_the_view(tmp_path: Path) -> None:
    """A repeated step counts with its last attempt; a stage without steps has no shares."""
    wall, seconds = "step/wall/seconds", "idle/trainer/seconds"
    steps = [(1, 1, 1.0), (1, 2, 4.0), (2, 2, 2.0), (2, 3, 5.0)]
    records: list[Any] = [attempt()]
    for number, step, idle_s in steps:
        if number == 2 and step == 2:
            records.append(attempt(number=2))
        values = {wall: 10.0, seconds: idle_s}
        records.append(Metrics(stage=1, step=step, values=values, at=float(step)))
    anyio.run(write_run, tmp_path / "idle-1", records)
    with open_run(tmp_path / "idle-1") as reader:
        view = "SELECT sum(idle_s) / sum(step_s) FROM v_idle WHERE stage = 1 AND step > ?"
        for num_steps in (1, 2, 10):
            expected = reader.value(view, (3 - num_steps,))
            assert load_idle(reader, stage=1, num_steps=num_steps) == {"trainer": expected}
        assert load_idle(reader, stage=2) == load_idle(reader, stage=None) == {}


def test_show_prints_times_of_timed_kernels(tmp_path: Path) -> None:
    played = group(
        0, [[Status.CORRECT], [Status.WRONG]], purpose=Purpose.EVAL, step=0, stage=0,
        speed=timing(4.0),
    )  # fmt: skip
    found = evaluation(timed=played)
    anyio.run(write_run, tmp_path / "toy-1", [attempt(), problem(), played, found])
    data = show.show_run(tmp_path / "toy-1")
    text = shown(show.render_show(data))
    assert data["evaluations"][0]["fast_1"] == 0.5
    assert "fast_1" in text
    assert "50.0 %" in text
    assert "at least 3.60x (4.00x: 25.0 µs, baseline 100.0 µs)" in text


def test_empty_evaluation_columns_are_dropped_and_forty_columns_suffice(root: Path) -> None:
    evaluations = show.show_run(root)["evaluations"]
    assert "fast_1" not in shown(show.render_evaluations(evaluations))
    text = shown(show.render_evaluations(evaluations), width=40)
    assert "…" not in text
    assert "grpo-1@3" in text


def test_an_empty_run_is_shown(tmp_path: Path) -> None:
    anyio.run(write_run, tmp_path / "toy-1", [])
    data = show.show_run(tmp_path / "toy-1")
    assert data["state"] == "new"
    assert data["best_kernel"] is None
    assert "0 turns" in shown(show.render_show(data))


def test_wall_time_has_the_seconds_that_verdicts_waited_for_a_judge(tmp_path: Path) -> None:
    played = group(0, [[Status.CORRECT], [Status.WRONG]])
    anyio.run(write_run, tmp_path / "toy-1", [attempt(), problem(), played])
    with open_run(tmp_path / "toy-1") as reader:
        seconds = {row["what"]: row["seconds"] for row in reader.rows(QUERIES["wall-time"].sql)}
    phases = seconds["judge phase: extract"] + seconds["judge phase: correct"]
    assert seconds["judge queue, summed over turns"] == pytest.approx(0.2 - phases, abs=1e-3)


@pytest.mark.parametrize("name", ["best-kernels", "best-of-problem", "suspects"])
def test_the_ranking_speedup_is_printed_beside_the_times(tmp_path: Path, name: str) -> None:
    """A kernel measured as 9 times as fast may rank below one of 4, because its interval is
    wide."""
    played = group(0, [[Status.CORRECT], [Status.WRONG]], speed=timing(4.0))
    anyio.run(write_run, tmp_path / "toy-1", [attempt(), problem(), played])
    with open_run(tmp_path / "toy-1") as reader:
        found = reader.query(QUERIES[name].sql, QUERIES[name].bind({}))
        row = json.loads("".join(sql.json_parts(found)))[0]
    names = ("speedup_low", "speedup", "candidate_us", "baseline_us")
    assert [row[each] for each in names] == [3.6, 4.0, 25.0, 100.0]


def test_named_queries_take_no_mean_of_means(tmp_path: Path) -> None:
    """One group solved at step 1, three unsolved at step 2: a quarter, not a half."""
    first = group(0, [[Status.CORRECT]] * 2, step=1)
    later = [group(n, [[Status.WRONG]] * 2, step=2) for n in (1, 2, 3)]
    trained = [
        use(s, step=g.step) for g in (first, *later) for s in samples(g, first_id=2 * g.group_id)
    ]
    anyio.run(write_run, tmp_path / "toy-1", [attempt(), problem(), first, *later, *trained])
    with open_run(tmp_path / "toy-1") as reader:
        level = reader.one(QUERIES["levels"].sql)
        age = reader.one(QUERIES["staleness"].sql)
    assert (level["num_turns"], level["correct_share"]) == (8, 0.25)
    assert (age["num_samples"], age["reward"]) == (8, pytest.approx((0.8 + 3 * 0.3) / 4, abs=1e-3))


def test_sql_without_a_query_lists_views_and_tables_with_comments(root: Path) -> None:
    with open_run(root) as reader:
        relations = sql.list_relations(lambda query: reader.query(query).rows)
    assert all(relation.comment for relation in relations)
    assert {"v_turns", "v_steps", "turns", "texts"} <= {relation.name for relation in relations}
    turns = next(relation for relation in relations if relation.name == "turns")
    assert "turn_id" in turns.columns
    assert "learning curve" in shown(sql.render_relations(relations))


def find(root: Path, **wanted: Any) -> list[dict[str, Any]]:
    with open_run(root) as reader:
        return rollouts.load_rollouts(reader, rollouts.Filter(**wanted))


def test_rollouts_in_json_have_texts_only_when_asked(root: Path) -> None:
    full = find(root, limit=1)
    assert "completion" in full[0]["turns"][0]
    short = rollouts.without_texts(full)
    assert "completion" not in short[0]["turns"][0]
    json.dumps([full, short])


def test_a_completion_cannot_control_the_terminal(tmp_path: Path) -> None:
    evil = turn(0, completion=EVIL, prompt=EVIL, code=EVIL)
    path = tmp_path / "toy-1"
    anyio.run(write_run, path, [evil])
    found = find(path)
    texts = [
        shown(rollouts.render_turns(found)),
        shown(rollouts.render_list(found)),
        shown(show.render_show(show.show_run(path))),
    ]
    with open_run(path) as reader:
        texts.append(shown(sql.render_found(reader.query("SELECT completion FROM v_turns"))))
    for text in texts:
        assert not set("\x07\x9b\u202e\r") & set(text)
        assert "\x1b]" not in text
        assert "\x1b[2J" not in text
    assert "[bold]loud[/bold]" in texts[0]
    assert "␛[2J" in texts[0]


def test_printable_leaves_ordinary_text_alone() -> None:
    text = "def f(x):\n\treturn x  # ≥ 2 × π, 漢字 🙂"
    assert printable(text) == text


def test_runs_are_listed_with_state_and_last_evaluation(root: Path, tmp_path: Path) -> None:
    anyio.run(write_run, tmp_path / "a-1", small_run())
    (tmp_path / "broken-1").mkdir()
    (tmp_path / "broken-1" / "run.db").write_text("no database " * 500)
    (tmp_path / "new-1").mkdir()
    (tmp_path / "new-1" / "run.db").touch()  # killed before it had a schema
    with open_run_lock(RunPaths(tmp_path / "a-1")):
        found = {run["name"]: run for run in runs.load_runs(tmp_path)}
    assert found["a-1"]["state"] == "running"
    assert found["a-1"]["stages"] == ["eval", "grpo"]
    assert found["a-1"]["last_evaluation"]["stage"] == "grpo-1@3"
    assert found["broken-1"]["state"].startswith("unreadable")
    assert "nothing is recorded" in found["new-1"]["state"]
    lines = shown(runs.render_runs(list(found.values()))).splitlines()
    assert "50.0 % (grpo-1@3)" in lines[2]
    assert lines[3].split("│")[1].strip() == "unreadable", "the reason has a line of its own"
    assert "\n".join(lines).count("broken-1 is unreadable: ") == 1


def test_the_state_reports_progress_and_rates(tmp_path: Path) -> None:
    path = tmp_path / "toy-1"
    ahead = Metrics(stage=1, step=5, at=1_014.0, values={"rollout/reward/mean": 0.5})
    records = [*small_run()[:-1], ahead]  # the batch of step 5 is offered before step 4 is trained
    anyio.run(write_run, path, records)
    with open_run(path) as reader:
        last = reader.value("SELECT max(recorded_at) FROM turns")
        now = load_run_state(reader, now=last + 1)
        later = load_run_state(reader, now=last + 1_000)
    assert now.state == "killed"
    assert (now.step, now.num_turns, now.policy_version) == (3, 24, 3)
    assert now.idle == pytest.approx({"judges": 0.4, "trainer": 0.4})
    assert now.evaluation["pass_at_1"] == 0.5
    assert now.turns_per_s == pytest.approx(24, rel=0.5)
    assert now.tokens_per_s == pytest.approx(24 * 12, rel=0.5)
    assert later.turns_per_s is None
    json.dumps(now.to_json())


@pytest.mark.parametrize(
    ("code", "reason", "lines"),
    [
        (0, "done", ["toy-1: done, attempt 1"]),
        (5, "rollout: no \x1bsignal", ["toy-1: failed, attempt 1", "why: rollout: no ␛signal"]),
    ],
)
def test_a_failed_run_prints_its_reason(
    tmp_path: Path, code: int, reason: str, lines: list[str]
) -> None:
    end = AttemptEnd(attempt=1, ended_at=1_020.0, exit_code=code, reason=reason)
    anyio.run(write_run, tmp_path / "toy-1", [attempt(), end])
    with open_run(tmp_path / "toy-1") as reader:
        run = load_run_state(reader, now=1_021.0)
        data = show.load_show(reader)
    assert run.to_lines() == lines
    killed = replace(run, state="killed", reason=None).to_lines()
    assert killed[1:] == ['"forge resume toy-1" continues it']
    assert (run.reason, data["reason"]) == (reason, reason)
    told = shown(show.render_show(data)).splitlines()
    assert [line for line in told if line.startswith("why: ")] == lines[1:]
