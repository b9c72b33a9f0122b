# pyright: strict
"""The problems that an environment serves, by the names that its clients use.

`level1/19_ReLU` is `L1_19_ReLU` here, as in kernrl; a file without a level keeps its id. A client
may also give the id, a number, KernelBench's `level=1 problem_id=19`, or part of a name.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING

import anyio.to_thread

from forge.api.subjects import problem_from_text
from forge.data.overrides import find_problem
from forge.errors import ConfigError
from forge.process.ask import LOOP_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.commands.judge.known import KnownProblems
    from forge.records import Problem
    from forge.records.problem import ReferenceModule

_LEVEL = re.compile(r"level[_-]?\d+", re.IGNORECASE)
MAX_NAMES = 5
"""Names that a message lists."""


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


def serve_problems(known: KnownProblems | None) -> ServedProblems:
    """All known problems. Raises ConfigError for a file that is no problem."""
    by_name: dict[str, Problem] = {}
    for path in known.names if known is not None else ():
        assert known is not None
        problem = known.problem(known.file(path))
        name = _name_of(problem)
        by_name[problem.problem_id if name in by_name else name] = problem
    return ServedProblems(by_name=by_name)


async def given_problem(source: str) -> ReferenceModule:
    """The problem in a source that a client sends. Raises NoProblem."""
    try:
        if len(source) > LOOP_BYTES:
            return await anyio.to_thread.run_sync(problem_from_text, source)
        return problem_from_text(source)
    except ConfigError as error:
        raise NoProblem(f"reference_code: {' '.join(str(error).split())}") from error


def _name_of(problem: Problem) -> str:
    """`L1_19_ReLU` for a file in a folder of a level, else the problem's id."""
    if not _LEVEL.fullmatch(problem.family):
        return problem.problem_id
    return f"L{problem.level}_{PurePath(problem.problem_id).name}"
