"""Writes the report: queries the run, draws, and writes the page atomically."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from forge.errors import ConfigError, MachineError
from forge.store.layout import write_file
from forge.store.reader import open_run

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from forge.store.layout import RunPaths
    from forge.views.report.contents import Contents

FILE_NAME = "report.html"
MARK = b'<meta name="generator" content="forge report">'
"""Marks a page, near its beginning, as a forge report."""


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
    from forge.views.report.page import render_page

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
    _write(target, page)
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


def _write(target: Path, page: str) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_file(target, page)
    except OSError as error:
        why = error.strerror or error
        words = f"{target}: cannot be written: {why}; --out names another file"
        raise MachineError(words) from error


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
