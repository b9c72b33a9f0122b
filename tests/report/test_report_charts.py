"""Charts as data and as SVG, and the gains, bands and answers of a run."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from forge.records import Metrics, Purpose, Status
from forge.store.reader import open_run
from forge.views.report.charts import (
    MOST_TABLE_ROWS,
    Chart,
    Line,
    draw_svg,
    label,
)
from forge.views.report.contents import Contents
from forge.views.statistics import evaluate_groups
from forge.views.text.numbers import grouped
from tests.report.made_runs import make_run
from tests.store.storefactory import attempt, evaluation, group, problem, small_run


def chart(*lines: Line, **keys: object) -> Chart:
    given = {"name": "c", "title": "T", "x_label": "step", "y_label": "y", "lines": lines}
    return Chart(**{**given, **keys})


def test_a_long_table_leaves_rows_out_evenly_and_counts_them() -> None:
    made = chart(Line(label="a", x=range(300), y=[float(i) for i in range(300)]))
    head, rows = made.table()
    assert head == ["step", "a"]
    assert (len(rows), rows[0], rows[-1]) == (MOST_TABLE_ROWS, ["0", "0"], ["299", "299"])
    assert made.num_rows == 300


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (12.0, "12"),
        (12_300.0, "12,300"),
        (0.03125, "0.0312"),
        (3.21e-5, "3.21e-05"),
        (-2.5, "-2.5"),
    ],
)
def test_numbers_have_three_digits(value: float, shown: str) -> None:
    assert grouped(value) == shown


@pytest.mark.parametrize("has_names", [False, True])
def test_lines_and_points_are_drawn_with_any_label(has_names: bool) -> None:
    words = label("</text><script>x</script> $\\frac{1}{0}$ 漢字 & _")
    lines = [
        Line(label=f"{i} {words}", x=[0, 1], y=[0.2, 0.4], low=[0.1, None], high=[0.3, None],
             is_points=i % 2 == 0)
        for i in range(9)
    ]  # fmt: skip
    document = draw_svg(chart(*lines, names=(words, words) if has_names else ()))
    texts = [each.text for each in ET.fromstring(document).iter() if each.tag.endswith("}text")]
    assert any(words in (text or "") for text in texts)


SOLVED, FAILED = [[Status.CORRECT]] * 4, [[Status.WRONG]] * 4


def contents_of(root: Path, records: list) -> Contents:
    with open_run(make_run(root, records)) as reader:
        return Contents(reader)


def evaluated(stage: int, statuses: list, *, first_id: int, num: int = 12) -> list:
    """An evaluation stage on `num` problems with these statuses for each."""
    step = stage
    groups = [
        group(
            first_id + i, statuses, purpose=Purpose.EVAL, stage=stage, step=step,
            problem_id=f"softmax-{i:04d}",
        )
        for i in range(num)
    ]  # fmt: skip
    return [*groups, evaluation(f"eval-{stage}", step=step, at=stage)]


@pytest.fixture
def trained(tmp_path: Path) -> Contents:
    """Twelve problems: none solved before one step of GRPO, all after it."""
    steps = [
        group(100 + i, SOLVED if i < 2 else FAILED, stage=1, step=1, problem_id=f"softmax-{i:04d}")
        for i in range(4)
    ]
    metrics = Metrics(stage=1, step=1, values={"train/loss/mean": 0.1}, at=5.0)
    problems = [problem(i) for i in range(12)]
    before, after = evaluated(0, FAILED, first_id=1), evaluated(2, SOLVED, first_id=200)
    return contents_of(tmp_path / "r-1", [attempt(), *problems, *before, *steps, metrics, *after])


def test_a_gain_is_paired_by_problem_and_has_an_interval(trained: Contents) -> None:
    (gain,) = trained.gains
    assert (gain.before, gain.after, gain.estimate.num_problems) == ("eval-0", "eval-2", 12)
    assert gain.by == ("grpo-1",)
    assert gain.is_clear
    assert gain.points() == "+100.0 points (95 %: +100.0 to +100.0)"
    (_, _, about), *_ = trained.cards
    assert "grpo-1 +100.0 points (95 %: +100.0 to +100.0)" in about


def test_the_pair_of_answers_is_of_one_problem(trained: Contents) -> None:
    pair = trained.before_after
    assert pair["before"]["problem_id"] == pair["after"]["problem_id"]
    assert (pair["before"]["status"], pair["after"]["status"]) == ("wrong", "correct")
    assert (pair["before"]["rate"], pair["after"]["rate"]) == ("0 of 4", "4 of 4")


def test_the_pass_rate_has_points_of_held_out_problems(trained: Contents) -> None:
    chart = next(each for each in trained.charts["trained"] if each.name == "pass-rate")
    (points,) = [line for line in chart.lines if line.is_points]
    assert list(points.x) == [0, 1]
    assert points.low[0] is not None


def test_the_reward_has_a_band_over_the_groups_of_a_step(trained: Contents) -> None:
    chart = next(each for each in trained.charts["trained"] if each.name == "reward")
    (line,) = chart.lines
    low, mean, high = line.low[0], line.y[0], line.high[0]
    assert low is not None
    assert mean is not None
    assert high is not None
    # two groups of 0.8, two of 0.3: the standard error of the mean is 0.5 / sqrt(12)
    assert mean == pytest.approx(0.55)
    assert (high - low) / 4 == pytest.approx(0.5 / 12**0.5)


def test_without_a_later_correct_answer_there_is_no_pair(tmp_path: Path) -> None:
    contents = contents_of(tmp_path / "s-1", small_run())
    assert contents.before_after is None


def test_the_best_of_n_is_a_curve_over_tokens_for_each_number_of_turns(tmp_path: Path) -> None:
    right, wrong = Status.CORRECT, Status.WRONG
    played = group(
        0, [[wrong, right], [wrong, wrong], [right]], purpose=Purpose.EVAL, stage=0, step=0
    )
    result = evaluate_groups(
        [played], [problem()], stage="eval-0", step=0, version=0, max_turns=2, at=1.0
    )
    paths = make_run(tmp_path / "t-1", [attempt(), problem(), played, result])
    with open_run(paths) as reader:
        charts = {each.name: each for each in Contents(reader).drawn}
    one, two = charts["best-at"].lines
    assert (one.label, two.label) == ("up to 1 turn", "up to 2 turns")
    assert list(one.x) == [12.0, 24.0, 36.0]
    assert list(one.y) == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert list(two.y) == pytest.approx([2 / 3, 1.0, 1.0])
