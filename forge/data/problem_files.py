"""Problem files in KernelBench's layout: read from a directory, with module constants overridden.

Overrides are values for module constants, for all files of a folder and for single ones; shapes are
several such tables for one problem, each applied after the overrides:

    {"batch_size": 16, "3_matmul": {"N": 512}, "level2/7": {"dim": 64}}
    shapes = [{ N = 1024 }, { N = 4096, M = 100, "3_matmul" = { N = 512 } }]

A table names a problem as a candidate's file does: by path, by name, by number, or by
`level=1 problem_id=19`. Called for `[problems] path`, `overrides` and `shapes`, and by
`forge judge` for `--override` and `--shape`.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from forge.config.schema import Constant
from forge.errors import ConfigError
from forge.records import Problem, Split
from forge.records.problem import INPUT_SETS, Shape, has_input_sets, syntax_tree

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
    Raises ConfigError for no such directory or no files; messages name keys that begin with
    `key`."""
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
            tree = syntax_tree(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as err:
        line, words = getattr(err, "lineno", 0) or 0, getattr(err, "msg", err)
        raise ConfigError(f"{path}:{line}: no Python: {words}") from err
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
    """A line for each override without effect: see `Overrides.mistakes`."""
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
    """The problem in a file; its id is the path below `root` without suffix. Values of each shape
    replace those of `overrides`."""
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


OverridesTable = Mapping[str, Constant | Mapping[str, Constant]]
"""A constant's value, or a problem's table of such values."""


_ADDRESS = re.compile(r"level\s*=\s*(\d+)[\s,]+problem_id\s*=\s*(\d+)")
_LEVEL = re.compile(r"level[_-]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """New values for module constants."""

    everywhere: Mapping[str, Constant] = field(default_factory=dict[str, Constant])
    """Values for every file that has the constant."""
    by_problem: Mapping[str, Mapping[str, Constant]] = field(
        default_factory=dict[str, Mapping[str, Constant]]
    )
    """Values for one file each, by a name that finds it; they take precedence over `everywhere`."""

    @classmethod
    def from_table(cls, table: OverridesTable) -> Overrides:
        """The values and tables of a TOML table."""
        return cls(
            everywhere={k: v for k, v in table.items() if not isinstance(v, Mapping)},
            by_problem={k: v for k, v in table.items() if isinstance(v, Mapping)},
        )

    def of(self, path: str, *, among: Sequence[str]) -> dict[str, Constant]:
        """The values for one of the files `among`, by its path below their folder."""
        values = dict(self.everywhere)
        for name, own in self.by_problem.items():
            if find_problem(name, among) == path:
                values.update(own)
        return values

    def mistakes(
        self, constants: Mapping[str, Collection[str]], *, among: Sequence[str], prefix: str
    ) -> Iterator[str]:
        """A line for each override that names no problem, or no constant. `constants` are those of
        all files of the folder by their paths (`among`), or of those in use."""
        known = {name for names in constants.values() for name in names}
        for name in self.everywhere:
            if constants and name not in known:
                only = next(iter(constants)) if len(constants) == 1 else None
                where = f"{only} has no such" if only else "no file has this"
                yield f"{prefix}{name}: {where} module constant; {_hint(name, known)}"
        for problem, values in self.by_problem.items():
            path = find_problem(problem, among)
            if path is None:
                yield f"{prefix}{problem}: no single problem of this name or number"
                continue
            own = constants.get(path, values)  # a file without a candidate is not parsed
            for name in sorted(values.keys() - own):
                hint = _hint(name, own)
                yield f"{prefix}{problem}: {path} has no module constant {name}; {hint}"


def find_problem(name: str, known: Sequence[str]) -> str | None:
    """The problem that a path names, by path, file name or number, with or without `.py`, or by
    KernelBench's numbers, `level=1 problem_id=19`; None unless exactly one matches best."""
    if (address := _ADDRESS.fullmatch(name.strip())) is not None:
        level, number = int(address[1]), str(int(address[2]))
        at = [p for p in known if _level(Path(p)) == level and _number(Path(p)) == number]
        return at[0] if len(at) == 1 else None
    for exact in (name, f"{name}.py"):
        if exact in known:
            return exact
    path, problems = Path(name), [Path(each) for each in known]
    number = _number(path)
    same_name = [each for each in problems if path.name in (each.name, each.stem)]
    same_number = [each for each in problems if number is not None and _number(each) == number]
    beside = [each for each in same_number if each.parent == path.parent]
    found = same_name or beside or same_number
    return found[0].as_posix() if len(found) == 1 else None


def _level(path: Path) -> int | None:
    """Level of the innermost folder `levelN` below the problems' folder."""
    found = (_LEVEL.fullmatch(part) for part in reversed(path.parent.parts))
    return next((int(match[1]) for match in found if match), None)


def _number(path: Path) -> str | None:
    match = re.match(r"0*(\d+)", path.stem)
    return match[1] if match else None


def _hint(name: str, known: Collection[str]) -> str:
    close = get_close_matches(name, sorted(known), n=1)
    there = f"there are {', '.join(sorted(known)) or 'none'}"
    return f"did you mean {close[0]}?" if close else there


NOTE = "A kernel has to be correct at each; its speed-up is their geometric mean."
"""Sentence of a prompt."""


def values_by_shape(
    shapes: Sequence[Overrides], path: str, *, constants: Collection[str], among: Sequence[str]
) -> list[dict[str, Constant]]:
    """The values of each shape that counts for one file `among` all: it has one of the file's
    constants, and differs from the ones before it."""
    found: list[dict[str, Constant]] = []
    for shape in shapes:
        values = shape.of(path, among=among)
        own = {name: value for name, value in values.items() if name in constants}
        if own and own not in found:
            found.append(own)
    return found


def name_shape(values: Mapping[str, Constant]) -> str:
    """`N=4096, M=100`."""
    return ", ".join(f"{name}={value}" for name, value in values.items())


def note_shapes(source: str, names: Sequence[str]) -> str:
    """The source of a problem with a comment at its end that names the shapes; unchanged for a
    problem with one shape. The source is the text of the prompt, and is stored with the run."""
    lines: list[str] = []
    if len(names) > 1:
        lines = [f"# Judged on {len(names)} shapes. {NOTE}", *(f"#   {name}" for name in names)]
    if has_input_sets(source):
        also = "# At each, every set of get_input_sets() is judged."
        lines.append(also if lines else f"# Judged on each set of get_input_sets(). {NOTE}")
    return "\n".join([source.rstrip(), "", *lines, ""]) if lines else source
