"""Problems from rows of files, in one of the formats of `formats.py`.

A row that does not match the format is an error, which names file and row; one whose code cannot be
a problem (no Python, no inputs) is left out and counted in the log. Sources are parsed, never run.
"""

from __future__ import annotations

import logging
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from forge.data.directory import parse_source
from forge.data.pairs.datasets import BadRow, Unfit
from forge.data.pairs.files import row_files, rows_of
from forge.data.sources.formats import FORMATS
from forge.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge.data.directory import ProblemFile
    from forge.data.sources.formats import RowProblem

logger = logging.getLogger(__name__)


def read_rows(
    path: Path, *, format: str, include: list[str], key: str = "problems.path"
) -> dict[str, tuple[RowProblem, ProblemFile]]:
    """The problems of a file or a directory of files by their paths, `level1/19_ReLU.py`, in order.

    Args:
        include: glob patterns of ids; empty means all.
        key: key that messages name.

    Raises:
        ConfigError: no such file, a row that does not match the format, or no problem at all.
    """
    found: dict[str, tuple[RowProblem, ProblemFile]] = {}
    left_out: Counter[str] = Counter()
    for place, row in _row_problems(path, format=format, left_out=left_out, key=key):
        name = f"{row.problem_id}.py"
        if include and not any(fnmatchcase(row.problem_id, pattern) for pattern in include):
            continue
        try:
            file = parse_source(row.source, path=Path(name), entry_point=row.entry_point)
        except ConfigError as err:
            left_out[_kind(str(err), name)] += 1
            continue
        if name not in found:
            found[name] = (row, file)
        elif found[name][0].source == row.source:
            left_out["the same again"] += 1
        else:
            raise ConfigError(f"{place}: {row.problem_id}: another row has this id")
    words = ", ".join(f"{count} {reason}" for reason, count in left_out.most_common())
    if not found:
        patterns = f" that matches {', '.join(include)}" if include else ""
        raise ConfigError(
            f'{key}: {path}: no problem{patterns} in format "{format}"'
            + (f"; left out: {words}" if words else "")
        )
    logger.info("%d problems from %s; left out %s", len(found), path, words or "none")
    return found


def _row_problems(
    path: Path, *, format: str, left_out: Counter[str], key: str
) -> Iterator[tuple[str, RowProblem]]:
    """Place and problem of each row."""
    to_problem = FORMATS[format]
    for file in row_files(path, key=key):
        for number, row in enumerate(rows_of(file, key=key), start=1):
            place = f'{key}: {file}, row {number} ("{format}")'
            try:
                yield place, to_problem(row, number=number)
            except Unfit as reason:
                left_out[str(reason)] += 1
            except BadRow as err:
                raise ConfigError(f"{place}: {err}") from None


def _kind(message: str, name: str) -> str:
    """Reason of a source that is no problem, without place and details."""
    reason = message.removeprefix(name).lstrip(":0123456789 ")
    return "that are no Python" if reason.startswith("no Python") else reason.split(";")[0]
