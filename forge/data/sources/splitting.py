"""Division of problems into training and evaluation: by use, by level, or at random.

Problems with the same normal form are near-duplicates: a random choice keeps them together, and a
training problem that duplicates a held-out one is refused or left out. Pure and deterministic.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from forge.data.sources.normal_form import normal_digest
from forge.errors import ConfigError
from forge.records import Problem, Split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.config.schema import ProblemsTable

logger = logging.getLogger(__name__)

REMEDY = (
    'problems.duplicates = "drop" leaves such out of training, "allow" trains on them and labels '
    "evaluations"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSource:
    """Problems of one source."""

    problems: Sequence[Problem]
    use: str = "both"
    """`both`, `train` or `heldout`."""
    is_generated: bool = False
    """True if the generator has divided them already."""


def split_problems(
    sources: Sequence[LoadedSource], table: ProblemsTable, *, seed: int
) -> list[Problem]:
    """The problems of all sources, each with its split; those of levels without a use are left out.

    Raises:
        ConfigError: a level that no problem has, or a duplicate of a held-out problem.
    """
    _check_levels(sources, table)
    placed = [
        (problem, split)
        for source in sources
        for problem in source.problems
        for split in _splits(problem, source, table)
    ]
    if not any(split is Split.HELDOUT for _, split in placed):
        chosen = _draw([p for p, split in placed if split is None], table.num_heldout, seed=seed)
        placed = [(p, Split.HELDOUT if p.problem_id in chosen else split) for p, split in placed]
    done = [replace(problem, split=split or Split.GRPO) for problem, split in placed]
    if table.duplicates == "allow":
        return done
    generated = {p.problem_id for source in sources if source.is_generated for p in source.problems}
    clashes = _find_clashes(done, generated)
    if clashes and table.duplicates == "refuse":
        trained, heldout = next(iter(clashes.items()))
        raise ConfigError(f"problems: {clash(trained, heldout, num=len(clashes))}")
    if clashes:
        logger.info("%d problems left out, as duplicates of held-out ones", len(clashes))
    return [problem for problem in done if problem.problem_id not in clashes]


def clash(trained: str, heldout: str, *, num: int) -> str:
    """A message about `num` duplicates of held-out problems, with the names of one."""
    more = f" (and {num - 1} more)" if num > 1 else ""
    return (
        f"{trained} is to be trained on and {heldout} is held out, but their code is the same "
        f"apart from names, comments and sizes{more}; {REMEDY}"
    )


def digests_of_heldout(problems: Sequence[Problem]) -> dict[str, str]:
    """Ids of held-out problems by the digests of their normal forms."""
    return {
        digest: problem.problem_id
        for problem in problems
        if problem.split is Split.HELDOUT
        if (digest := normal_digest(problem.source, entry_point=problem.entry_point))
    }


def _splits(
    problem: Problem, source: LoadedSource, table: ProblemsTable
) -> tuple[Split | None, ...]:
    """The split of a problem in a tuple: None if it is still to be drawn; an empty tuple if the
    problem is left out."""
    if source.use == "heldout":
        return (Split.HELDOUT,)
    if source.is_generated:
        is_kept = source.use == "both" or problem.split is not Split.HELDOUT
        return (problem.split if is_kept else Split.GRPO,)
    if source.use == "train":
        return (Split.GRPO,)
    if table.heldout_levels is not None and problem.level in table.heldout_levels:
        return (Split.HELDOUT,)
    if table.train_levels is not None and problem.level not in table.train_levels:
        return ()
    return (None if table.heldout_levels is None else Split.GRPO,)


def _check_levels(sources: Sequence[LoadedSource], table: ProblemsTable) -> None:
    known = {
        problem.level
        for source in sources
        if source.use == "both" and not source.is_generated
        for problem in source.problems
    }
    for name in ("train_levels", "heldout_levels"):
        missing = sorted(set(getattr(table, name) or ()) - known)
        if missing:
            there = ", ".join(map(str, sorted(known))) or "none"
            raise ConfigError(
                f"problems.{name}: found {missing[0]}, and no problem has this level; there are "
                f"{there}"
            )


def _draw(problems: Sequence[Problem], num_heldout: int, *, seed: int) -> set[str]:
    """Ids of a random choice of near-duplicate groups with `num_heldout` problems or a few more;
    none if fewer than as many again would be left, so all serve both training and evaluation."""
    if len(problems) < 2 * num_heldout:
        return set()
    groups: dict[str, list[str]] = {}
    for problem in problems:
        digest = normal_digest(problem.source, entry_point=problem.entry_point)
        groups.setdefault(digest or problem.problem_id, []).append(problem.problem_id)
    members = list(groups.values())
    chosen: set[str] = set()
    for index in Random(seed).sample(range(len(members)), min(num_heldout, len(members) - 1)):
        if len(chosen) < num_heldout:
            chosen.update(members[index])
    return chosen


def _find_clashes(problems: Sequence[Problem], generated: set[str]) -> dict[str, str]:
    """Ids of training problems that duplicate a held-out one, with the id of that one. The
    generator's own problems are not compared with each other: their compositions differ."""
    if all(problem.split is not Split.HELDOUT for problem in problems):
        return {}
    heldout = digests_of_heldout(problems)
    return {
        problem.problem_id: heldout[digest]
        for problem in problems
        if problem.split is not Split.HELDOUT
        if (digest := normal_digest(problem.source, entry_point=problem.entry_point)) in heldout
        and digest is not None
        and not {problem.problem_id, heldout[digest]} <= generated
    }
