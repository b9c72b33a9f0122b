"""`compare`: reads both runs once each and assembles the comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from forge.views.compare.config import find_changes
from forge.views.compare.curves import (
    TrainedSteps,
    compare_curves,
    has_rollouts,
    load_trained_steps,
)
from forge.views.compare.problems import (
    Answers,
    Chosen,
    choose_evaluation,
    compare_problems,
    parts_by_device,
    parts_by_level,
    score,
    tallies,
)
from forge.views.compare.records import By, Comparison, Side
from forge.views.run.standing import run_state

if TYPE_CHECKING:
    from forge.store.reader import RunReader

UNIT = {By.STEP: "steps", By.TOKENS: "tokens", By.TIME: "seconds"}
INSTEAD = "no curves; the last evaluations are compared"
FAR_APART = 0.1
"""Relative difference in cost beyond which evaluations are reported as unequal."""


def compare(a: RunReader, b: RunReader, *, by: By = By.STEP) -> Comparison:
    """Compares two runs at equal steps, tokens or time."""
    of_rollouts = has_rollouts(a) or has_rollouts(b)
    left = load_trained_steps(a, of_rollouts=of_rollouts)
    right = load_trained_steps(b, of_rollouts=of_rollouts)
    notes: list[str] = []
    kind = "step of grpo" if of_rollouts else "step"
    names = (a.paths.name, b.paths.name)
    budget = _budget(left, right, by, kind=kind, names=names, notes=notes)
    curves = compare_curves(left, right, by=by, budget=budget) if budget else ()
    chosen_a = choose_evaluation(a, left, by=by, budget=budget)
    chosen_b = choose_evaluation(b, right, by=by, budget=budget)
    answers_a, answers_b = _common(a, b, chosen_a, chosen_b, by=by, budget=budget, notes=notes)
    return Comparison(
        by=by,
        budget=budget,
        a=_side(a, left, chosen_a, by=by),
        b=_side(b, right, chosen_b, by=by),
        config=find_changes(a, b),
        curves=curves,
        score=score(tallies(answers_a), tallies(answers_b)),
        problems=compare_problems(answers_a, answers_b),
        by_level=parts_by_level(answers_a, answers_b),
        by_device=parts_by_device(answers_a, answers_b),
        notes=tuple(notes),
    )


def _side(reader: RunReader, steps: TrainedSteps, chosen: Chosen | None, *, by: By) -> Side:
    return Side(
        name=reader.paths.name,
        state=run_state(reader),
        spent=steps.total(by),
        devices=chosen.devices if chosen else (),
        evaluation=None if chosen is None else chosen.name,
    )


def _budget(
    a: TrainedSteps, b: TrainedSteps, by: By, *, kind: str, names: tuple[str, str], notes: list[str]
) -> float | None:
    """Common budget; None if a run has no steps or did not count the quantity."""
    for name, steps in zip(names, (a, b), strict=True):
        if not steps.places:
            notes.append(f"{name} has trained no {kind}: {INSTEAD}")
        elif steps.total(by) is None:
            notes.append(f"{name} did not count its {UNIT[by]}: {INSTEAD}")
    known = [spent for each in (a, b) if each.places and (spent := each.total(by)) is not None]
    return min(known) if len(known) == 2 else None


def _common(
    a: RunReader,
    b: RunReader,
    chosen_a: Chosen | None,
    chosen_b: Chosen | None,
    *,
    by: By,
    budget: float | None,
    notes: list[str],
) -> tuple[dict[str, Answers], dict[str, Answers]]:
    """Answers to the problems that are the same in both, by name and source."""
    for reader, chosen in ((a, chosen_a), (b, chosen_b)):
        if chosen is None:
            when = "" if budget is None else f" after at most {budget:,.0f} {UNIT[by]}"
            notes.append(f"{reader.paths.name} has no evaluation{when}: no problems won or lost")
    if chosen_a is None or chosen_b is None:
        return {}, {}
    found_a, found_b = chosen_a.answers, chosen_b.answers
    both = found_a.keys() & found_b.keys()
    same = {name for name in both if found_a[name].source == found_b[name].source}
    if not both:
        notes.append(
            f"no problem in common: {a.paths.name} evaluated {_some(found_a)}, "
            f"{b.paths.name} {_some(found_b)}"
        )
    elif len(same) < len(both):
        notes.append(
            f"{len(both) - len(same)} problems share a name but not their source: left out"
        )
    if same and len(same) < max(len(found_a), len(found_b)):
        notes.append(
            f"{len(same)} problems in common, of {len(found_a)} and {len(found_b)} evaluated"
        )
    spent_a, spent_b = chosen_a.spent, chosen_b.spent
    if (
        budget is not None
        and spent_a is not None
        and spent_b is not None
        and abs(spent_a - spent_b) > FAR_APART * max(spent_a, spent_b)
    ):
        notes.append(
            f"no evaluations at equal {UNIT[by]}: {chosen_a.name} after {spent_a:.0f}, "
            f"{chosen_b.name} after {spent_b:.0f}"
        )
    return {n: found_a[n] for n in same}, {n: found_b[n] for n in same}


def _some(answers: Mapping[str, Answers]) -> str:
    names = sorted(answers)
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]
