# pyright: strict
"""The problems that an environment serves, by the names that its clients use.

`level1/19_ReLU` is `L1_19_ReLU` here, as in kernrl; a file without a level keeps its id. A client
may also give the id, a number, KernelBench's `level=1 problem_id=19`, or part of a name.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from forge.config.schema.problems import SourceTable
from forge.data.directory import level_of, parse_file, parse_source, to_problem
from forge.data.overrides import find_problem
from forge.data.pairs.files import SUFFIXES
from forge.data.sources.loading import load_source
from forge.errors import ConfigError
from forge.records import Problem, Split

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.config.schema.problems import RowFormat

_LEVEL = re.compile(r"level[_-]?\d+", re.IGNORECASE)
MAX_NAMES = 5
"""Names that a message lists."""
GIVEN = "given"
"""Name of a problem whose source a client sends."""


class NoProblem(ValueError):
    """A problem that a client asks for and that is not served. The message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedProblems:
    """Problems by name, in order."""

    by_name: Mapping[str, Problem]
    names: Sequence[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.by_name))

    def find(self, name: str) -> tuple[str, Problem]:
        """The name and the problem that a client means. Raises NoProblem."""
        if name in self.by_name:
            return name, self.by_name[name]
        by_id = {problem.problem_id: known for known, problem in self.by_name.items()}
        found = find_problem(name, list(by_id))
        known = None if found is None else by_id[found]
        if known is None and name:
            known = next((each for each in self.names if name in each), None)
        if known is None:
            listed = ", ".join(self.names[:MAX_NAMES])
            more = len(self.names) - MAX_NAMES
            rest = f" and {more} more" if more > 0 else ""
            raise NoProblem(f"problem_id: {name[:100]}: no such problem; there are {listed}{rest}")
        return known, self.by_name[known]

    def choose(self, seed: int | None) -> tuple[str, Problem]:
        """A problem at random; the same for the same seed. Raises NoProblem if there is none."""
        if not self.names:
            raise NoProblem("the server has no problems of its own; send reference_code")
        name = random.Random(seed).choice(self.names)
        return name, self.by_name[name]


def serve_problems(path: Path | None, *, format: RowFormat = "kernelbench") -> ServedProblems:
    """The problems in a directory, a problem file or a file of rows; none without a path. Raises
    ConfigError."""
    if path is None:
        return ServedProblems(by_name={})
    if path.is_dir():
        problems = load_source(SourceTable(source="dir", path=path), key="--openenv: ")
    elif path.suffix in SUFFIXES:
        table = SourceTable(source="file", path=path, format=format)
        problems = load_source(table, key="--openenv: ")
    else:
        file = parse_file(path)
        problems = [to_problem(file, root=path.parent, overrides={}, split=Split.GRPO)]
    by_name: dict[str, Problem] = {}
    for problem in problems:
        name = _name_of(problem, root=path if path.is_dir() else path.parent)
        by_name[problem.problem_id if name in by_name else name] = problem
    return ServedProblems(by_name=by_name)


def given_problem(source: str) -> Problem:
    """The problem in a source that a client sends. Raises NoProblem."""
    try:
        file = parse_source(source, path=Path(f"{GIVEN}.py"))
        return to_problem(file, root=Path(), overrides={}, split=Split.GRPO)
    except (ConfigError, UnicodeEncodeError) as error:
        raise NoProblem(f"reference_code: {error}") from error


def _name_of(problem: Problem, *, root: Path) -> str:
    """`L1_19_ReLU` for a file in a folder of a level, else the problem's id."""
    path = root / f"{problem.problem_id}.py"
    if not any(_LEVEL.fullmatch(part) for part in path.resolve().parent.parts):
        return problem.problem_id
    return f"L{level_of(path)}_{path.stem}"
