"""Problems from a directory in KernelBench's layout, with module constants overridden.

Called by `sources/` and by `forge judge`. Files are parsed, never imported: they are third-party
code. All mistakes are reported at once.
"""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge.data.shapes import name_shape, note_shapes
from forge.errors import ConfigError
from forge.records import Problem
from forge.records.problem import INPUT_SETS, Shape

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from forge.config.schema.problems import Constant
    from forge.data.overrides import Overrides
    from forge.records import Split

REQUIRED = ("get_inputs", "get_init_inputs")
"""Names that a problem file must define, besides the model; `get_input_sets` may replace
`get_inputs`."""

Span = tuple[int, int, int, int]
"""Position of a value in the source: first line and column, last line and end column, from 0;
columns in bytes, as in `ast`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemFile:
    """A parsed file and the positions of its module constants."""

    path: Path
    source: str
    names: frozenset[str]
    """Names defined at module level."""
    constants: Mapping[str, tuple[Span, ...]]
    """Positions of the values of each constant."""


def read_directory(
    path: Path | None, *, include: Sequence[str], key: str
) -> tuple[list[ProblemFile], list[str]]:
    """All matching files, sorted by path, and a line for each that is unreadable or incomplete.

    Args:
        key: prefix of the keys that messages name, `problems.`.

    Raises:
        ConfigError: no such directory, or no files.
    """
    if path is None or not path.is_dir():
        raise ConfigError(f'{key}path: {path}: no such directory; source = "dir" needs one')
    paths = find_files(path, include=include)
    if not paths:
        patterns = ", ".join(include) or "*.py"
        raise ConfigError(f"{key}path: {path}: no file matches {patterns}")
    files: list[ProblemFile] = []
    mistakes: list[str] = []
    for each in paths:
        try:
            files.append(parse_file(each))
        except ConfigError as err:
            mistakes.append(str(err))
    return files, mistakes


def find_files(root: Path, *, include: Sequence[str]) -> list[Path]:
    """Python files under `root` that match one of the patterns, which are relative to it.

    Without patterns: all files except those whose names start with an underscore or a dot.
    """
    if include:
        return sorted({p for pattern in include for p in root.glob(pattern) if p.suffix == ".py"})
    return sorted(path for path in root.rglob("*.py") if not path.name.startswith(("_", ".")))


def parse_file(path: Path) -> ProblemFile:
    """Parse one file. Raises ConfigError with one line for a file that is no problem."""
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"{path}: cannot be read: {err}") from err
    return parse_source(source, path=path)


def parse_source(source: str, *, path: Path, entry_point: str = "Model") -> ProblemFile:
    """Parse the source of a problem. Raises ConfigError with one line, which names `path`, for one
    that is no problem."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of invalid escapes in other people's code
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as err:
        raise ConfigError(f"{path}:{getattr(err, 'lineno', 0) or 0}: no Python: {err}") from err
    constants: dict[str, tuple[Span, ...]] = {}
    for name, value in _assignments(tree):
        constants[name] = (*constants.get(name, ()), _span(value))
    names = frozenset(_definitions(tree)) | constants.keys()
    missing = [name for name in (entry_point, *REQUIRED) if name not in names]
    if INPUT_SETS in names and "get_inputs" in missing:
        missing.remove("get_inputs")
    if missing:
        raise ConfigError(
            f"{path}: no {' and no '.join(missing)}; "
            f"a problem file defines {entry_point}, get_inputs and get_init_inputs"
        )
    return ProblemFile(path=path, source=source, names=names, constants=constants)


def override(file: ProblemFile, overrides: Mapping[str, Constant]) -> str:
    """The source with new values for its module constants, otherwise unchanged.

    Raises ConfigError if constants share a value, as in `a = b = 4`, and the new ones differ.
    """
    edits: dict[Span, str] = {}
    for name in sorted(file.constants.keys() & overrides.keys()):
        text = repr(overrides[name])
        for span in file.constants[name]:
            if any(_clash((span, text), other) for other in edits.items()):
                raise ConfigError(
                    f"{file.path}:{span[0] + 1}: {name} shares its value with another constant; "
                    "problems.overrides gives them different ones"
                )
            edits[span] = text
    # Lines of the parser; splitlines splits at more characters.
    lines = file.source.encode().split(b"\n")
    for (first, start, last, end), text in sorted(edits.items(), reverse=True):
        lines[first : last + 1] = [lines[first][:start] + text.encode() + lines[last][end:]]
    return b"\n".join(lines).decode()


def find_mistakes(
    overrides: Overrides,
    files: Sequence[ProblemFile],
    *,
    root: Path,
    prefix: str,
    among: Sequence[str] | None = None,
) -> Iterator[str]:
    """A line for each override without effect: see `Overrides.mistakes`.

    Args:
        among: paths of all files below `root`; absent: `files` are all.
    """
    constants = {file.path.relative_to(root).as_posix(): file.constants for file in files}
    names = list(constants) if among is None else among
    return overrides.mistakes(constants, among=names, prefix=prefix)


def to_problem(
    file: ProblemFile,
    *,
    root: Path,
    overrides: Mapping[str, Constant],
    shapes: Sequence[Mapping[str, Constant]] = (),
    split: Split,
) -> Problem:
    """The problem in a file; its id is the path below `root` without suffix.

    Args:
        shapes: values of each shape, which replace those of `overrides`.
    """
    made = tuple(
        Shape(name=name_shape(values), source=override(file, {**overrides, **values}))
        for values in shapes
    )
    source = made[0].source if made else override(file, overrides)
    return Problem(
        problem_id=file.path.relative_to(root).with_suffix("").as_posix(),
        source=note_shapes(source, [shape.name for shape in made]),
        shapes=made,
        family=file.path.resolve().parent.name,
        level=level_of(file.path),
        split=split,
    )


def level_of(path: Path) -> int:
    """Level from the innermost folder named `levelN`; 1 without one."""
    for part in reversed(path.resolve().parent.parts):
        match = re.fullmatch(r"level[_-]?(\d+)", part, re.IGNORECASE)
        if match:
            return int(match.group(1))
    return 1


def _definitions(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)


def _span(value: ast.expr) -> Span:
    assert value.end_lineno is not None
    assert value.end_col_offset is not None
    return value.lineno - 1, value.col_offset, value.end_lineno - 1, value.end_col_offset


def _clash(a: tuple[Span, str], b: tuple[Span, str]) -> bool:
    """True if two edits overlap and differ."""
    (one, _), (other, _) = a, b
    return a != b and one[:2] < other[2:] and other[:2] < one[2:]


def _assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in tree.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _names(target, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield from _names(node.target, node.value)


def _names(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Constants of `a = 1` and `a, b = 1, 2`; other targets cannot be overridden."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one_target, one_value in zip(target.elts, value.elts, strict=False):
            yield from _names(one_target, one_value)
