"""Results of a suite: complete, finite, and the same figures as the evaluation; problems that
cannot be judged are counted beside the denominator wherever rates are shown."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from forge.config.load import dump_experiment, load_experiment
from forge.records import AttemptEnd, Group, Purpose, Reason, Status
from forge.records.verdict import OtherVerdict
from forge.runner.live.progress import Console as RunConsole
from forge.runner.outlets.notify import Bests
from forge.runner.outlets.summary import leaderboard, load_result, render_result, write_results
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from forge.store.write.writer import open_writer
from forge.views import show
from forge.views.report.contents import PROBLEMS
from forge.views.run_state import load_run_state
from forge.views.show import load_evaluations, render_evaluations
from forge.views.sql import QUERIES
from forge.views.statistics import evaluate_groups
from tests.store.storefactory import (
    Options,
    attempt,
    group,
    make_root,
    problem,
    timing,
    with_turns,
    write_run,
)
from tests.views.terminals import shown

EXPERIMENT = """\
name = "eval-x"
[model]
[serve]
url = ["http://localhost:1"]
env = { HF_TOKEN = "secret" }
[judge]
env = { TOKEN = "secret" }
[eval]
suite = "mine|x"
label = "a | model"
seed = 4
[[stage]]
kind = "eval"
"""
CORRECT, WRONG, NONE, INFRA = Status.CORRECT, Status.WRONG, Status.UNJUDGEABLE, Status.INFRA_ERROR


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """A run of three problems, one of which cannot be judged; one rollout is lost to a fault."""
    problems = [problem(number) for number in range(3)]
    rows = [[[CORRECT], [WRONG, CORRECT]], [[WRONG, WRONG], [INFRA]], [[NONE], [NONE]]]
    groups = [
        group(
            i, each, problem_id=problems[i].problem_id, purpose=Purpose.EVAL, stage=0, step=0,
            speed=timing(1.5),
        )
        for i, each in enumerate(rows)
    ]  # fmt: skip
    groups[0] = also_by_kernelbench(groups[0])
    result = evaluate_groups(
        groups, problems, stage="eval-0", step=0, version=0, max_turns=2, at=1.0
    )
    result = replace(result, detail={**result.detail, "num_trained_problems": 0})
    root = tmp_path / "eval-x-1"
    file = tmp_path / "x.toml"
    file.write_text(EXPERIMENT)
    make_root(root)
    (root / "experiment.toml").write_text(dump_experiment(load_experiment(file)))
    anyio.run(put, root, [attempt(), *problems, *groups, result])
    return RunPaths(root)


def also_by_kernelbench(made: Group) -> Group:
    """Each answer is correct there, and torch does a quarter of its work."""
    other = OtherVerdict(status=CORRECT, reason="ok", detail="")
    also = {"kernelbench": other}
    return with_turns(
        made, lambda t: replace(t, verdict=replace(t.verdict, torch_share=0.25, also=also))
    )


async def put(root: Path, records: list[Any]) -> None:
    async with open_writer(root, Options()) as writer:
        await writer.put(*records)
        await writer.flush()


def test_the_result_has_the_figures_and_what_repeats_them(paths: RunPaths) -> None:
    write_results(paths, load_experiment(paths.experiment).model, RunConsole(quiet=True))
    result = json.loads((paths.root / "results.json").read_text())
    metrics, counts = result["metrics"], result["counts"]
    assert metrics["pass_at_k"]["1"][0] == metrics["fast_p"]["0"][0] == 0.25
    assert metrics["fast_p"]["1.2"][0] == 0.25
    assert metrics["fast_p"]["1.5"][0] == 0.0
    assert metrics["geomean_correct"][0] == pytest.approx(1.5)
    assert result["best_by_turn"]["1"]["fast_p"]["1"][0] == 0.5
    assert (counts["num_problems"], counts["num_judged_problems"]) == (3, 2)
    assert counts["unjudgeable"] == {"mismatch": 1}
    assert counts["turns_by_status"]["infra_error"] == 1
    assert result["sampling"]["seed"] == 4
    assert result["machine"]["commit"] == "f369244"
    assert result["machine"]["versions"] == {"torch": "2.13"}
    problems = result["suite"]["problems"]
    assert {each["unjudgeable"] for each in problems.values()} == {None, "mismatch"}
    assert all(len(each["sha256"]) == 64 for each in problems.values())
    assert result["judge"]["protocol"] == "forge"
    assert result["judge"]["used"][0]["harness"] == "abc"
    assert result["weights_sha256"] is None
    assert [tuple(each.values()) for each in result["by_protocol"]] == [
        ("forge", "own", True, 0.25, 0.75),
        ("kernelbench", "hybrid", False, 0.5, 0.75),
    ]
    with open_run(paths) as reader:
        text = shown(render_evaluations(load_evaluations(reader)), width=100)
    assert "protocol kernelbench, policy hybrid: 50.0 %, own share of correct 75.0 %" in text
    assert "secret" not in json.dumps(result)


def test_the_store_of_such_a_run_is_of_kind_eval(paths: RunPaths) -> None:
    with open_run(paths) as reader:
        assert reader.value("SELECT kind FROM runs") == "eval"


def test_a_leaderboard_is_one_row_whatever_the_names_are(paths: RunPaths) -> None:
    with open_run(paths) as reader:
        result = load_result(reader, weights_sha256=None)
    assert result is not None
    head, rule, row, *rest = leaderboard(result).splitlines()
    cells = row.replace("\\|", "").count("|")
    assert head.count("|") == rule.count("|") == cells
    assert "a \\| model" in row
    assert "25.0 % (" in row
    assert "1.50x" in row
    assert "pass@1 (kernelbench, hybrid)" in head
    assert "50.0 %, own share 75.0 %" in row
    assert "unjudgeable: 1 mismatch." in " ".join(rest)
    assert "1 turns were lost to faults of the machine" in " ".join(rest)
    text = shown(render_result(result), width=60)
    assert "fast_1.2" in text
    assert "best by 2" in text
    assert "2 x 2" in text
    assert [(row["turns"], row["rollouts"]) for row in result["best_at"]] == [
        (1, 1), (1, 2), (2, 1), (2, 2),
    ]  # fmt: skip


def test_an_untimed_result_has_a_line_for_each_turn_and_no_figure_without_a_value(
    paths: RunPaths,
) -> None:
    with open_run(paths) as reader:
        result = load_result(reader, weights_sha256=None)
    assert result is not None
    for of in [*result["by_turn"].values(), *result["best_by_turn"].values()]:
        of["fast_p"] = {p: value if p == "0" else None for p, value in of["fast_p"].items()}
        of |= {"geomean_correct": None, "geomean_all": None}
    for row in result["best_at"]:
        row |= {"fast_1": None, "fast_1_2": None, "speedup": None}
    result["metrics"] |= {"roofline": None, "geomean_correct": None, "geomean_all": None}
    text = shown(render_result(result), width=60)
    assert "─ row 1" not in text
    assert "roofline" not in text
    assert [line.split("│")[0].strip() for line in text.splitlines() if "best by" in line] == [
        "best by 1", "best by 2"
    ]  # fmt: skip


def test_without_an_evaluation_there_is_no_result(tmp_path: Path) -> None:
    anyio.run(write_run, tmp_path / "toy-1", [attempt()])
    with open_run(tmp_path / "toy-1") as reader:
        assert load_result(reader, weights_sha256=None) is None


LABEL = "1 of 3 problems judged; 2 unjudgeable (1 problem_too_large, 1 reference_failed)"
GOOD, WRONG, NONE = Status.CORRECT, Status.WRONG, Status.UNJUDGEABLE


def played(number: int, rows: list[list[Status]], reason: str = "", **how: Any) -> Group:
    made = group(number + 1, rows, problem_id=problem(number).problem_id, **how)
    if not reason:
        return made
    return with_turns(made, lambda t: replace(t, verdict=replace(t.verdict, reason=reason)))


def run(*, is_partial: bool = True) -> list[Any]:
    """An evaluation of three problems, two of them unjudgeable, and a trained group of each."""
    reasons = ("", Reason.REFERENCE_FAILED, Reason.PROBLEM_TOO_LARGE)
    groups = [
        played(
            number + 10 * (purpose is Purpose.TRAIN),
            [[GOOD], [WRONG]] if not reason else [[NONE], [NONE]],
            reason,
            purpose=purpose,
            stage=0,
            step=0,
        )
        for purpose in (Purpose.EVAL, Purpose.TRAIN)
        for number, reason in enumerate(reasons if is_partial else ("",))
    ]
    problems = [problem(number) for number in (0, 1, 2, 10, 11, 12)]
    evaluated = [each for each in groups if each.purpose is Purpose.EVAL]
    result = evaluate_groups(
        evaluated, problems, stage="eval-0", step=0, version=0, max_turns=1, at=1_000.0
    )
    result = replace(result, detail={**result.detail, "num_trained_problems": 0})
    end = AttemptEnd(attempt=1, ended_at=2_000.0, exit_code=0, reason="done")
    return [attempt(), *problems, *groups, result, end]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    anyio.run(lambda: write_run(tmp_path / "toy-1", run(), texts="plain"))
    return tmp_path / "toy-1"


def test_show_and_status_name_judged_and_unjudgeable_problems(root: Path) -> None:
    data = show.show_run(root)
    text = shown(show.render_show(data))
    assert f"eval-0: {LABEL}" in text
    assert data["evaluations"][0]["pass_at_1"] == 0.5
    with open_run(root) as reader:
        run = load_run_state(reader, now=3_000.0)
    assert (run.evaluation["judged"], run.evaluation["is_judged_in_part"]) == (LABEL, True)
    assert f"latest evaluation: pass@1 50.0 %, {LABEL}" in run.to_lines()


def test_an_evaluation_of_which_all_problems_were_judged_says_so(tmp_path: Path) -> None:
    anyio.run(lambda: write_run(tmp_path / "toy-1", run(is_partial=False), texts="plain"))
    text = shown(show.render_show(show.show_run(tmp_path / "toy-1")))
    assert "eval-0: 1 of 1 problems judged" in text
    assert "unjudgeable" not in text
    with open_run(tmp_path / "toy-1") as reader:
        assert not load_run_state(reader, now=3_000.0).evaluation["is_judged_in_part"]


def test_unjudgeable_problems_are_listed_with_reason_and_an_example(root: Path) -> None:
    with open_run(root) as reader:
        rows = reader.rows("SELECT * FROM v_unjudgeable WHERE purpose = 'eval' ORDER BY reason")
        found = reader.rows(QUERIES["unjudgeable"].sql)
    assert [(r["problem_id"], r["reason"], r["num_turns"], r["example"]) for r in rows] == [
        (problem(2).problem_id, "problem_too_large", 2, "g3.r0.t0"),
        (problem(1).problem_id, "reference_failed", 2, "g2.r0.t0"),
    ]
    assert "unjudgeable" in rows[0]["detail"]
    assert len(found) == 4


def test_training_counts_unjudgeable_turns_as_masked_and_their_problems_apart(root: Path) -> None:
    with open_run(root) as reader:
        step = reader.one("SELECT * FROM v_steps")
        assert (step["num_turns"], step["num_masked"]) == (6, 4)
        assert (step["pass_rate"], step["pass_rate_multi"]) == (0.5, 0.5)
        solved = {row["purpose"]: row for row in reader.rows(PROBLEMS)}["train"]
    assert (solved["num_problems"], solved["num_solved"], solved["num_unjudgeable"]) == (3, 1, 2)


def test_a_message_about_an_evaluation_names_its_denominator(root: Path) -> None:
    assert LABEL in Bests(RunPaths(root)).summary()
