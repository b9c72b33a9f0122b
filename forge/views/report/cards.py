"""Headline and cards of a report: its most important numbers. Pure; `page` renders them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge.views.report.facts import MOST_CODES, MOST_KERNELS, when
from forge.views.text.numbers import clock, grouped, percent

if TYPE_CHECKING:
    from forge.views.report.facts import Facts


def describe(facts: Facts) -> dict[str, Any]:
    """Headline, description, cards with key numbers, and the note on the list of kernels."""
    seconds = facts.seconds
    words = [f"{len(facts.attempts)} attempts"] if len(facts.attempts) > 1 else []
    words += [f"took {rounded_clock(seconds)}"] if seconds is not None else []
    kinds = " → ".join(str(each.get("kind")) for each in facts.stages)
    about = [
        f"stages: {kinds}" if kinds else "",
        f"last row {when(facts.last_row_at)} UTC" if facts.last_row_at else "",
        f"forge {facts.run.get('forge_version', '?')}",
    ]
    last = facts.attempts[-1] if facts.attempts else {}
    reason = last.get("reason")
    why = f": {reason}" if reason and facts.state in ("failed", "stopped") else ""
    return {
        "headline": ", ".join([f"{facts.state}{why}", *words]),
        "about": "; ".join(part for part in about if part),
        "cards": [each for each in _cards(facts) if each is not None],
        "is_timed": any(row["speedup"] is not None for row in facts.kernels),
        "kernels_about": f", at most {MOST_KERNELS} of them; {MOST_CODES} with their code"
        if len(facts.kernels) > MOST_CODES
        else "",
    }


def rounded_clock(seconds: float | None) -> str:
    """`6:23` or `1:06:23`, to the nearest second."""
    return clock(None if seconds is None else round(seconds))


def _card(title: str, figure: str, about: str) -> dict[str, str]:
    return {"title": title, "figure": figure, "about": about}


def _cards(facts: Facts) -> list[dict[str, str] | None]:
    return [
        _pass_card(facts),
        _speed_card(facts),
        _solved_card(facts),
        _reward_card(facts),
        _card("Rollouts", f"{facts.num_rollouts:,}", f"{facts.num_turns:,} turns judged"),
        _card("Time", rounded_clock(facts.seconds), _num_steps(facts)) if facts.attempts else None,
    ]


def _num_steps(facts: Facts) -> str:
    """Number of GRPO steps; an experiment may have none."""
    num = len(facts.training.steps)
    return f"{num:,} {'step' if num == 1 else 'steps'} of GRPO" if num else "of all attempts"


def _pass_card(facts: Facts) -> dict[str, str] | None:
    if not facts.evaluations:
        return None
    first, last = facts.evaluations[0], facts.evaluations[-1]
    about = f"{last['stage']}, 95 %: {percent(last['ci_low'])} to {percent(last['ci_high'])}"
    if len(facts.evaluations) > 1:
        about += f"; {percent(first['pass_at_1'])} in {first['stage']}"
    return _card("pass@1", percent(last["pass_at_1"]), about)


def _speed_card(facts: Facts) -> dict[str, str] | None:
    best = next((row for row in facts.kernels if row["speedup"] is not None), None)
    if best is None:
        return None
    about = f"{best['problem_id']}, measured {best['speedup']:.2f}×"
    return _card("Best kernel", f"≥ {best['speedup_low']:.2f}×", about)


def _solved_card(facts: Facts) -> dict[str, str] | None:
    row = next((row for row in facts.problems if row["purpose"] == "train"), None)
    if row is None:
        return None
    share = percent(row["num_solved"] / row["num_problems"])
    solved = f"{row['num_solved']:,} of {row['num_problems']:,}"
    return _card("Training problems solved", solved, f"{share}, at least once")


def _reward_card(facts: Facts) -> dict[str, str] | None:
    rewards = [row for row in facts.training.steps if row["reward"] is not None]
    if not rewards:
        return None
    first, last = rewards[0], rewards[-1]
    about = f"step {last['step']}; {grouped(first['reward'])} at step {first['step']}"
    return _card("Reward", grouped(last["reward"]), about)
