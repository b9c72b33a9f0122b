"""Comparison of two runs: settings, curves at equal cost, problems won and lost, missing parts."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from forge.records import Event, Group, Metrics, Purpose, Status
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from forge.views.compare import Comparison, compare, render_comparison
from tests.store.storefactory import (
    EXPERIMENT,
    attempt,
    edit,
    evaluation,
    group,
    problem,
    timing,
    with_turns,
    write_run,
)
from tests.views.terminals import EVIL, shown, told

NUM_PROBLEMS = 6
CORRECT, WRONG = Status.CORRECT, Status.WRONG


def eval_groups(
    first_id: int, solved: dict[int, int], *, stage: int, step: int, device: str = "cpu", **how: Any
) -> list[Group]:
    """Four samples of each problem, of which a given number are correct."""
    return [
        with_turns(
            group(
                first_id + number,
                [[CORRECT]] * num + [[WRONG]] * (4 - num),
                problem_id=f"softmax-{number:04d}",
                purpose=Purpose.EVAL,
                stage=stage,
                step=step,
                **how,
            ),
            lambda t: replace(t, verdict=replace(t.verdict, device=device)),
        )
        for number, num in solved.items()
    ]


def made(
    solved: dict[int, int], *, num_steps: int = 4, seconds: float = 10.0, rate: float = 0.5,
    midway: dict[int, int] | None = None, **changes: Any,
) -> list:  # fmt: skip
    """A run of GRPO in stage 1, whose steps take `seconds`, evaluated in stage 2."""
    rng = random.Random(0)
    levels = [problem(n, level=1 + n % 2) for n in range(NUM_PROBLEMS)]
    out: list = [attempt(), *levels]
    out.append(Event(at=1.0, kind="stage_start", message="grpo", data={"stage": 1}))
    for step in range(1, num_steps + 1):
        rows = [[CORRECT if rng.random() < rate else WRONG] for _ in range(8)]
        out.append(group(step, rows, step=step))
        values = {"train/loss/mean": 1.0 / step, "step/wall/seconds": seconds}
        out.append(Metrics(stage=1, step=step, at=10.0 * step, values=values))
    if midway is not None:
        out += eval_groups(200, midway, stage=1, step=2)
        out.append(evaluation("grpo-1@2", step=2, at=25.0))
    out += eval_groups(100, solved, stage=2, step=num_steps, **changes)
    return [*out, evaluation("eval-2", step=num_steps, at=100.0)]


def compared(tmp_path: Path, a: list, b: list, *, by: str = "step") -> Comparison:
    for name, records in (("a-1", a), ("b-1", b)):
        anyio.run(write_run, tmp_path / name, records)
    with open_run(tmp_path / "a-1") as left, open_run(tmp_path / "b-1") as right:
        return compare(left, right, by=by)


def sft(solved: dict[int, int], *, num_steps: int) -> list:
    """A run of SFT that logs every ten steps, evaluated at its end."""
    out: list = [attempt(), *(problem(n) for n in range(NUM_PROBLEMS))]
    for step in range(10, num_steps + 1, 10):
        values = {"train/loss/mean": 10.0 / step}
        if step == num_steps:
            values["step/wall/seconds"] = 0.5 * num_steps
        out.append(Metrics(stage=1, step=step, at=0.5 * step, values=values))
    out += eval_groups(100, solved, stage=2, step=num_steps)
    return [*out, evaluation("eval-2", step=num_steps, at=100.0)]


def test_problems_are_won_and_lost_with_a_paired_interval(tmp_path: Path) -> None:
    before = {0: 0, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4}
    after = {0: 4, 1: 4, 2: 4, 3: 4, 4: 3, 5: 4}
    found = compared(tmp_path, made(before), made(after))
    score, difference = found["score"], found["score"]["difference"]
    assert (score["a"], score["b"]) == pytest.approx((13 / 24, 23 / 24))
    assert (score["num_won"], score["num_lost"], score["num_even"]) == (4, 1, 1)
    assert difference.value == pytest.approx(10 / 24)
    assert 0 < difference.low < difference.value < difference.high
    assert difference.is_clear
    first, last = found["problems"][0], found["problems"][-1]
    assert (first["problem_id"], first["outcome"]) == ("softmax-0004", "lost")
    assert first["difference"] == -0.25
    assert (last["problem_id"], last["outcome"]) == ("softmax-0000", "won")
    assert (last["correct_a"], last["num_a"], last["correct_b"], last["num_b"]) == (0, 4, 4, 4)
    assert [part["name"] for part in found["by_level"]] == ["level 1", "level 2"]
    assert found["by_level"][0]["score"]["num_won"] == 2
    assert found["by_source"] == []
    assert found["notes"] == []


def test_scores_of_several_sources_are_apart(tmp_path: Path) -> None:
    runs = made({0: 0, 1: 4}), made({0: 4, 1: 4})
    sources = {"softmax-0000": "made", "softmax-0001": "my bench"}
    for records in runs:
        records[-1] = replace(records[-1], detail={**records[-1].detail, "sources": sources})
    found = compared(tmp_path, *runs)
    scores = {part["name"]: part["score"] for part in found["by_source"]}
    won = {name: (one["num_won"], one["num_even"]) for name, one in scores.items()}
    assert won == {"made": (1, 0), "my bench": (0, 1)}
    assert [part["name"] for part in found["by_level"]] == ["made level 1", "my bench level 2"]


def test_a_run_does_not_differ_from_itself(canned_run: RunPaths) -> None:
    with open_run(canned_run) as a, open_run(canned_run) as b:
        found = compare(a, b)
    assert found["config"] == []
    score, names = found["score"], {curve["name"] for curve in found["curves"]}
    assert score["difference"].value == score["num_won"] == score["num_lost"] == 0
    assert names >= {"reward", "pass_rate", "train/loss/mean"}
    for curve in found["curves"]:
        assert curve["a"] == curve["b"]
        assert all(point["a"] == point["b"] for point in curve["at"])


def test_shares_equal_those_of_the_evaluation(canned_run: RunPaths) -> None:
    with open_run(canned_run) as reader:
        found = compare(reader, reader)
        row = reader.one("SELECT detail FROM v_evaluations WHERE stage = 'eval-4'")
    tallies = json.loads(row["detail"])["tallies"]
    assert found["a"]["evaluation"] == "eval-4 at step 20"
    for each in found["problems"]:
        assert [each["num_a"], each["correct_a"]] == tallies[each["problem_id"]]


def test_runs_are_compared_where_the_shorter_one_ends(tmp_path: Path) -> None:
    long = made(dict.fromkeys(range(6), 4), num_steps=8, midway=dict.fromkeys(range(6), 1))
    short = made(dict.fromkeys(range(6), 2), num_steps=2)
    found = compared(tmp_path, long, short)
    assert (found["budget"], found["a"]["spent"], found["b"]["spent"]) == (2, 8, 2)
    assert found["a"]["evaluation"] == "grpo-1@2 at step 2", "what it could do after as many steps"
    assert (found["score"]["a"], found["score"]["b"]) == (0.25, 0.5)
    loss = next(curve for curve in found["curves"] if curve["name"] == "train/loss/mean")
    assert len(loss["a"]) == 8
    assert [point["x"] for point in loss["at"]] == [0.5, 1.0, 1.5, 2.0]
    assert (loss["at"][0]["a"], loss["at"][-1]["a"]) == (None, pytest.approx((1 + 1 / 2) / 2))


@pytest.mark.parametrize(
    ("by", "budget", "evaluation_of_a"),
    [("step", 4, "eval-2"), ("time", 40, "grpo-1@2"), ("tokens", 4 * 8 * 12, "eval-2")],
)
def test_equal_steps_are_not_equal_seconds(
    tmp_path: Path, by: str, budget: float, evaluation_of_a: str
) -> None:
    slow = made(dict.fromkeys(range(6), 4), seconds=15.0, midway=dict.fromkeys(range(6), 1))
    quick = made(dict.fromkeys(range(6), 2), seconds=10.0)
    found = compared(tmp_path, slow, quick, by=by)
    assert found["budget"] == budget
    assert (found["a"]["evaluation"] or "").startswith(evaluation_of_a)


@pytest.mark.parametrize(("by", "budget"), [("step", 40), ("time", 15.0), ("tokens", None)])
def test_runs_of_sft_are_compared_by_its_steps_and_seconds(
    tmp_path: Path, by: str, budget: float | None
) -> None:
    a, b = sft({0: 1}, num_steps=40), sft({0: 4}, num_steps=40)
    found = compared(tmp_path, a, b, by=by)
    assert found["budget"] == budget, "from the first that was logged to the last"
    assert found["score"]["difference"].value == 0.75
    if budget is None:
        assert found["curves"] == []
        assert [note.partition(" did")[0] for note in found["notes"]] == ["a-1", "b-1"]
    else:
        assert [curve["name"] for curve in found["curves"]] == ["train/loss/mean"]


def test_different_settings_and_machines_are_listed(tmp_path: Path) -> None:
    other = EXPERIMENT.replace("steps = 3", "steps = 9").replace('init = "tiny"', 'init = "hub"')
    other += '[[stage]]\nkind = "sft"\nepochs = 1\n'
    for name, text in (("a-1", EXPERIMENT), ("b-1", other)):
        root = tmp_path / name
        anyio.run(write_run, root, made({0: 1}))
        edit(root / "run.db", "UPDATE runs SET experiment = ?", text)
        edit(root / "run.db", "UPDATE attempts SET code_commit = ?", name)
    with open_run(tmp_path / "a-1") as a, open_run(tmp_path / "b-1") as b:
        changes = {each["key"]: (each["a"], each["b"]) for each in compare(a, b)["config"]}
    assert changes == {
        "model.init": ("tiny", "hub"),
        "stages": ("eval → grpo", "eval → grpo → sft"),
        "stage.grpo.steps": (3, 9),
        "code.commit": ("a-1", "b-1"),
    }


def test_speed_is_compared_on_one_device_only(tmp_path: Path) -> None:
    solved = dict.fromkeys(range(6), 4)
    slow = made(solved, speed=timing(1.5), device="H100")
    found = compared(tmp_path, slow, made(solved, speed=timing(3.0), device="H100"))
    assert found["a"]["devices"] == ["H100"]
    speed = found["by_level"][0]["speed"]
    assert (speed.value, speed.low, speed.high) == pytest.approx((1.0, 1.0, 1.0))
    other = made(solved, speed=timing(3.0), device="H200")
    elsewhere = compared(tmp_path / "x", slow, other)
    assert elsewhere["by_level"][0]["speed"] is None
    assert elsewhere["score"] is not None


def test_each_part_that_cannot_be_compared_has_a_note(tmp_path: Path) -> None:
    nothing = compared(tmp_path / "1", [attempt()], made({0: 1}))
    assert nothing["notes"] == [
        "a-1 has trained no step of grpo: no curves; the last evaluations are compared",
        "a-1 has no evaluation: no problems won or lost",
    ]
    assert (nothing["score"], nothing["curves"], nothing["problems"]) == (None, [], [])
    late = compared(tmp_path / "5", made({0: 1}, num_steps=1), made({0: 1}, num_steps=3)[:-5])
    assert late["notes"] == ["b-1 has no evaluation after at most 1 steps: no problems won or lost"]
    others = compared(tmp_path / "2", made({0: 1, 1: 1}), made({2: 1}))
    assert others["notes"] == [
        "no problem in common: a-1 evaluated softmax-0000 and 1 more, b-1 softmax-0002"
    ]
    some = compared(tmp_path / "3", made({0: 1, 1: 1}), made({1: 1, 2: 1, 3: 1}))
    assert some["notes"] == ["1 problems in common, of 2 and 3 evaluated"]
    changed = [
        replace(each, source="# other") if each == problem(1, level=2) else each
        for each in made({0: 1, 1: 1})
    ]
    renamed = compared(tmp_path / "4", made({0: 1, 1: 1}), changed)
    assert renamed["notes"][0] == "1 problems share a name but not their source: left out"
    assert [each["problem_id"] for each in renamed["problems"]] == ["softmax-0000"]


def test_a_repeated_evaluation_counts_once(tmp_path: Path) -> None:
    cut_short = eval_groups(300, {0: 0}, stage=2, step=4)
    again = [attempt(), problem(0), *cut_short, attempt(2), *made({0: 4})[1:]]
    found = compared(tmp_path, again, made({0: 4}))
    assert [(each["correct_a"], each["num_a"]) for each in found["problems"]] == [(4, 4)]


def test_json_has_everything_and_the_command_prints_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compared(tmp_path, made({0: 1, 1: 4}), made({0: 4, 1: 1}))
    argv = ["compare", "a-1", "b-1", "--store", str(tmp_path)]
    found = json.loads(told(capsys, *argv, "--json", "--by", "tokens"))
    assert [each["outcome"] for each in found["problems"]] == ["lost", "won"]
    assert found["by"] == "tokens"
    text = told(capsys, *argv)
    assert "1 won, 1 lost, 0 even" in text
    assert "lost by b: 1 problems" in text
    assert "step, tokens, time" in told(capsys, *argv, "--by", "luck", code=2)


def test_a_hostile_name_is_made_printable(tmp_path: Path) -> None:
    evil = replace(problem(0), problem_id=EVIL)
    plays = [
        [attempt(), evil, *(replace(each, problem_id=EVIL) for each in eval_groups(
            9, {0: num}, stage=2, step=0)), evaluation("eval-2", step=0, at=1.0)]
        for num in (0, 4)
    ]  # fmt: skip
    text = shown(render_comparison(compared(tmp_path, *plays)))
    assert "won by b: 1 problems" in text
    assert not set("\x07\x9b\u202e\r") & set(text)
    assert "\x1b]" not in text
