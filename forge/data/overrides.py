# pyright: strict
"""Values for module constants of problem files: for all files of a folder, and for single ones.

    {"batch_size": 16, "3_matmul": {"N": 512}, "level2/7": {"dim": 64}}

A table names a problem as a candidate's file does: by path, by name, by number, or by
`level=1 problem_id=19`. Called by
`directory.py` for `[problems] overrides`, and by `forge judge` for `--override`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from forge.config.schema.problems import Constant

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

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
        """A line for each override that names no problem, or no constant.

        Args:
            constants: module constants of files by their paths; of all files, or of those in use.
            among: paths of all files of the folder.
            prefix: beginning of each line, `problems.overrides.` or `--override `.
        """
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
