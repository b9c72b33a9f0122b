"""Problems of one source that is no generator: files of a directory, or rows of a file.

Called by `forge/data/problems.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from forge.data.directory import find_mistakes, read_directory, to_problem
from forge.data.overrides import Overrides
from forge.data.shapes import values_by_shape
from forge.data.sources.rows import read_rows
from forge.errors import ConfigError
from forge.records import Split

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.config.schema import SourceTable
    from forge.data.directory import ProblemFile
    from forge.data.sources.formats import RowProblem
    from forge.records import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFiles:
    """Parsed problem files of one source, wherever their text comes from."""

    root: Path
    """Directory that ids are relative to; "." for rows."""
    files: Sequence[ProblemFile]
    rows: Mapping[str, RowProblem]
    """Facts of rows, by the path of their file; empty for a directory."""
    mistakes: Sequence[str] = ()
    """A line for each file that is no problem."""

    names: Sequence[str] = field(init=False)
    """Paths of the files below the root."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", [self.name_of(file) for file in self.files])

    def name_of(self, file: ProblemFile) -> str:
        """Path of one of the files below the root."""
        return file.path.relative_to(self.root).as_posix()

    def to_problem(
        self, file: ProblemFile, *, overrides: Overrides, shapes: Sequence[Overrides], split: Split
    ) -> Problem:
        """The problem in a file, with its constants and shapes."""
        name, names = self.name_of(file), self.names  # not made here: there may be thousands
        values = values_by_shape(shapes, name, constants=file.constants, among=names)
        own = overrides.of(name, among=names)
        made = to_problem(file, root=self.root, overrides=own, shapes=values, split=split)
        if (row := self.rows.get(name)) is None:
            return made
        return replace(made, family=row.family, level=row.level, entry_point=row.entry_point)


def read_source(table: SourceTable, *, key: str = "problems.") -> SourceFiles:
    """The problem files of a directory or of rows. Raises ConfigError, which names keys below
    `key`."""
    if table.source == "dir":
        files, mistakes = read_directory(table.path, include=table.include, key=key)
        assert table.path is not None
        return SourceFiles(root=table.path, files=files, rows={}, mistakes=mistakes)
    if table.path is None:
        raise ConfigError(f'{key}path: missing; source = "file" needs one')
    found = read_rows(table.path, format=table.format, include=table.include, key=f"{key}path")
    return SourceFiles(
        root=Path(),
        files=[file for _, file in found.values()],
        rows={name: row for name, (row, _) in found.items()},
    )


def load_source(table: SourceTable, *, key: str = "problems.") -> list[Problem]:
    """The problems of a directory or of rows, in order; none is held out yet.

    Raises:
        ConfigError: unreadable or incomplete sources, overrides of constants that no file has.
    """
    source = read_source(table, key=key)
    overrides = Overrides.from_table(table.overrides)
    shapes = [Overrides.from_table(shape) for shape in table.shapes or []]
    checked = {f"{key}overrides.": overrides}
    checked |= {f"{key}shapes.{number}.": shape for number, shape in enumerate(shapes)}
    mistakes = [*source.mistakes] + [
        line
        for prefix, values in checked.items()
        for line in find_mistakes(values, source.files, root=source.root, prefix=prefix)
    ]
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return [
        source.to_problem(file, overrides=overrides, shapes=shapes, split=Split.GRPO)
        for file in source.files
    ]
