"""Problems of one source that is no generator: files of a directory, rows of a file, or a path that
may hold anything (problem files, rows of every known format, or both).

Rows of public data sets become problems by one function per format of `problems.format`:

    kernelbench         code, level, name, problem_id (ScalingIntelligence/KernelBench)
    kernelbook          python_code, entry_point, uuid (GPUMODE/KernelBook). KernelLLM was trained
                        on this data set, and its rows have these columns
    tritonforge         label, extra_info (level, problem_id, problem_name), instance_id
                        (kernel_bench_triton_*.jsonl)
    cuda-agent          code, ops, data_source `torch#2` (BytedTsinghua-SIA/CUDA-Agent-Ops-6K)
    drkernel            reward_model (ground_truth), extra_info (hkust-nlp/drkernel-rl-data and
                        drkernel-validation-data)
    drkernel-coldstart  original_python_code, entry_point, uuid (hkust-nlp/drkernel-coldstart-8k)
    harvest             id, code, level, kind (`forge data harvest`)

Columns of cuda-agent and drkernel-coldstart are those that public code reads; the data sets could
not be downloaded when this was written. Rows of KernelBench get the ids of its files, in whatever
format: `level1/19_ReLU`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from forge.config.schema import SourceTable
from forge.data.pairs.conversations import id_of
from forge.data.pairs.rows import (
    SUFFIXES,
    BadRow,
    LeftOut,
    Unfit,
    code_of,
    columns_of,
    kind_of,
    row_files,
    rows_of,
    short,
    text_of,
)
from forge.data.problem_files import (
    Overrides,
    ProblemFile,
    find_files,
    find_mistakes,
    parse_source,
    read_directory,
    to_problem,
    values_by_shape,
)
from forge.errors import ConfigError
from forge.records import Problem, Split


@dataclass(frozen=True, kw_only=True)
class SourceFiles:
    """Parsed problem files of one source, wherever their text comes from."""

    root: Path
    """Directory that ids are relative to; "." for rows."""
    files: Sequence[ProblemFile]
    rows: Mapping[str, RowProblem]
    """Facts of rows, by the path of their file; empty for a directory."""
    mistakes: Sequence[str] = ()
    """A line for each file that is no problem."""

    @cached_property
    def names(self) -> list[str]:
        """Paths of the files below the root."""
        return [self.name_of(file) for file in self.files]

    def name_of(self, file: ProblemFile) -> str:
        return file.path.relative_to(self.root).as_posix()

    def to_problem(
        self, file: ProblemFile, *, overrides: Overrides, shapes: Sequence[Overrides], split: Split
    ) -> Problem:
        """The problem in a file, with its constants and shapes."""
        name, names = self.name_of(file), self.names
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
    """The problems of a directory or of rows, in order; none is held out yet. Raises ConfigError
    for unreadable or incomplete sources, or overrides of constants that no file has."""
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


COLUMNS = {
    "harvest": ("id", "code", "kind", "level"),
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
    """The problems of a file or of a directory, in order. Raises ConfigError, which names `key`,
    for a file that cannot be read or has another suffix, or a row without code."""
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
            yield row_problem(row, number=number, name=f"{name}:{number}")
        except (BadRow, Unfit) as err:
            raise ConfigError(f"{place}: {err}") from None


def row_problem(row: Mapping[str, Any], *, number: int, name: str) -> RowProblem:
    """The problem of a row by its columns, under this name if they are of no known format. Raises
    BadRow or Unfit."""
    for format, columns in COLUMNS.items():
        if all(row.get(column) is not None for column in columns):
            return _of_format(row, format, number=number)
    found = next((row[one] for one in CODE_COLUMNS if isinstance(row.get(one), str)), None)
    if found is None:
        raise BadRow(f"found columns {columns_of(row)}; one of {', '.join(CODE_COLUMNS)}")
    entry_point = row.get("entry_point")
    return RowProblem(
        problem_id=name,
        source=found,
        family="",
        entry_point=entry_point if isinstance(entry_point, str) else DEFAULT_ENTRY_POINT,
    )


logger = logging.getLogger(__name__)


def read_rows(
    path: Path, *, format: str, include: list[str], key: str = "problems.path"
) -> dict[str, tuple[RowProblem, ProblemFile]]:
    """The problems of a file or a directory of files by their paths, `level1/19_ReLU.py`, in order,
    whose ids match a pattern of `include`, if there is one. Raises ConfigError, which names `key`,
    for no such file, a row that does not match the format, or no problem at all."""
    found: dict[str, tuple[RowProblem, ProblemFile]] = {}
    left_out = LeftOut()
    for place, row in _row_problems(path, format=format, left_out=left_out, key=key):
        name = f"{row.problem_id}.py"
        if include and not any(fnmatchcase(row.problem_id, pattern) for pattern in include):
            continue
        try:
            file = parse_source(row.source, path=Path(name), entry_point=row.entry_point)
        except ConfigError as err:
            left_out.add(_kind(str(err), name), place)
            continue
        if name not in found:
            found[name] = (row, file)
        elif found[name][0].source == row.source:
            left_out.add("the same again", place)
        else:
            raise ConfigError(f"{place}: {row.problem_id}: another row has this id")
    if not found:
        patterns = f" that matches {', '.join(include)}" if include else ""
        raise ConfigError(
            f'{key}: {path}: no problem{patterns} in format "{format}"; left out: {left_out}'
        )
    logger.info("%d problems from %s; left out: %s", len(found), path, left_out)
    return found


def _row_problems(
    path: Path, *, format: str, left_out: LeftOut, key: str
) -> Iterator[tuple[str, RowProblem]]:
    """Place and problem of each row."""
    for file in row_files(path, key=key):
        for number, row in enumerate(rows_of(file, key=key), start=1):
            place = f'{key}: {file}, row {number} ("{format}")'
            try:
                yield place, _of_format(row, format, number=number)
            except Unfit as reason:
                left_out.add(str(reason), place)
            except BadRow as err:
                raise ConfigError(f"{place}: {err}") from None


def _kind(message: str, name: str) -> str:
    """Reason of a source that is no problem, without place and details."""
    reason = message.removeprefix(name).lstrip(":0123456789 ")
    return "that are no Python" if reason.startswith("no Python") else reason.split(";")[0]


DEFAULT_ENTRY_POINT = "Model"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowProblem:
    """A problem of a row, with what the row says of it."""

    problem_id: str
    source: str
    family: str
    level: int = 1
    entry_point: str = DEFAULT_ENTRY_POINT


def _of_format(row: Mapping[str, Any], format: str, *, number: int) -> RowProblem:
    """The problem of a row in a format. Raises BadRow or Unfit."""
    match format:
        case "kernelbench":
            return _kernelbench(code_of(row, "code"), row)
        case "tritonforge":  # its label is the reference
            source, info = code_of(row, "label"), _table(row, "extra_info")
            return _kernelbench(source, info, name=str(info.get("problem_name") or ""))
        case "kernelbook":  # under the id that its SFT row has
            problem_id = f"{format}/{id_of(row, 'uuid', number)}"
            source, entry_point = code_of(row, "python_code"), text_of(row, "entry_point")
        case "cuda-agent":  # its level is the number of operators, `torch#2`
            found = re.search(r"#(\d+)$", str(row.get("data_source") or ""))
            level = max(1, int(found[1])) if found else 1
            problem_id, source = f"{format}/{number}", code_of(row, "code")
            return RowProblem(problem_id=problem_id, source=source, family=format, level=level)
        case "drkernel":  # for RL or validation: its ground truth is the reference
            source = code_of(_table(row, "reward_model"), "ground_truth")
            info = row.get("extra_info")
            info = info if isinstance(info, Mapping) else {}
            known = (info[key] for key in ("uuid", "name") if info.get(key) is not None)
            level = str(info.get("level"))
            return RowProblem(
                problem_id=f"{format}/{next(known, number)}", source=source, family=format,
                level=max(1, int(level)) if level.isdecimal() else 1,
                entry_point=_entry_point(info, source),
            )  # fmt: skip
        case "drkernel-coldstart":  # the module that a conversation is about
            problem_id = f"{format}/{id_of(row, 'uuid', number)}"
            source = code_of(row, "original_python_code")
            entry_point = _entry_point(row, source)
        case _:
            return RowProblem(
                problem_id=text_of(row, "id"), source=code_of(row, "code"),
                family=text_of(row, "kind"), level=_whole(row, "level"),
            )  # fmt: skip
    return RowProblem(
        problem_id=problem_id, source=source, family=format, entry_point=entry_point
    )  # fmt: skip


def _kernelbench(source: str, row: Mapping[str, Any], *, name: str | None = None) -> RowProblem:
    """A problem of KernelBench under the id of its file; names may begin with the number."""
    level, problem_id = _whole(row, "level"), _whole(row, "problem_id")
    name = text_of(row, "name") if name is None else name
    rest = re.sub(rf"^0*{problem_id}_|\.py$", "", name)
    stem = f"{problem_id}_{rest}" if rest else str(problem_id)
    folder = f"level{level}"
    return RowProblem(problem_id=f"{folder}/{stem}", source=source, family=folder, level=level)


def _entry_point(row: Mapping[str, Any], source: str) -> str:
    """The named class if the source defines it: some sources rename it to `Model`."""
    name = row.get("entry_point")
    is_defined = isinstance(name, str) and re.search(
        rf"^class[ \t]+{re.escape(name)}\b", source, re.M
    )
    return str(name) if is_defined else DEFAULT_ENTRY_POINT


def _whole(row: Mapping[str, Any], name: str) -> int:
    found = row.get(name)
    if isinstance(found, bool) or not str(found).isdecimal():
        raise BadRow(f"{name}: found {short(found)!r}; a number (columns here: {columns_of(row)})")
    return int(str(found))


def _table(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = row.get(name)
    if not isinstance(found, Mapping):
        columns = columns_of(row)
        raise BadRow(f"{name}: found {kind_of(found)}; an object (columns here: {columns})")
    return found
