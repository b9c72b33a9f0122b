"""The source `rows:PATH` of a harvest: problems of KernelBook and of all other rows that
`[problems] format` reads.

A row whose class is not `Model`, or whose arguments are named, becomes a problem in KernelBench's
layout; any other stays as it is. What else a row has, such as an answer, is not read.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from forge.data.harvest.arguments import case_text, level_of, tried
from forge.data.harvest.closure import Closure, CodeFile, Library, NotSelfContained
from forge.data.harvest.records import Found, Rejected
from forge.data.pairs.rows import BadRow, Unfit, hash_rows, row_files, rows_of
from forge.data.sources.loading import RowProblem, row_problem
from forge.errors import ConfigError

KEY = "SOURCE: rows"
LICENCES = ("licenses", "licence", "license")
"""Columns with the licences of a row's code."""


class ProblemRows:
    """Files of rows. A unit is a file."""

    def __init__(self, path: Path, *, name: str) -> None:
        """Raises ConfigError for a path without rows."""
        self.name = name
        root = path if path.is_dir() else path.parent
        files = row_files(path, key=KEY)
        self._files = {file.relative_to(root).as_posix(): file for file in files}

    def facts(self) -> dict[str, Any]:
        """A hash of the files. Raises ConfigError for one that cannot be read."""
        hasher = hashlib.sha256()
        for unit, path in self._files.items():
            hasher.update(f"{unit}\0{hash_rows(path, key=KEY)}".encode())
        return {"source": self.name, "files": len(self._files), "sha256": hasher.hexdigest()}

    def units(self) -> Sequence[str]:
        return list(self._files)

    def read(self, unit: str) -> Iterator[Found | Rejected]:
        """The problems of a file. Raises ConfigError for a file that is not whole."""
        for number, row in enumerate(rows_of(self._files[unit], key=KEY), start=1):
            origin = place = f"{unit.rpartition('.')[0]}/{number}"
            try:
                problem = row_problem(row, number=number, name=origin)
            except (BadRow, Unfit) as error:
                detail = str(error)
                yield Rejected(origin=origin, kind=self.name, reason="broken row", detail=detail)
                continue
            if repository := row.get("repo_name"):  # its rows stay on one side of a split
                origin = f"{repository}:{place.replace(':', '-')}"
            yield tried(_problem, row, problem, origin=origin, kind=problem.family or self.name)


def _problem(row: Mapping[str, Any], problem: RowProblem, *, origin: str, kind: str) -> Found:
    try:
        file = CodeFile(problem.source, module="row")
    except (SyntaxError, ValueError, MemoryError):
        raise NotSelfContained("no Python") from None
    text, name = problem.source, problem.entry_point
    given, inputs = _returned(file, "get_init_inputs"), _returned(file, "get_inputs")
    if name != "Model" or _pair(given) or "_paritybench_helpers" in text:
        if not isinstance(inputs, ast.List):
            raise NotSelfContained("unknown form of get_inputs")
        made = _pair(given) or (getattr(given, "elts", []), {})
        closure = Closure(Library(None, files={"row": file}), "row", name)
        text = case_text(closure, made=made, called=(inputs.elts, {}))
    return Found(
        text=text, origin=origin, name=name, kind=kind, level=level_of(ast.parse(text)),
        licence=_licence(row),
    )  # fmt: skip


def _returned(file: CodeFile, function: str) -> ast.expr | None:
    """The expression that a function of one statement returns."""
    match file.definitions.get(function):
        case ast.FunctionDef(body=[ast.Return(value=value)]):
            return value
        case _:
            return None


def _pair(node: ast.expr | None) -> tuple[list[ast.expr], dict[str, ast.expr]] | None:
    """Positional and named arguments of `[[...], {...}]`; None for any other expression. Raises
    NotSelfContained for names that are no constants."""
    match node:
        case ast.List(elts=[ast.List(elts=given), ast.Dict(keys=keys, values=values)]):
            names = [one.value for one in keys if isinstance(one, ast.Constant)]
            if len(names) != len(values):
                raise NotSelfContained("unknown form of get_init_inputs")
            return given, dict(zip(map(str, names), values, strict=True))
        case _:
            return None


def _licence(row: Mapping[str, Any]) -> str:
    found = next((row[name] for name in LICENCES if row.get(name)), "")
    return ", ".join(map(str, found)) if isinstance(found, list) else str(found)


def open_rows(rest: str, locate: Callable[[Path], Path]) -> ProblemRows:
    """The source that `rows:REST` names. Raises ConfigError for a path without rows."""
    if not rest:
        raise ConfigError("rows: expected rows:PATH, a file, directory or data set on the hub")
    return ProblemRows(locate(Path(rest)), name=Path(rest).stem)
