"""Writes a report as one HTML page: queries the run, draws, renders, and writes it atomically.

Every value goes through `printable` and jinja2's escaping; only highlighted code and our style
sheet are inserted as they are. A picture is an image within the page, in which nothing can run. The
page has no script and makes no request, and its Content-Security-Policy enforces this in the
browser.
"""

from __future__ import annotations

import sqlite3
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from pygments import highlight
from pygments.formatters.html import HtmlFormatter
from pygments.lexers import get_lexer_by_name

from forge.errors import ConfigError, MachineError
from forge.store.layout import write_file
from forge.store.reader import open_run
from forge.views.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from forge.store.layout import RunPaths
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


FILE_NAME = "report.html"
MARK = b'<meta name="generator" content="forge report">'


def write_report(paths: RunPaths, *, out: Path | None = None, plots: Path | None = None) -> Path:
    """Writes the report of a run and returns its path: `report.html` in the run's directory, or
    `out`.

    A running run is reported as of now, a crashed one as of its last row; missing parts are listed
    in the report. Raises ConfigError if the run cannot be read, MachineError if the files cannot be
    written.

    Args:
        plots: a directory for each picture as SVG and PNG; created if absent.
    """
    from forge.views.report.charts import draw_svg
    from forge.views.report.contents import Contents

    target = out or paths.root / FILE_NAME
    if target.is_dir():
        raise ConfigError(f"--out {target}: is a directory; name a file")
    if out is not None and not _is_ours(target):
        raise ConfigError(f"--out {target}: exists and is not a report; name another file")
    try:
        with open_run(paths) as reader:
            contents = Contents(reader)
    except sqlite3.Error as error:  # half copied, or not the expected tables
        raise ConfigError(f"{paths.run_db}: cannot be read: {error}") from error
    svgs = {chart.name: draw_svg(chart) for chart in contents.drawn}
    page = render_page(contents, name=paths.name, svgs=svgs)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_file(target, page)
    except OSError as error:
        why = error.strerror or error
        words = f"{target}: cannot be written: {why}; --out names another file"
        raise MachineError(words) from error
    if plots is not None:
        _write_plots(plots, contents, svgs)
    return target


def _is_ours(target: Path) -> bool:
    """True if overwriting loses nothing: no file, an empty file or an older report."""
    if not target.is_file():
        return True
    try:
        with target.open("rb") as file:
            head = file.read(1000)
    except OSError:  # the error is reported when the file is written
        return True
    return not head or MARK in head


def _write_plots(folder: Path, contents: Contents, svgs: Mapping[str, str]) -> None:
    from forge.views.report.charts import draw_png

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for chart in contents.drawn:
            (folder / f"{chart.name}.svg").write_text(svgs[chart.name], encoding="utf-8")
            (folder / f"{chart.name}.png").write_bytes(draw_png(chart))
    except OSError as error:
        why = error.strerror or error
        raise MachineError(f"--plots {folder}: cannot be written: {why}") from error
