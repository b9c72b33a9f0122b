"""Problems and answers as users give them: paths, texts, names; code or whole answers of a model.

Problems are one file, a directory, or a file of rows; each file is parsed once. Promise: an answer
that is a `str` is a text, never a path. It may be a model's, which could name a file of this
machine, for example one with a correct kernel.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from forge.config.schema import RowFormat, SourceTable
from forge.data.answers import Extraction, defines, extract, is_cuda, parse
from forge.data.pairs.rows import SUFFIXES
from forge.data.problem_files import (
    Overrides,
    ProblemFile,
    find_files,
    find_mistakes,
    find_problem,
    parse_file,
    parse_source,
    to_problem,
    values_by_shape,
)
from forge.data.problems import from_source
from forge.data.sources.loading import SourceFiles
from forge.data.sources.loading import read_source as read_rows
from forge.errors import ConfigError
from forge.records import Problem, Reason, Split
from forge.records.problem import ReferenceModule

logger = logging.getLogger(__name__)

STDIN = "-"
MAX_BYTES = 16 << 20
"""Maximum size of a source. The judge itself refuses far smaller ones, as a verdict."""
MAX_SOURCE = 1 << 20
"""Maximum length of a problem's source: parsing takes a hundred times its memory."""
CACHED_SOURCES = 256
"""Parsed problems that are kept: a trainer sends the same problem with each answer to it."""
MAX_CACHED_SOURCE = 1 << 14
"""Maximum length of a source whose problem is kept, so that the cache takes at most 32 MB."""
NO_OVERRIDES = Overrides()
PREFIX = "overrides."
TEXT = "problem.py"
MAX_SHOWN = 80
_SOURCE = re.compile(r"\n|^(?:import|from|class|def)\s")
"""Signs of a problem's source, rather than a path or a name."""
_MARKUP = re.compile(r"```|^[ \t]*~~~|</?(?:think|triton)>", re.MULTILINE)
"""Signs of a model's answer around its code."""
_DEFINITION = re.compile(r"^(?:class|def)[ \t]+\w", re.MULTILINE)


def read_problem(
    problem: str | Path | ReferenceModule,
    *,
    known: KnownProblems | None = None,
    overrides: Overrides = NO_OVERRIDES,
) -> ReferenceModule:
    """The problem that a user names. Raises ConfigError: no such problem, a text that has none, or
    an override without effect. `problem`: the path of a file, its source, or a name among `known`.
    `overrides`: new values for its module constants."""
    if isinstance(problem, ReferenceModule):
        if overrides != NO_OVERRIDES:
            raise ConfigError("overrides: a problem that was read before keeps its constants")
        return problem
    _require_text("problem", problem)
    if isinstance(problem, str) and is_source(problem):
        return problem_from_text(problem, overrides=overrides)
    name = str(problem).strip()
    if not name:
        raise ConfigError("problem: found an empty text; a path, a source or a name is needed")
    if known is not None and isinstance(problem, str):
        return known.overridden(name, overrides)
    path = Path(name)
    if os.path.isdir(path) or (os.path.isfile(path) and path.suffix in SUFFIXES):
        raise ConfigError(f"problem: {name[:MAX_SHOWN]} has several problems; pass it as problems=")
    if not os.path.isfile(path):
        raise ConfigError(
            f"problem: {name[:MAX_SHOWN]}: no such file; a path, the source of a problem, or a "
            'name below problems=, as of a checkout: problems="KernelBench/KernelBench"'
        )
    return KnownProblems(path).overridden(name, overrides)


def problem_from_text(
    source: str,
    *,
    entry_point: str = "Model",
    precision: str = "fp32",
    overrides: Overrides = NO_OVERRIDES,
) -> ReferenceModule:
    """The problem in a text: a whole problem file, or a bare torch function. Raises ConfigError."""
    if overrides != NO_OVERRIDES:
        return _parse_problem(source, entry_point, precision, overrides)
    parse = _parse_cached if len(source) <= MAX_CACHED_SOURCE else _parse_problem
    return parse(source, entry_point, precision)


def _parse_problem(
    source: str, entry_point: str, precision: str, overrides: Overrides = NO_OVERRIDES
) -> ReferenceModule:
    if len(source) > MAX_SOURCE:
        raise ConfigError(f"problem: {len(source)} characters; {MAX_SOURCE} are allowed")
    try:
        source.encode()
    except UnicodeEncodeError:
        raise ConfigError("problem: found half of a surrogate pair; text is needed") from None
    try:
        file = parse_source(source, path=Path(TEXT), entry_point=entry_point)
    except ConfigError:
        if entry_point != "Model" or parse(source) is None:
            raise
        _require_effect(overrides.mistakes({TEXT: ()}, among=[TEXT], prefix=PREFIX))
        made = from_source(source, name="problem")
    else:
        _require_effect(overrides.mistakes({TEXT: file.constants}, among=[TEXT], prefix=PREFIX))
        values = overrides.of(TEXT, among=[TEXT])
        made = to_problem(file, root=Path(), overrides=values, split=Split.HELDOUT)
        digest = sha256(source.encode()).hexdigest()[:8]
        made = replace(made, problem_id=f"text-{digest}", entry_point=entry_point)
    return replace(made, precision=precision)


_parse_cached = lru_cache(CACHED_SOURCES)(_parse_problem)


def is_source(problem: str) -> bool:
    """True for the source of a problem, False for a path or a name."""
    return _SOURCE.search(problem) is not None


