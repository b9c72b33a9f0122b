"""The problems that answers are judged against: one file, a directory, or a file of rows.

Called by `files.py` for `forge judge`, and by `forge.api`. Each file is parsed once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from forge.commands.judge.overrides import check_overrides
from forge.config.schema.problems import SourceTable
from forge.data.directory import find_files, parse_file, to_problem
from forge.data.overrides import Overrides, find_problem
from forge.data.pairs.files import SUFFIXES
from forge.data.shapes import values_by_shape
from forge.data.sources.loading import SourceFiles, read_source
from forge.errors import ConfigError
from forge.records import Problem, Split

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from forge.config.schema.problems import RowFormat
    from forge.data.directory import ProblemFile

NO_OVERRIDES = Overrides()


class KnownProblems:
    """Problem files by name."""

    def __init__(
        self, path: Path, *, chosen: str | None = None, format: RowFormat = "kernelbench"
    ) -> None:
        """Lists the problems at `path`. Raises ConfigError.

        Args:
            chosen: name of the one problem that all candidates answer.
            format: columns of a file of rows.
        """
        self._given = path
        self._chosen = chosen
        self._folder = path if path.is_dir() else path.parent
        self._rows: SourceFiles | None = None
        self._parsed: dict[str, ProblemFile] = {}
        self._files: dict[str, ProblemFile] = {}
        if path.suffix in SUFFIXES and not path.is_dir():
            self._rows = read_row_problems(path, format)
            self._folder = self._rows.root
            paths = [file.path for file in self._rows.files]
            self._parsed = dict(zip(self._rows.names, self._rows.files, strict=True))
        else:
            paths = find_files(path, include=()) if path.is_dir() else [path]
        self._known = {each.relative_to(self._folder).as_posix(): each for each in paths}
        self._names = list(self._known)

    @property
    def names(self) -> Sequence[str]:
        """Paths of all problems below their folder."""
        return self._names

    def file(self, candidate: str) -> ProblemFile:
        """The problem that a candidate answers. Raises ConfigError."""
        is_one = self._chosen is None and not holds_several(self._given)
        name = self._names[0] if is_one else self._find(self._chosen or candidate)
        if name not in self._files:
            is_row = self._rows is not None
            self._files[name] = self._parsed[name] if is_row else parse_file(self._known[name])
        return self._files[name]

    def problem(
        self,
        file: ProblemFile,
        *,
        overrides: Overrides = NO_OVERRIDES,
        shapes: Sequence[Overrides] = (),
        precision: str = "fp32",
    ) -> Problem:
        """The problem in a file, with its constants and precision. Raises ConfigError."""
        if self._rows is not None:
            made = self._rows.to_problem(
                file, overrides=overrides, shapes=shapes, split=Split.HELDOUT
            )
            return replace(made, precision=precision)
        name = file.path.relative_to(self._folder).as_posix()
        made = to_problem(
            file,
            root=self._folder,
            overrides=overrides.of(name, among=self._names),
            shapes=values_by_shape(shapes, name, constants=file.constants, among=self._names),
            split=Split.HELDOUT,
        )
        return replace(made, precision=precision)

    def check(self, overrides: Overrides, shapes: Sequence[Overrides]) -> None:
        """Raises ConfigError for overrides and shapes without effect."""
        files = list(self._files.values())
        check_overrides(overrides, shapes, files, root=self._folder, among=self._names)

    def _find(self, name: str) -> str:
        found = find_problem(name, self._names)
        if found is None:
            option = "--problem " if self._chosen is not None else ""
            raise ConfigError(
                f"{option}{name}: {self._given} has no single problem of this name or number"
            )
        return found


def read_row_problems(path: Path, format: RowFormat) -> SourceFiles:
    """The problems in a file of rows. Raises ConfigError."""
    return read_source(SourceTable(source="file", path=path, format=format), key="")


def holds_several(problem: Path) -> bool:
    """True for a directory of problems, or a file of rows."""
    return problem.is_dir() or problem.suffix in SUFFIXES
