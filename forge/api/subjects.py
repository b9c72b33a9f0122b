"""Problems and answers as users give them: paths, texts, names; code or whole answers of a model.

Promise: an answer that is a `str` is a text, never a path. It may be a model's, which could name a
file of this machine, for example one with a correct kernel.
"""

from __future__ import annotations

import ast
import logging
import os
import re
import warnings
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from forge.commands.judge.known import KnownProblems
from forge.commands.source_text import read_source
from forge.data.answers import Extraction, extract
from forge.data.directory import parse_source, to_problem
from forge.data.pairs.files import SUFFIXES
from forge.data.problems import from_source
from forge.errors import ConfigError
from forge.records import Reason, Split
from forge.records.problem import ReferenceModule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.config.schema.problems import RowFormat

logger = logging.getLogger(__name__)

MAX_SOURCE = 1 << 20
"""Maximum length of a problem's source: parsing takes a hundred times its memory."""
CACHED_SOURCES = 256
"""Parsed problems that are kept: a trainer sends the same problem with each answer to it."""
MAX_CACHED_SOURCE = 1 << 14
"""Maximum length of a source whose problem is kept, so that the cache takes at most 32 MB."""
MAX_SHOWN = 80
"""Characters of a user's text in a message."""
_SOURCE = re.compile(r"\n|^(?:import|from|class|def)\s")
"""Signs of a problem's source, rather than a path or a name."""
_MARKUP = re.compile(r"^[ \t]*(?:```|~~~)|</?(?:think|triton)>", re.MULTILINE)
"""Signs of a model's answer around its code."""
_DEFINITION = re.compile(r"^(?:class|def)[ \t]+\w", re.MULTILINE)


def read_problem(
    problem: str | Path | ReferenceModule, *, known: KnownProblems | None = None
) -> ReferenceModule:
    """The problem that a user names.

    Args:
        problem: the path of a file, its source, or a name among `known`.

    Raises:
        ConfigError: no such problem, or a text that is none.
    """
    if isinstance(problem, ReferenceModule):
        return problem
    _require_text("problem", problem)
    if isinstance(problem, str) and is_source(problem):
        return problem_from_text(problem)
    name = str(problem).strip()
    if not name:
        raise ConfigError("problem: found an empty text; a path, a source or a name is needed")
    if known is not None and isinstance(problem, str):
        return known.problem(known.file(name))
    path = Path(name)
    if os.path.isdir(path) or (os.path.isfile(path) and path.suffix in SUFFIXES):
        raise ConfigError(f"problem: {name[:MAX_SHOWN]} has several problems; pass it as problems=")
    if not os.path.isfile(path):
        raise ConfigError(
            f"problem: {name[:MAX_SHOWN]}: no such file; a path, the source of a problem, or a "
            'name below problems=, as of a checkout: problems="KernelBench/KernelBench"'
        )
    known = KnownProblems(path)
    return known.problem(known.file(name))


def problem_from_text(
    source: str, *, entry_point: str = "Model", precision: str = "fp32"
) -> ReferenceModule:
    """The problem in a text: a whole problem file, or a bare torch function. Raises ConfigError."""
    parse = _parse_cached if len(source) <= MAX_CACHED_SOURCE else _parse_problem
    return parse(source, entry_point, precision)


def _parse_problem(source: str, entry_point: str, precision: str) -> ReferenceModule:
    if len(source) > MAX_SOURCE:
        raise ConfigError(f"problem: {len(source)} characters; {MAX_SOURCE} are allowed")
    try:
        source.encode()
    except UnicodeEncodeError:
        raise ConfigError("problem: found half of a surrogate pair; text is needed") from None
    try:
        file = parse_source(source, path=Path("problem.py"), entry_point=entry_point)
    except ConfigError:
        if entry_point != "Model" or not _is_python(source):
            raise
        made = from_source(source, name="problem")
    else:
        made = to_problem(file, root=Path(), overrides={}, split=Split.HELDOUT)
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
    """Names of the known problems."""
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
    """The code in a model's answer, or the answer itself if it is code without a fence."""
    found = extract(answer, entry_point=entry_point)
    if found.is_ok or not _DEFINITION.search(answer):
        return found
    is_code = not _MARKUP.search(answer) or _is_python(answer[:MAX_SOURCE])
    return Extraction(code=answer, reason=Reason.OK) if is_code else found


def _is_python(text: str) -> bool:
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
