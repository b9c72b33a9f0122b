"""Opening paragraph of a report: what was trained, what it gained, its best kernel, failures and
cost. A sentence whose numbers are missing is left out.

Pure; the page escapes the sentences, which contain stored names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge.views.outcome.gains import whole_evaluations
from forge.views.report.setup import gpu_names, model_words, problem_words
from forge.views.run.evaluations import trained_label
from forge.views.text.numbers import clock, percent, share

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge.views.outcome.gains import Gain
    from forge.views.report.facts import Facts

NUM_REASONS = 3
"""Reasons of failure that are named."""
VERBS = {"done": "trained", "running": "is training"}
"""State of a run to the verb; any other run ended early."""


def opening(facts: Facts) -> list[str]:
    """The sentences, in order."""
    found = [
        _trained(facts), _from_where_to_where(facts), _gained(facts), _best_kernel(facts),
        _failed(facts), _cost(facts),
    ]  # fmt: skip
    return [each for each in found if each]


def _trained(facts: Facts) -> str:
    """`This run trained … in 1,600 steps of SFT and 20 steps of GRPO on 60 problems.`"""
    steps = [
        f"{num:,} {'step' if num == 1 else 'steps'} of {kind.upper()}"
        for kind, num in facts.trained_steps
    ]
    model = model_words(facts.settings)
    if not steps:
        if not model:
            return ""
        if facts.evaluations:
            return f"This run evaluated {model}."
        return f"This run of {model} has trained and evaluated nothing."
    verb = VERBS.get(facts.state, "trained, before it ended early,")
    return f"This run {verb} {model or 'a model'} in {_listed(steps)}{problem_words(facts)}."


def _from_where_to_where(facts: Facts) -> str:
    chosen = whole_evaluations(facts.evaluations)
    if not chosen:
        return ""
    first, last = chosen[0], chosen[-1]
    on = "held-out problems" if not trained_label(last) else f"problems ({trained_label(last)})"
    end = f"{percent(last['pass_at_1'])} in {last['stage']} ({_interval(last)}; {_of(last)})"
    if len(chosen) == 1:
        return f"pass@1 on {on} was {end}."
    same = _of(first) == _of(last)
    begin = f"{percent(first['pass_at_1'])} in {first['stage']}{'' if same else f' ({_of(first)})'}"
    return f"pass@1 on {on} went from {begin} to {end}."


def _gained(facts: Facts) -> str:
    """The paired gain of each training stage."""
    parts = [f"{_listed(list(gain.by))} {_verb(gain)} {gain.points()}" for gain in facts.gains]
    return f"Paired by problem, {_listed(parts)}." if parts else ""


def _verb(gain: Gain) -> str:
    if not gain.is_clear:
        return "shows no clear gain:"
    return "gained" if gain.estimate.value > 0 else "made it worse:"


def _best_kernel(facts: Facts) -> str:
    if not facts.num_turns:
        return ""
    best = next((row for row in facts.kernels if row["speedup_low"] is not None), None)
    if best is not None:
        times = f"{best['candidate_us']:,.1f} µs against {best['baseline_us']:,.1f} µs"
        return (
            f"The best kernel, for {best['problem_id']}, is at least {best['speedup_low']:.2f} "
            f"times as fast as the baseline ({times})."
        )
    if not facts.kernels:
        return "No kernel was correct."
    solved = next((row for row in facts.problems if row["purpose"] == "train"), None)
    untimed = "nothing was timed, as on a machine without a GPU"
    if solved is None:
        return f"Kernels are ranked by launches and length: {untimed}."
    of = f"{solved['num_solved']:,} of {solved['num_problems']:,} training problems"
    return f"{of} were solved at least once; {untimed}."


def _failed(facts: Facts) -> str:
    total = sum(row["num_turns"] for row in facts.reasons)
    if not total:
        return ""
    counts: dict[str, int] = {}
    for row in facts.reasons:
        name = f"{row['status']} ({row['reason']})"
        counts[name] = counts.get(name, 0) + row["num_turns"]
    worst = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:NUM_REASONS]
    parts = [f"{name} {share(num / total)}" for name, num in worst]
    return f"Of {total:,} failed turns, most were {_listed(parts)}."


def _cost(facts: Facts) -> str:
    seconds = facts.seconds
    if seconds is None:
        return ""
    cards = gpu_names(facts)
    spent = f"It took {clock(seconds)}"
    if cards:
        spent += f" on {_listed(cards)}"
    else:
        spent += " without a GPU"
    attempts = f", in {len(facts.attempts)} attempts" if len(facts.attempts) > 1 else ""
    played = f": {facts.num_rollouts:,} rollouts, {facts.num_turns:,} turns judged"
    return f"{spent}{attempts}{played if facts.num_turns else ''}."


def _interval(row: Mapping[str, Any]) -> str:
    return f"95 %: {percent(row['ci_low'])} to {percent(row['ci_high'])}"


def _of(row: Mapping[str, Any]) -> str:
    samples = "sample" if row["num_samples"] == 1 else "samples"
    return f"{row['num_problems']} problems × {row['num_samples']} {samples}"


def _listed(parts: list[str]) -> str:
    """`a, b and c`."""
    return " and ".join([*[", ".join(parts[:-1])] * (len(parts) > 1), *parts[-1:]])
