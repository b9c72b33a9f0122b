"""The best correct kernel of each problem of a run, with all that its export says about it."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge.errors import ConfigError
from forge.views.kernels import load_kernel

if TYPE_CHECKING:
    from forge.store.reader import RunReader

MAX_NAME = 60
LEFT_OUT = ("group_id", "rollout", "turn", "code_id", "reward")
"""Columns of a turn that mean nothing outside its run."""

_BEST = """
SELECT b.turn_id, p.problem_id, p.entry_point, p.precision,
    (SELECT body FROM texts WHERE text_id = p.source_id) AS source
FROM v_best_kernels b JOIN problems p USING (problem_id) ORDER BY b.rank
"""
_COMMIT = "SELECT code_commit FROM attempts ORDER BY attempt DESC LIMIT 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class BestKernel:
    """A kernel and its problem."""

    name: str
    """Unique name: a Python identifier in lower case."""
    problem_id: str
    problem: str
    """Source of the problem; of one with several shapes, at the first."""
    code: str
    entry_point: str
    """Reference class; the kernel's has `New` after it."""
    precision: str
    verdict: dict[str, Any]
    """Status, times and device of its judgement, and every other time of the same code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Origin of the kernels."""

    run: str
    model: str
    """Model that wrote them: a path or a hub name, or a description."""
    problems: str
    """Source of the problems."""
    commit: str
    license: str
    """Identifier that the user chose."""


def load_best(reader: RunReader) -> list[BestKernel]:
    """The kernels, best first. Raises ConfigError if the run has none."""
    names: set[str] = set()
    found: list[BestKernel] = []
    for row in reader.rows(_BEST):
        kernel = load_kernel(reader, row["turn_id"])
        if kernel is None:
            continue
        verdict = {k: v for k, v in kernel.turn.items() if k not in LEFT_OUT}
        found.append(
            BestKernel(
                name=_name(row["problem_id"], names),
                problem_id=row["problem_id"],
                problem=row["source"],
                code=kernel.code,
                entry_point=row["entry_point"],
                precision=row["precision"],
                verdict={**verdict, "times": list(kernel.times)},
            )
        )
    if not found:
        raise ConfigError(
            f"{reader.paths.name}: found no correct kernel; "
            f'"forge show {reader.paths.name}" shows what its answers were'
        )
    return found


def load_origin(reader: RunReader, *, license: str) -> Origin:
    """The run, its model and its problems, by its experiment."""
    experiment = tomllib.loads(reader.value("SELECT experiment FROM runs"))
    model, serve = experiment.get("model", {}), experiment.get("serve", {})
    named = serve.get("model_name") or model.get("path")
    problems = experiment.get("problems", {})
    parts: list[dict[str, Any]] = problems.get("sources") or [problems]
    sources = {str(each.get("path") or "forge's generator (Apache-2.0)") for each in parts}
    return Origin(
        run=reader.paths.name,
        model=named or "a random model that this run trained",
        problems=", ".join(sorted(sources)),
        commit=reader.value(_COMMIT) or "",
        license=license,
    )


def _name(problem_id: str, taken: set[str]) -> str:
    """A new name after the last part of a problem's id; numbered if it is taken."""
    last = re.sub(r"[^a-z0-9]+", "_", problem_id.lower().rpartition("/")[2]).strip("_")
    plain = (last if last[:1].isalpha() else f"k{last}")[:MAX_NAME].rstrip("_")
    name, number = plain, 2
    while name in taken:
        name, number = f"{plain}_{number}", number + 1
    taken.add(name)
    return name
