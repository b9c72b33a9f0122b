"""Problems from a directory in KernelBench's layout, with module constants overridden.

Called by `load_problems`. Files are parsed, never imported: they are third-party code. All mistakes
come at once.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from forge.data.splits import choose_heldout
from forge.errors import ConfigError
from forge.records import Problem, Split

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from forge.config.schema import ProblemsTable

REQUIRED = ("Model", "get_inputs", "get_init_inputs")
"""What a problem file defines."""

Constant = int | float | bool | str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemFile:
    """A parsed file and where its module constants stand."""

    path: Path
    source: str
    names: frozenset[str]
    """Defined at module level."""
    constants: Mapping[str, tuple[ast.expr, ...]]
    """Value expressions by the name that they are assigned to."""


def load_directory(table: ProblemsTable, *, seed: int) -> list[Problem]:
    """Problems of all matching files, sorted by path.

    Raises:
        ConfigError: no such directory, no files, unreadable or incomplete files, overrides that no
            file has.
    """
    if table.path is None or not table.path.is_dir():
        raise ConfigError(
            f'problems.path: {table.path}: no such directory; source = "dir" needs one'
        )
    paths = find_files(table.path, include=table.include)
    if not paths:
        patterns = ", ".join(table.include) or "*.py"
        raise ConfigError(f"problems.path: {table.path}: no file matches {patterns}")
    files, mistakes = _parse_all(paths)
    mistakes.extend(_unknown_overrides(files, table.overrides))
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    heldout = choose_heldout(len(files), num_heldout=table.num_heldout, seed=seed)
    return [
        to_problem(
            file,
            root=table.path,
            overrides=table.overrides,
            split=Split.HELDOUT if index in heldout else Split.GRPO,
        )
        for index, file in enumerate(files)
    ]


def find_files(root: Path, *, include: Sequence[str]) -> list[Path]:
    """Python files under `root` that match one of the patterns, which are relative to it.

    Without patterns all files but those whose names start with an underscore or a dot.
    """
    if include:
        found = {path for pattern in include for path in root.glob(pattern) if path.suffix == ".py"}
        return sorted(found)
    return sorted(path for path in root.rglob("*.py") if not path.name.startswith(("_", ".")))


def parse_file(path: Path) -> ProblemFile:
    """Raises ConfigError with one line for a file that is no problem."""
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"{path}: cannot be read: {err}") from err
    except (SyntaxError, ValueError) as err:
        raise ConfigError(f"{path}:{getattr(err, 'lineno', 0) or 0}: no Python: {err}") from err
    constants: dict[str, tuple[ast.expr, ...]] = {}
    for name, value in _assignments(tree):
        constants[name] = (*constants.get(name, ()), value)
    names = frozenset(_definitions(tree)) | constants.keys()
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        raise ConfigError(
            f"{path}: no {' and no '.join(missing)}; "
            "a problem file defines Model, get_inputs and get_init_inputs"
        )
    return ProblemFile(path=path, source=source, names=names, constants=constants)


def override(file: ProblemFile, overrides: Mapping[str, Constant]) -> str:
    """The source with new values for the module constants that it has; all else stays."""
    edits = [
        (value, repr(overrides[name]))
        for name, values in file.constants.items()
        if name in overrides
        for value in values
    ]
    lines = [line.encode() for line in file.source.splitlines(keepends=True)]  # offsets are bytes
    for value, text in sorted(
        edits, key=lambda edit: (edit[0].lineno, edit[0].col_offset), reverse=True
    ):
        last = (value.end_lineno or value.lineno) - 1
        first = value.lineno - 1
        tail = lines[last][value.end_col_offset :]
        lines[first : last + 1] = [lines[first][: value.col_offset] + text.encode() + tail]
    return b"".join(lines).decode()


def to_problem(
    file: ProblemFile, *, root: Path, overrides: Mapping[str, Constant], split: Split
) -> Problem:
    """The problem of a file; its id is the path below `root` without suffix."""
    folder = file.path.resolve().parent.name
    return Problem(
        problem_id=file.path.relative_to(root).with_suffix("").as_posix(),
        source=override(file, overrides),
        family=folder,
        level=level_of(file.path),
        split=split,
    )


def level_of(path: Path) -> int:
    """From the innermost folder named `levelN`; 1 where there is none."""
    for part in reversed(path.resolve().parent.parts):
        match = re.fullmatch(r"level[_-]?(\d+)", part, re.IGNORECASE)
        if match:
            return int(match.group(1))
    return 1


def _parse_all(paths: Sequence[Path]) -> tuple[list[ProblemFile], list[str]]:
    files: list[ProblemFile] = []
    mistakes: list[str] = []
    for path in paths:
        try:
            files.append(parse_file(path))
        except ConfigError as err:
            mistakes.append(str(err))
    return files, mistakes


def _definitions(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)


def _assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in tree.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _names(target, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield from _names(node.target, node.value)


def _names(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """`a = 1` and `a, b = 1, 2`; nothing else gives a constant that can be overridden."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one_target, one_value in zip(target.elts, value.elts, strict=False):
            yield from _names(one_target, one_value)


def _unknown_overrides(
    files: Sequence[ProblemFile], overrides: Mapping[str, Constant]
) -> Iterator[str]:
    known = sorted({name for file in files for name in file.constants})
    for name in overrides:
        if files and name not in known:
            close = get_close_matches(name, known, n=1)
            hint = (
                f"did you mean {close[0]}?" if close else f"there are {', '.join(known) or 'none'}"
            )
            yield f"problems.overrides.{name}: no file has this module constant; {hint}"
