"""Problems of a path that may hold anything: problem files, rows of every known format, or both.

Called by `forge data build` for held-out problems. The columns of a row tell its format; a row
without the columns of one still is a problem if it has a column of code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from forge.data.directory import find_files
from forge.data.pairs.datasets import BadRow, Unfit
from forge.data.pairs.files import SUFFIXES, rows_of
from forge.data.sources.formats import DEFAULT_ENTRY_POINT, FORMATS, RowProblem
from forge.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS = {
    "kernelbench": ("code", "level", "problem_id"),
    "kernelbook": ("python_code", "entry_point"),
    "tritonforge": ("label", "extra_info"),
    "cuda-agent": ("code", "ops"),
    "drkernel": ("reward_model",),
    "drkernel-coldstart": ("original_python_code",),
}
"""Columns by which rows of each format are known."""
CODE_COLUMNS = ("code", "python_code", "pytorch_code")
"""Columns with the code of a problem, whatever the format."""


def read_mixed(path: Path, *, key: str) -> Iterator[RowProblem]:
    """The problems of a file or of a directory, in order.

    Args:
        key: key that messages name.

    Raises:
        ConfigError: a file that cannot be read or has another suffix, a row without code.
    """
    if not path.is_dir():
        yield from _of_file(path, path.name, key=key)
        return
    rows = [one for suffix in SUFFIXES for one in path.rglob(f"*{suffix}")]
    shown = [one for one in rows if not one.name.startswith(("_", "."))]
    for file in sorted([*find_files(path, include=()), *shown]):
        yield from _of_file(file, file.relative_to(path).as_posix(), key=key)


def _of_file(file: Path, name: str, *, key: str) -> Iterator[RowProblem]:
    if file.suffix == ".py":
        try:
            source = file.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as err:
            raise ConfigError(f"{key}: {file}: cannot be read: {err}") from None
        yield RowProblem(problem_id=name, source=source, family="")
        return
    if file.suffix not in SUFFIXES:
        raise ConfigError(
            f"{key}: {file}: found {file.suffix or 'no suffix'}; *.py, *{', *'.join(SUFFIXES)}"
        )
    for number, row in enumerate(rows_of(file, key=key), start=1):
        place = f"{key}: {file}, row {number}"
        try:
            yield _of_row(row, number=number, name=f"{name}:{number}")
        except (BadRow, Unfit) as err:
            raise ConfigError(f"{place}: {err}") from None


def _of_row(row: Mapping[str, Any], *, number: int, name: str) -> RowProblem:
    for format, columns in COLUMNS.items():
        if all(row.get(column) is not None for column in columns):
            return FORMATS[format](row, number=number)
    found = next((row[one] for one in CODE_COLUMNS if isinstance(row.get(one), str)), None)
    if found is None:
        raise BadRow(f"found columns {', '.join(map(str, row))}; one of {', '.join(CODE_COLUMNS)}")
    entry_point = row.get("entry_point")
    return RowProblem(
        problem_id=name,
        source=found,
        family="",
        entry_point=entry_point if isinstance(entry_point, str) else DEFAULT_ENTRY_POINT,
    )
