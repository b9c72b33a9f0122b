"""Renders contents as one HTML page. Texts of models and candidates are escaped.

Every value goes through `printable` and jinja2's escaping; only highlighted code and our style
sheet are inserted as they are. A picture is an image within the page, in which nothing can run. The
page has no script and makes no request, and its Content-Security-Policy enforces this in the
browser.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from pygments import highlight
from pygments.formatters.html import HtmlFormatter
from pygments.lexers import get_lexer_by_name

from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge.views.report.charts import Chart
    from forge.views.report.contents import Contents

LONGEST_CODE = 20_000
"""Maximum characters of one source, which bounds the lexer's time."""
LONGEST_ANSWER = 8_000
"""Maximum characters of an answer in the pair of transcripts."""


def render_page(contents: Contents, *, name: str, svgs: Mapping[str, str]) -> str:
    """The whole document.

    Args:
        svgs: name of each chart of the contents to its document by `draw_svg`.
    """
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=_shown, trim_blocks=True
    )
    environment.globals |= {"highlight": _highlight, "longest": LONGEST_ANSWER}
    charts = {
        part: [_picture(chart, svgs[chart.name]) for chart in each if not chart.is_empty]
        for part, each in contents.charts.items()
    }
    return environment.from_string(_read("page.html.jinja")).render(
        name=name, css=Markup(_read("page.css") + _code_css()), run=contents,
        samples=contents.samples, example=contents.before_after, **charts, **contents.tables(),
    )  # fmt: skip


def _shown(value: Any) -> Any:
    """jinja2's `finalize`: makes control characters of each value visible."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return printable(value)


def _picture(chart: Chart, document: str) -> dict[str, Any]:
    head, rows = chart.table()
    return {
        "chart": chart, "url": f"data:image/svg+xml,{quote(document)}", "head": head, "rows": rows,
        "num_left_out": chart.num_rows - len(rows),
    }  # fmt: skip


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
            for line in HtmlFormatter(style=style, classprefix="h-")
            .get_style_defs(".code")
            .splitlines()
            if line.startswith(".code .")
        )
        for style in ("default", "github-dark")
    )
    return f"{light}\n@media screen and (prefers-color-scheme: dark) {{\n{dark}\n}}\n"


def _read(name: str) -> str:
    return files("forge.views.report").joinpath(name).read_text(encoding="utf-8")
