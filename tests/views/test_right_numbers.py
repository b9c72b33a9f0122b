"""A number that is shown in several places is the same in each: means of steps, open steps, and
evaluations on problems that were trained on.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from forge.commands.status import load_status
from forge.records import Event, GroupStart, Metrics, Purpose, Status
from forge.runner.live.progress import Progress, plain_line
from forge.runner.outlets.notify import Bests
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from forge.tui.screens.run import draw_ladder, figures
from forge.views import run_state
from forge.views.api import open_run as open_api
from forge.views.curves import Curves, load_activity
from forge.views.report.charts import evaluation_chart
from forge.views.report.contents import Contents
from forge.views.runs import load_run, render_runs
from forge.views.show import load_show, render_show
from forge.views.sql import QUERIES
from tests.store.storefactory import attempt, evaluation, group, problem, write_run
from tests.views.terminals import shown

PARTS = {
    "num_shared_problems": 2,
    "by_source": {
        "made": {"num_problems": 20, "pass_at_1": 0.97},
        "my bench": {"num_problems": 32, "pass_at_1": 0.0},
    },
    "by_level": {
        "made 1": {"num_problems": 16, "pass_at_1": 1.0},
        "made 2": {"num_problems": 4, "pass_at_1": 0.85},
        "my bench 1": {"num_problems": 32, "pass_at_1": 0.0},
    },
}
"""Part of the detail of an evaluation whose single number is true of neither source."""
CORRECT, WRONG = [Status.CORRECT], [Status.WRONG]


@pytest.fixture
def live(tmp_path: Path) -> RunPaths:
    """A run in step 2: one of its groups has finished, with a reward of 0.8, and one is played.

    Step 1 has ended, with a mean reward of 0.425 and a pass rate of 0.25.
    """
    data = {"stage": 1, "groups_per_step": 4}
    playing = GroupStart(
        group_id=3, problem_id="softmax-0000", purpose=Purpose.TRAIN, stage=1, step=2
    )
    seen = {**evaluation("eval-0").detail, "num_trained_problems": 1, **PARTS}
    records = [
        attempt(),
        problem(),
        Event(at=1.0, kind="stage_start", message="grpo-1", data=data),
        replace(evaluation("grpo-1@1", step=1), detail=seen),
        group(0, [CORRECT, WRONG], stage=1, step=1),
        group(1, [WRONG, WRONG], stage=1, step=1),
        Metrics(stage=1, step=1, at=2.0, values={"rollout/groups/count": 2.0}),
        Metrics(stage=1, step=1, at=3.0, values={"train/loss/mean": 1.0}),
        group(2, [CORRECT, CORRECT], stage=1, step=2),
        playing,
        group(3, [CORRECT], stage=1, step=2).trajectories[0].turns[0],
    ]
    paths = RunPaths(tmp_path / "toy-1")
    anyio.run(write_run, paths.root, records)
    return paths


def status_text(paths: RunPaths) -> str:
    return shown(load_status(paths).render())


def status_json(paths: RunPaths) -> str:
    return json.dumps(load_status(paths).to_json())


def show_text(paths: RunPaths) -> str:
    with open_run(paths) as reader:
        return shown(render_show(load_show(reader)))


def show_json(paths: RunPaths) -> str:
    with open_run(paths) as reader:
        return json.dumps(load_show(reader))


def progress_of(paths: RunPaths) -> Progress:
    with open_run(paths) as reader:
        return Progress(
            run="toy-1", num_stages=2, played=run_state.load_played_steps(reader, stage=1)
        )


def console(paths: RunPaths) -> str:
    return plain_line(progress_of(paths))


def status_file(paths: RunPaths) -> str:
    return json.dumps(progress_of(paths).snapshot())


def monitor(paths: RunPaths) -> str:
    with open_run(paths) as reader:
        run, activity = run_state.load_run_state(reader, now=9.0), load_activity(reader, now=9.0)
    return figures(run, activity).plain


def report(paths: RunPaths) -> str:
    with open_run(paths) as reader:
        contents = Contents(reader)
    return json.dumps([contents.missing, contents.headline, contents.cards, contents.tables()])


def views(paths: RunPaths) -> str:
    with open_api(paths) as run:
        return json.dumps([run.steps(), run.rows("SELECT * FROM v_evaluations")])


OPEN: dict[Callable[[RunPaths], str], str] = {
    status_text: "step 2 open (1 of 4 groups)",
    show_text: "step 2 open (1 of 4 groups)",
    console: "step 2 open (1 of 4 groups)",
    monitor: "step 2 open 1/4 groups",
    report: "grpo-1, step 2: open (1 of 4 groups), so in no curve",
    status_json: '"open_steps": [{"step": 2, "num_groups": 1, "num_expected_groups": 4}]',
    show_json: '"open_steps": [{"step": 2, "num_groups": 1, "num_expected_groups": 4}]',
    status_file: '"open_steps": [{"step": 2, "num_groups": 1, "num_expected_groups": 4}]',
    views: '"step": 2, "is_open": 1, "num_groups": 1, "num_expected_groups": 4',
}
"""Place to its words about the open step."""


@pytest.mark.parametrize("place", OPEN, ids=lambda place: place.__name__)
def test_every_place_shows_the_last_finished_step_and_the_open_one(
    place: Callable[[RunPaths], str], live: RunPaths
) -> None:
    text = place(live)
    assert OPEN[place] in text
    assert "0.425" in text
    if place in (status_text, status_json, show_text, console, monitor):
        assert not re.search(r"(?<!\d)0\.8(?!\d)", text)  # a rate may be 610.88


def test_an_open_step_is_no_point_of_a_curve(live: RunPaths) -> None:
    with open_run(live) as reader:
        curves = {curve.name: curve for curve in Curves().read(reader)}
        contents = Contents(reader)
    charts = {chart.name: chart for chart in contents.drawn}
    assert (curves["reward"].steps, curves["reward"].values) == ((1,), pytest.approx((0.425,)))
    assert curves["pass rate"].values == (0.25,)
    for name in ("reward", "pass-rate", "levels", "reward-terms"):
        lines = [line for line in charts[name].lines if not line.is_points]  # of evaluations
        assert {row[0] for line in lines for row in line.rows} == {1}, name


def test_a_curve_gets_its_point_when_the_last_group_ends(live: RunPaths) -> None:
    with open_run(live) as reader:
        curves = Curves()
        curves.read(reader)
        batch = Metrics(stage=1, step=2, at=4.0, values={"rollout/groups/count": 2.0})
        anyio.run(write_run, live.root, [batch])
        assert curves.read(reader)[0].steps == (1,)  # a group of it is still played
        anyio.run(write_run, live.root, [group(3, [CORRECT, WRONG], stage=1, step=2)])
        reward = curves.read(reader)[0]
    assert (reward.steps, reward.values) == ((1, 2), pytest.approx((0.425, 2.7 / 4)))


def runs_table(paths: RunPaths) -> str:
    return shown(render_runs([load_run(paths)]))


def notification(paths: RunPaths) -> str:
    return Bests(paths).summary()


def monitor_of_all(paths: RunPaths) -> str:
    return json.dumps([load_run(paths)["last_evaluation"]["short"], ladder(paths)])


def ladder(paths: RunPaths) -> str:
    with open_run(paths) as reader:
        rungs = run_state.load_ladder(reader, [{"kind": "eval"}, {"kind": "grpo"}], is_running=True)
    return draw_ladder(rungs, {}, width=70).plain


def named_query(paths: RunPaths) -> str:
    with open_run(paths) as reader:
        return json.dumps(reader.rows(QUERIES["evaluations"].sql, {}))


def charts(paths: RunPaths) -> str:
    with open_run(paths) as reader:
        contents = Contents(reader)
    lines = [*evaluation_chart(contents.evaluations).lines]
    lines += [
        line for chart in contents.charts["trained"] for line in chart.lines if line.is_points
    ]
    return "; ".join(f"{line.label} {[y for _, y, *_ in line.rows]}" for line in lines)


WHOLE = "made 97.0 % (level 1 100.0 %, level 2 85.0 %); my bench 0.0 %"
SHORT = "made 97.0 %; my bench 0.0 %"
PLACES: dict[Callable[[RunPaths], str], str] = {
    status_text: f"pass@1 25.0 %: {WHOLE}",
    status_json: f'"parts": "{WHOLE}"',
    show_text: f"grpo-1@1: pass@1 of {WHOLE}",
    show_json: '"by_source": {"made": {"num_problems": 20, "pass_at_1": 0.97}',
    monitor: f"pass@1 {SHORT}",
    ladder: WHOLE,
    monitor_of_all: SHORT,
    report: WHOLE,
    charts: "evaluated problems [0.25]; evaluated: made [0.97]; evaluated: my bench [0.0]",
    notification: f"(12.5 to 37.5): {WHOLE}",
    runs_table: SHORT,
    named_query: r'"by_source": "{\"made\":0.97,\"my bench\":0.0}"',
    views: r'"by_level": "{\"made 1\":{',
}
"""Place to its words about the parts."""


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_where_sources_differ_the_single_number_is_never_alone(
    place: Callable[[RunPaths], str], live: RunPaths
) -> None:
    assert PLACES[place] in place(live)


def test_levels_of_one_source_have_no_other_name_and_one_level_is_no_part() -> None:
    levels = {"1": {"pass_at_1": 0.6}, "10": {"pass_at_1": 0.1}}
    row = {"by_source": "{}", "by_level": json.dumps(levels), "pass_at_1": 0.35}
    assert run_state.parts_label(row) == "level 1 60.0 %, level 10 10.0 %"
    assert run_state.pass_by_source(row) == "35.0 %"
    assert run_state.parts_label({"by_source": None, "by_level": {"1": levels["1"]}}) == ""
    row |= {"by_source": {"\x1b[2J": levels["1"]}, "by_level": {"\x1b[2J 1": levels["1"]}}
    assert "\x1b" not in run_state.parts_label(row) + run_state.pass_by_source(row)


LABELS: dict[Callable[[RunPaths], str], str] = {
    show_text: "1 of 2, 2 shared",
    show_json: '"num_shared_problems": 2',
    status_text: "trained on 1 of 2, 2 shared",
    status_json: '"trained_on": "1 of 2, 2 shared"',
    monitor: "trained on 1 of 2, 2 shared",
    report: "trained on 1 of 2 problems, 2 shared with training",
    notification: "trained on 1 of 2 problems, 2 shared with training",
    views: '"num_trained_problems": 1, "num_shared_problems": 2',
}


@pytest.mark.parametrize("place", LABELS, ids=lambda place: place.__name__)
def test_an_evaluation_on_trained_problems_says_so(
    place: Callable[[RunPaths], str], live: RunPaths
) -> None:
    assert LABELS[place] in place(live)


def test_the_steps_come_in_order_without_being_asked_to(live: RunPaths) -> None:
    with open_run(live) as reader:
        found = reader.query("SELECT stage, step FROM v_steps").rows
    assert list(found) == sorted(found)
