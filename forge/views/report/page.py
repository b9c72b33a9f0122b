"""Renders facts as one HTML page. Texts of models and candidates are escaped.

Every value goes through `printable` and jinja2's escaping; only pictures, highlighted code and our
style sheet are inserted as they are. The page has no script and makes no request, and its
Content-Security-Policy enforces this in the browser.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from pygments import highlight
from pygments.formatters.html import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.styles import get_style_by_name

from forge.views.report.contents import describe, describe_samples, tables
from forge.views.report.draw import GRID, INK, PAPER, SERIES, inline_svg
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge.views.report.charts import Chart
    from forge.views.report.facts import Facts

LONGEST_CODE = 20_000
"""Maximum characters of one source, which bounds the lexer's time."""
LONGEST_ANSWER = 8_000
"""Maximum characters of an answer in the pair of transcripts."""
COLORS = {INK: "var(--ink)", GRID: "var(--line)", PAPER: "var(--paper)"} | {
    color: f"var(--s{index})" for index, color in enumerate(SERIES)
}
CONTENTS = (
    ("summary", "Summary"),
    ("setup", "Set-up"),
    ("evaluations-part", "Evaluations"),
    ("training", "Training"),
    ("example", "Before and after"),
    ("kernels", "Best kernels"),
    ("failures-part", "Failures"),
    ("rollouts", "Rollouts"),
    ("time", "Time"),
    ("events", "What happened"),
    ("config", "Configuration"),
)
_LIGHT, _DARK = "default", "github-dark"


def render_page(facts: Facts, *, name: str, svgs: Mapping[str, str]) -> str:
    """The whole document.

    Args:
        svgs: name of each chart of the facts to its document by `draw_svg`.
    """
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=_shown, trim_blocks=True
    )
    template = environment.from_string(_read("page.html.jinja"))

    def pictures(charts: list[Chart]) -> list[dict[str, Any]]:
        return [_picture(chart, svgs[chart.name]) for chart in charts if not chart.is_empty]

    return template.render(
        name=name,
        css=Markup(_read("page.css") + _code_css()),
        contents=CONTENTS,
        measured=pictures(facts.measured),
        trained=pictures(facts.trained),
        trained_more=pictures(facts.trained_more),
        example=_example(facts),
        failures=pictures([facts.failures]),
        timed=pictures(facts.timed),
        missing=facts.missing,
        num_turns=facts.num_turns,
        state=facts.state,
        config=_highlight(facts.config, "toml"),
        diff=_highlight(facts.diff, "diff"),
        samples=describe_samples(facts),
        **describe(facts),
        **tables(facts),
    )


def _shown(value: Any) -> Any:
    """jinja2's `finalize`: makes control characters of each value visible."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return printable(value)


def _picture(chart: Chart, document: str) -> dict[str, Any]:
    svg = inline_svg(
        document, name=chart.name, title=chart.title, description=chart.describe(), colors=COLORS
    )
    head, rows = chart.table()
    return {
        "name": chart.name,
        "title": chart.title,
        "note": chart.caption,
        "svg": Markup(svg),
        "head": head,
        "rows": rows,
        "num_left_out": chart.num_rows - len(rows),
    }


def _example(facts: Facts) -> dict[str, Any] | None:
    """The pair of transcripts for the page; None without one."""
    pair = facts.before_after
    if pair is None:
        return None
    return {
        "problem": pair.before["problem_id"],
        "source": _highlight(pair.before["source"], "python"),
        "sides": [
            _side(f"Before {pair.by}", pair.before), _side(f"After {pair.by}", pair.after),
        ],
    }  # fmt: skip


def _side(title: str, row: Mapping[str, Any]) -> dict[str, Any]:
    verdict = row["status"] if row["status"] == "correct" else f"{row['status']} ({row['reason']})"
    if row["speedup"] is not None:
        verdict += f", {row['speedup']:.2f} times as fast"
    return {
        "title": title,
        "about": f"{row['turn_id']} in {row['stage']}; {row['rate']} first answers correct",
        "verdict": verdict,
        "is_correct": row["status"] == "correct",
        "answer": _highlight(row["completion"][:LONGEST_ANSWER], "markdown"),
        "feedback": "" if row["status"] == "correct" else row["feedback"] or row["detail"] or "",
    }


def _highlight(text: str | None, language: str) -> Markup | str:
    """The text with spans for its tokens, escaped by pygments; empty for no text."""
    if not text:
        return ""
    lexer = get_lexer_by_name(language, stripnl=False)
    formatter = HtmlFormatter(nowrap=True, classprefix="h-")
    return Markup(highlight(printable(text[:LONGEST_CODE]), lexer, formatter))


@cache
def _code_css() -> str:
    light, dark = (
        "\n".join(
            line
            for line in HtmlFormatter(style=get_style_by_name(style), classprefix="h-")
            .get_style_defs(".code")
            .splitlines()
            if line.startswith(".code .")
        )
        for style in (_LIGHT, _DARK)
    )
    return f"{light}\n@media screen and (prefers-color-scheme: dark) {{\n{dark}\n}}\n"


def _read(name: str) -> str:
    return files("forge.views.report").joinpath(name).read_text(encoding="utf-8")
