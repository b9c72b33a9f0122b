"""What `forge judge` is given, as jobs: which candidate answers which problem.

    problem.py  candidate.py   one job       problem.py  folder/   one for each file
    problem.py  -              stdin         folder/     folder/   by name: 3_x.py answers 3_x.py,
    folder/     3_x.py         by name                             or the only problem numbered 3

Called by `judging.py`. Promise: what cannot be used is a ConfigError with a line a mistake.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from forge.commands.judge.overrides import check_overrides
from forge.data.answers import extract
from forge.data.directory import find_files, parse_file, to_problem
from forge.errors import ConfigError
from forge.records import Split

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.data.directory import Constant, ProblemFile
    from forge.records import Problem

STDIN = "-"
MAX_NAME = 256
"""Characters of a path that are told: a source may stand where a path must."""
MAX_BYTES = 16 << 20
"""Of a candidate. The judge itself refuses far less, as a verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One candidate and the problem that it answers."""

    name: str
    """Of the candidate: its path below the directory given, its file name, or `stdin`."""
    problem: Problem
    code: str
    """Taken from the text, where that is a model's answer; else the text itself."""


def read_jobs(
    problem: Path, candidate: str, *, overrides: Mapping[str, Constant], precision: str
) -> list[Job]:
    """In the order of their names. Raises ConfigError."""
    root = None if candidate == STDIN else Path(candidate)
    if problem.is_dir() and root is None:
        raise ConfigError(f"{problem}: a directory; what comes from stdin needs one problem file")
    paths = _candidates(root) if root is not None else {"stdin": None}
    files = _problem_files(problem, list(paths))
    check_overrides(overrides, list({file.path: file for file in files.values()}.values()))
    folder = problem if problem.is_dir() else problem.parent
    jobs: list[Job] = []
    mistakes: list[str] = []
    for name, path in paths.items():
        made = to_problem(files[name], root=folder, overrides=overrides, split=Split.HELDOUT)
        try:
            text = read_stdin() if path is None else read_text(path)
        except ConfigError as error:
            mistakes.append(str(error))
            continue
        found = extract(text, entry_point=made.entry_point)
        code = found.code if found.is_ok else text
        jobs.append(Job(name=name, problem=replace(made, precision=precision), code=code))
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return jobs


def require_path(path: Path) -> None:
    """Raises ConfigError where nothing is there for us."""
    try:
        path.stat()
    except OSError as error:
        words = (error.strerror or str(error)).lower()
        raise ConfigError(f"{str(path)[:MAX_NAME]}: {words}") from error


def read_text(path: Path) -> str:
    """Raises ConfigError for what is no text."""
    try:
        with path.open("rb") as file:
            return _decode(file.read(MAX_BYTES + 1), str(path))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error


def read_stdin() -> str:
    """Raises ConfigError where there is none."""
    if sys.stdin is None:
        raise ConfigError("stdin: it is closed; pipe a candidate into it, or name a file")
    try:
        return _decode(sys.stdin.buffer.read(MAX_BYTES + 1), "stdin")
    except OSError as error:
        raise ConfigError(f"stdin: cannot be read: {error.strerror or error}") from error


def find_problem(name: str, known: Sequence[str]) -> str | None:
    """Of the problems' paths the one that a candidate's path names; None where none or several
    do."""
    if name in known:
        return name
    here, known_here = Path(name), [Path(one) for one in known]
    for is_alike in (
        lambda one: one.name == here.name,
        lambda one: one.parent == here.parent and _number(one) == _number(here) is not None,
        lambda one: _number(one) == _number(here) is not None,
    ):
        found = [one for one in known_here if is_alike(one)]
        if found:
            return found[0].as_posix() if len(found) == 1 else None
    return None


def _candidates(root: Path) -> dict[str, Path | None]:
    if not root.is_dir():
        return {root.name: root}
    paths = find_files(root, include=())
    if not paths:
        raise ConfigError(f"{root}: no *.py in it; a directory of candidates has some")
    return {path.relative_to(root).as_posix(): path for path in paths}


def _problem_files(problem: Path, names: Sequence[str]) -> dict[str, ProblemFile]:
    """The problem that each candidate answers. Raises ConfigError, a line for each without."""
    if not problem.is_dir():
        file = parse_file(problem)
        return dict.fromkeys(names, file)
    known = {path.relative_to(problem).as_posix(): path for path in find_files(problem, include=())}
    answered = {name: find_problem(name, list(known)) for name in names}
    mistakes = [
        f"{name}: {problem} has no one problem of this name or number"
        for name, found in answered.items()
        if found is None
    ]
    files: dict[str, ProblemFile] = {}
    for found in {one for one in answered.values() if one is not None}:
        try:
            files[found] = parse_file(known[found])
        except ConfigError as error:
            mistakes.append(str(error))
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return {name: files[found] for name, found in answered.items() if found is not None}


def _number(path: Path) -> str | None:
    match = re.match(r"0*(\d+)", path.stem)
    return match[1] if match else None


def _decode(data: bytes, name: str) -> str:
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{name}: longer than {MAX_BYTES >> 20} MiB; a candidate is a source")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{name}: byte 0x{data[error.start]:02x} at {error.start} is no UTF-8; a candidate is "
            "Python, or an answer with a block of it"
        ) from error
