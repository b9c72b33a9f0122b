"""Charts as data, and their SVG embedded in a page."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import pytest

from forge.views.report.asking import label
from forge.views.report.charts import (
    MOST_POINTS,
    MOST_TABLE_ROWS,
    Chart,
    Kind,
    Line,
    make_line,
)
from forge.views.report.draw import INK, draw_svg, inline_svg
from forge.views.text.numbers import grouped


def chart(*lines: Line, **keys: object) -> Chart:
    given = {"name": "c", "title": "T", "x_label": "step", "y_label": "y", "lines": lines}
    return Chart(**{**given, **keys})


def test_a_long_line_keeps_its_mean_its_end_and_its_gaps() -> None:
    points = [(float(i), None if i < 500 else float(i)) for i in range(10_000)]
    line = make_line("a", points)
    assert len(line.x) <= MOST_POINTS
    assert line.x[-1] == 9_999
    assert line.y[0] is None
    assert "A point stands for 25 steps" in chart(line).caption
    kept = [y for y in line.y if y is not None]
    assert math.fsum(kept) / len(kept) == pytest.approx((500 + 9_999) / 2, rel=0.001)


def test_a_line_of_the_best_keeps_its_peak() -> None:
    points = [(float(i), 7.0 if i == 4_321 else 1.0) for i in range(10_000)]
    assert max(y for _, y in make_line("best", points, reduce=max).points) == 7.0


def test_small_shares_have_ticks_at_even_distances() -> None:
    """17.5 and 12.5, rounded to 18 and 12, would not be even."""
    made = chart(Line(label="a", x=[1, 2, 3], y=[0.0, 0.167, 0.0]), is_share=True)
    assert ">17.5%<" in draw_svg(made)


def test_a_number_that_is_not_finite_is_a_gap() -> None:
    line = make_line("a", [(1.0, math.nan), (2.0, math.inf), (3.0, 1.0)])
    assert line.points == [(3.0, 1.0)]


def test_a_long_table_leaves_rows_out_evenly_and_counts_them() -> None:
    made = chart(Line(label="a", x=range(300), y=[float(i) for i in range(300)]))
    head, rows = made.table()
    assert head == ["step", "a"]
    assert (len(rows), rows[0], rows[-1]) == (MOST_TABLE_ROWS, ["0", "0"], ["299", "299"])
    assert made.num_rows == 300


def test_a_table_has_intervals_and_names() -> None:
    line = Line(label="pass@1", x=[0, 1], y=[0.25, None], low=[0.1, None], high=[0.4, None])
    made = chart(line, kind=Kind.DOTS, names=("eval-0", "eval-2"), is_share=True)
    assert made.table()[1] == [["eval-0", "25.0 % (10.0 % to 40.0 %)"], ["eval-2", "–"]]
    assert made.describe() == "T: y by step. pass@1: eval-0 25.0 %."


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


def test_any_label_is_printable() -> None:
    assert label("_hidden") == " _hidden"
    assert label("a\x1b[2J\nb\ufffe") == "a␛[2J␊b\ufffd"
    assert len(label("x" * 500)) == 48


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_is_drawn_with_any_label(kind: Kind) -> None:
    words = label("</text><script>x</script> $\\frac{1}{0}$ 漢字 & _")
    lines = [Line(label=f"{i} {words}", x=[0, 1], y=[0.2, 0.4]) for i in range(9)]
    made = chart(*lines, kind=kind, names=(words, words) if kind in ("dots", "bars") else ())
    document = draw_svg(made)
    assert document == draw_svg(made)
    texts = [each.text for each in ET.fromstring(document).iter() if each.tag.endswith("}text")]
    assert any(words in (text or "") for text in texts)


def test_a_picture_of_a_page_has_ids_and_colours_of_the_page() -> None:
    line = Line(label="a", x=[0, 1], y=[0.2, 0.4])
    svg = inline_svg(
        draw_svg(chart(line)), name="one", title="<b>", description="&", colors={INK: "var(--ink)"}
    )
    ids = set(re.findall(r' id="([^"]+)"', svg))
    assert all(each.startswith("one-") for each in ids)
    for used in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg):
        assert "".join(used) in ids
    assert INK not in svg
    assert "var(--ink)" in svg
    assert '<title id="one-title">&lt;b&gt;</title><desc id="one-words">&amp;</desc>' in svg
    assert "DejaVu" not in svg
    assert "<style" not in svg
