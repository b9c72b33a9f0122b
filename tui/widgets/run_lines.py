"""The texts of the Run screen: figures, health or ending, best kernels, verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.columns import Columns
from rich.console import Group
from rich.text import Text

from forge.tui.widgets.processes import SIGNS, STYLES
from forge.tui.widgets.verdicts import SIGNS as VERDICT_SIGNS
from forge.tui.widgets.verdicts import STOPPED
from forge.views.text.numbers import (
    NONE,
    at_least,
    bar,
    duration,
    factor,
    launches,
    number,
    percent,
    share,
)
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from forge.views.curves import Activity
    from forge.views.run_state import PlayedSteps, RunState

IDLE_BAR = 8
MIX_BAR = 12
IDLE_MUCH = 0.5
"""Idle share from which a role is marked."""
ENDED = {"done": "bold green", "stopped": "bold yellow", "failed": "bold red", "killed": "bold red"}
"""State of a run that has ended, to its style."""


def figures(run: RunState | None, activity: Activity) -> Text:
    """Step, ETA, rates; then idle shares. Missing numbers are omitted."""
    live = run and run.live
    if live:
        pairs = [
            (live.stage, f"{live.done}/{live.total} {live.unit}" if live.total else ""),
            ("ETA", duration(live.eta_s)),
            *((name, number(value)) for name, value in live.numbers.items() if name == "loss"),
            ("tok/s", number(live.tokens_per_s or None)),
            ("judged/s", number(live.judged_per_s or None)),
        ]
    else:
        pairs = _store_figures(run)
    if run is not None and (live or run.state == "running"):
        pairs.insert(2, ("rollouts/s", number(activity.rollouts_per_s)))
    if run is not None:
        pairs += [
            *_played(run.played),
            ("pass@1", NONE if live else percent(run.pass_at_1)),  # beside its stage
            ("evaluated", run.judged if run.is_judged_in_part else NONE),
            ("trained on", run.trained_on or NONE),
        ]
    text = Text()
    for name, value in pairs:
        if value != NONE:
            text.append(f"{printable(name)} ", style="dim")
            text.append(f"{printable(value)}  ", style="bold")
    idle = live.idle if live else activity.idle
    if not idle:
        return text
    text.append("\nidle ", style="dim")
    for role in sorted(idle, reverse=True):
        style = "yellow" if idle[role] >= IDLE_MUCH else "green"
        text.append(f"{printable(role)} ").append(share(idle[role]), style="bold")
        text.append(f" {bar(idle[role], width=IDLE_BAR)}  ", style=style)
    return text


def _played(played: PlayedSteps) -> list[tuple[str, str]]:
    """Means of the last finished step; then the open steps with their groups."""
    return [
        ("reward", number(played.reward)),
        ("pass rate", percent(played.pass_rate)),
        *(
            (f"step {each.step} open", f"{each.num_groups}/{each.num_expected_groups} groups")
            for each in played.open_steps
        ),
    ]


def _store_figures(run: RunState | None) -> list[tuple[str, str]]:
    """Numbers from the store. A run that has ended has no rates."""
    if run is None:
        return []
    pairs = [("ran", duration(run.ran_s))]
    step = NONE if run.step is None else f"{run.step}/{run.num_steps or '?'}"
    if run.state == "running":
        pairs = [
            ("ETA", duration(run.eta_s)),
            ("tok/s", number(run.tokens_per_s)),
            ("turns/s", number(run.turns_per_s)),
        ]
    return [("step", step), *pairs, ("turns", f"{run.num_turns:,}")]


def health(run: RunState | None) -> Text:
    """Reason why a run ended, empty if it is done; of a running one the worst processes first, with
    the reason, then the number of healthy ones.
    """
    live = run and run.live
    if live is None:
        return _ending(run)
    text = Text("health ", style="dim")
    for kind in ("red", "yellow"):
        for each in live.components:
            if each.health == kind:
                text.append(SIGNS[kind], style=f"not dim {STYLES[kind]}")
                text.append(f" {printable(each.name)} {printable(each.why)}  ", style="not dim")
    num_well = sum(each.health == "green" for each in live.components)
    text.append(SIGNS["green"], style=f"not dim {STYLES['green']}")
    return text.append(f" {num_well} of {len(live.components)}", style="not dim")


def _ending(run: RunState | None) -> Text:
    state = run.state if run else "unknown"
    if state not in ENDED:
        return Text(f"no supervisor answers; the run is {state}")
    words = run.reason if run else None
    if state == "done" and words in (None, state):
        return Text()
    text = Text(state, style=ENDED[state])
    if words and words != state:
        text.append(f": {printable(words)}", style="not bold")
    if state in ("killed", "stopped", "failed") and run is not None:
        text.append(f'; "forge resume {printable(run.run)}" continues it', style="not bold")
    return text


def best_kernels(rows: Sequence[Mapping[str, Any]]) -> Text:
    """The best kernels, a line each: speed-up, or launches and length where nothing was timed."""
    text = Text(no_wrap=True, overflow="ellipsis")
    if not rows:
        return text
    text.append("best kernels (4 shows all)", style="bold")
    for row in rows:
        text.append("\n")
        if row["speedup_low"] is None:
            speed = launches(row["num_launches"])
        else:
            speed = f"{at_least(row['speedup_low'])} ({factor(row['speedup'])})"
        text.append(f"{speed:<18}", style="green")
        text.append(f"{printable(row['problem_id'])}  ")
        text.append(printable(row["turn_id"]), style="dim")
    return text


def mix(activity: Activity) -> Group | Text:
    """Distribution of the last verdicts."""
    if not activity.mix:
        return Text("no verdict yet", style="dim")
    parts = []
    for row in activity.mix:
        _, style = VERDICT_SIGNS.get(row["status"], STOPPED)
        part = Text(f"{printable(row['status'])} {share(row['share'])} ", no_wrap=True)
        parts.append(part.append(bar(row["share"], width=MIX_BAR), style=style))
    heading = Text("verdicts of the last groups", style="bold")
    return Group(heading, Columns(parts, padding=(0, 3)))
