"""Division of problems into training and evaluation: by use, by level, or at random.

Problems with the same normal form are near-duplicates: a random choice keeps them together, and a
training problem that duplicates a held-out one is refused or left out. Pure and deterministic.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from random import Random

from forge.config.schema import MOST_HELDOUT, SHARED, ProblemsTable
from forge.data.generator import is_generated
from forge.data.sources.normal_form import normal_digest
from forge.errors import ConfigError
from forge.records import Problem, Split

logger = logging.getLogger(__name__)

ONE_IN = 5
"""Default share of problems of directories and files that are held out: one in five."""
REMEDY = (
    'problems.duplicates = "drop" leaves such out of training, "allow" trains on them and labels '
    "evaluations"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSource:
    problems: Sequence[Problem]
    use: str = "both"
    """`both`, `train` or `heldout`."""
    is_generated: bool = False
    """True if the generator has divided them already."""


def split_problems(
    sources: Sequence[LoadedSource], table: ProblemsTable, *, seed: int
) -> list[Problem]:
    """The problems of all sources, each with its split; those of levels without a use are left out.
    Raises ConfigError for a level that no problem has, or a duplicate of a held-out problem."""
    _check_levels(sources, table)
    placed = [
        (problem, split)
        for source in sources
        for problem in source.problems
        for split in _splits(problem, source, table)
    ]
    if not any(split is Split.HELDOUT for _, split in placed):
        chosen = _draw([p for p, split in placed if split is None], table, seed=seed)
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
    return {digest_of(each): each.problem_id for each in problems if each.split is Split.HELDOUT}


def digest_of(problem: Problem) -> str:
    """Digest of a problem's normal form; of its text if it has none."""
    found = normal_digest(problem.source, entry_point=problem.entry_point)
    return found or sha256(problem.source.strip().encode(errors="replace")).hexdigest()


def num_shared(evaluated: Sequence[Problem], problems: Sequence[Problem]) -> int:
    """Number of evaluated problems that a run trains on sooner or later: all if none of its
    problems is held out, otherwise those with a duplicate that `duplicates = "allow"` kept."""
    generated = {each.problem_id for each in problems if is_generated(each.problem_id)}
    twins = set(_find_clashes(problems, generated).values())
    return sum(each.split is not Split.HELDOUT or each.problem_id in twins for each in evaluated)


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


def _draw(problems: Sequence[Problem], table: ProblemsTable, *, seed: int) -> set[str]:
    """Ids of a random choice of near-duplicate groups with as many problems as are held out, or a
    few more; none if training and evaluation share all."""
    if table.num_heldout == SHARED or not problems:
        return set()
    wanted = table.num_heldout or min(max(1, len(problems) // ONE_IN), MOST_HELDOUT)
    groups: dict[str, list[str]] = {}
    for problem in problems:
        groups.setdefault(digest_of(problem), []).append(problem.problem_id)
    members = list(groups.values())
    most = len(members) if table.num_heldout else max(1, len(members) - 1)
    chosen: set[str] = set()
    for index in Random(seed).sample(range(len(members)), min(wanted, most)):
        if len(chosen) < wanted:
            chosen.update(members[index])
    return chosen


def _find_clashes(problems: Sequence[Problem], generated: set[str]) -> dict[str, str]:
    """Ids of training problems that duplicate a held-out one, with the id of that one. The
    generator's own problems are not compared with each other: their compositions differ."""
    if len(generated) == len(problems) or all(p.split is not Split.HELDOUT for p in problems):
        return {}
    heldout = digests_of_heldout(problems)
    return {
        problem.problem_id: heldout[digest]
        for problem in problems
        if problem.split is not Split.HELDOUT
        if (digest := digest_of(problem)) in heldout
        and not {problem.problem_id, heldout[digest]} <= generated
    }