def known_problems(
    path: str | Path | None, *, format: RowFormat = "kernelbench"
) -> KnownProblems | None:
    """The problems of a directory or a file of rows; None without a path. Raises ConfigError."""
    if path is None:
        return None
    if not Path(path).exists():
        raise ConfigError(f"problems: {path}: no such directory or file")
    return KnownProblems(Path(path), format=format)


def problem_names(known: KnownProblems | None) -> Sequence[str]:
    return [] if known is None else [name.removesuffix(".py") for name in known.names]


def read_answer(answer: str | Path) -> str:
    """The text of an answer. A `Path` is read, a `str` is the text. Raises ConfigError."""
    _require_text("answer", answer)
    if isinstance(answer, Path):
        return read_source(str(answer))
    if answer.endswith(".py") and "\n" not in answer and len(answer) < MAX_SHOWN:
        logger.warning("answer: %r is judged as a text; Path(%r) reads a file", answer, answer)
    return answer


def _require_text(name: str, given: object) -> None:
    """Raises ConfigError for a value that is neither text nor `Path`."""
    if not isinstance(given, str | Path):
        raise ConfigError(f"{name}: found {type(given).__name__}; a str or a Path is needed")


def find_code(answer: str, *, entry_point: str) -> Extraction:
    """The code in a model's answer, or the answer itself if it is code without a fence: a module of
    Python, whatever its strings hold, or a text with a definition and without marks of an answer.
    """
    name = f"{entry_point}New"
    has_code = _DEFINITION.search(answer) is not None or defines(answer, name)
    if has_code and (parse(answer) is not None or not _MARKUP.search(answer)):
        return Extraction(code=answer, reason=Reason.OK)
    found = extract(answer, entry_point=entry_point)
    if found.reason is Reason.NO_CODE_BLOCK and is_cuda(answer):
        return Extraction(code="", reason=Reason.CUDA_SOURCE)
    return found


class KnownProblems:
    """Problem files by name."""

    def __init__(
        self, path: Path, *, chosen: str | None = None, format: RowFormat = "kernelbench"
    ) -> None:
        """Lists the problems at `path`. Raises ConfigError. `chosen`: name of the one problem that
        all candidates answer. `format`: columns of a file of rows."""
        self._given = path
        self._folder = path if path.is_dir() else path.parent
        self._rows: SourceFiles | None = None
        self._known: Mapping[str, ProblemFile | Path]
        self._files: dict[str, ProblemFile] = {}
        if path.suffix in SUFFIXES and not path.is_dir():
            table = SourceTable(source="file", path=path, format=format)
            self._rows = read_rows(table, key="")
            self._folder = self._rows.root
            self._known = dict(zip(self._rows.names, self._rows.files, strict=True))
        else:
            paths = find_files(path, include=()) if path.is_dir() else [path]
            self._known = {each.relative_to(self._folder).as_posix(): each for each in paths}
        self._names = list(self._known)
        self._chosen = None if chosen is None else self._find(chosen, option="--problem ")
        if chosen is None and not holds_several(path):
            self._chosen = self._names[0]

    @property
    def names(self) -> Sequence[str]:
        """Paths of the problems below their folder; of the chosen one alone, if there is one."""
        return self._names if self._chosen is None else [self._chosen]

    def file(self, candidate: str) -> ProblemFile:
        """The problem that a candidate answers. Raises ConfigError."""
        name = self._find(candidate) if self._chosen is None else self._chosen
        if name not in self._files:
            known = self._known[name]
            self._files[name] = parse_file(known) if isinstance(known, Path) else known
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

    def overridden(self, name: str, overrides: Overrides) -> Problem:
        """The problem of a name with new constants, of which each must have an effect. Raises
        ConfigError."""
        file = self.file(name)
        _require_effect(
            find_mistakes(overrides, [file], root=self._folder, prefix=PREFIX, among=self._names)
        )
        return self.problem(file, overrides=overrides)

    def check(self, overrides: Overrides, shapes: Sequence[Overrides]) -> None:
        """Raises ConfigError for an override or a shape that names no problem, or no constant of
        the files that were asked for."""
        given = [("--override ", overrides), *(("--shape ", shape) for shape in shapes)]
        files, among = list(self._files.values()), self._names
        _require_effect(
            mistake
            for prefix, each in given
            for mistake in find_mistakes(each, files, root=self._folder, prefix=prefix, among=among)
        )

    def _find(self, name: str, *, option: str = "") -> str:
        found = find_problem(name, self._names)
        if found is None:
            raise ConfigError(
                f"{option}{name}: {self._given} has no single problem of this name or number"
            )
        return found


def _require_effect(mistakes: Iterable[str]) -> None:
    """Raises ConfigError with a line for each override without effect."""
    if found := list(dict.fromkeys(mistakes)):
        raise ConfigError("\n".join(found))


def holds_several(problem: Path) -> bool:
    """True for a directory of problems, or a file of rows."""
    return problem.is_dir() or problem.suffix in SUFFIXES


def read_source(path: str) -> str:
    """The text of a file, or of stdin for `-`. Raises ConfigError if it cannot be read or is not
    UTF-8.
    """
    name = "stdin" if path == STDIN else path
    if path == STDIN and sys.stdin is None:
        raise ConfigError("stdin: it is closed; pipe a source into it, or name a file")
    try:
        with nullcontext(sys.stdin.buffer) if path == STDIN else open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{name}: larger than {MAX_BYTES >> 20} MiB; a Python source is smaller")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = f"byte 0x{data[error.start]:02x} at {error.start} is not UTF-8"
        raise ConfigError(f"{name}: {found}; Python source, or an answer with a block of it") from (
            error
        )
