"""The stage ladder: a line per stage, with each evaluation's interval on a scale of 0 to 100 %."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from forge.views.run_state import Rung, RungState
from forge.views.text.numbers import bar, duration, percent
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SIGNS = {
    RungState.DONE: ("✔", "green"), RungState.RUNNING: ("▶", "bold cyan"),
    RungState.WAITING: ("○", "dim"), RungState.CUT: ("✘", "red"),
}  # fmt: skip
SCALE, MOST_SCALE = 16, 60
"""Columns of the scale: least, and most."""
FIXED = 62
"""Columns of a line beside the scale."""
NAMED_FROM = 50
"""Columns of the terminal from which a rate has its name."""
STEPS_BAR = 8


def draw_ladder(rungs: Sequence[Rung], gains: Mapping[str, str], *, width: int) -> Text:
    """A line per rung.

    Args:
        gains: name of an evaluation to its gain over the one before: `+21.9 pts`, `+1.2 pts?`.
    """
    scale = min(MOST_SCALE, width - FIXED)
    label = "pass@1 " if width >= NAMED_FROM else ""
    lines = [_line(rung, gains.get(rung.name, ""), scale, label) for rung in rungs]
    return Text("\n").join(lines)


def ladder_line(rungs: Sequence[Rung]) -> Text:
    """All stages in one line, for a small terminal: `✔ eval-0 0.0 %  ▶ grpo-1 12/20`."""
    text = Text(no_wrap=True, overflow="ellipsis")
    for rung in rungs:
        sign, style = SIGNS[rung.state]
        if rung.name.startswith("@"):
            continue
        text.append(f"{sign} {printable(rung.name)}", style=style)
        words = percent(rung.pass_at_1) if rung.pass_at_1 is not None else ""
        if rung.state is RungState.RUNNING and rung.kind != "eval":
            words = _steps(rung)
        text.append(f" {words}  " if words else "  ", style="bold")
    return text


def draw_scale(rung: Rung, columns: int) -> Text:
    """`  ├──●──┤   `: the interval and the estimate on 0 to 100 %."""
    assert rung.pass_at_1 is not None
    cells = ["·" if column % max(columns // 4, 1) == 0 else " " for column in range(columns)]
    low, at, high = (
        round(min(max(share, 0.0), 1.0) * (columns - 1))
        for share in (rung.low or 0.0, rung.pass_at_1, rung.high or 0.0)
    )
    for column in range(low, high + 1):
        cells[column] = "─"
    if high > low:
        cells[low], cells[high] = "├", "┤"
    cells[at] = "●"
    text = Text("".join(cells), style="dim")
    text.stylize("not dim cyan", min(low, at), max(high, at) + 1)
    text.stylize("bold", at, at + 1)
    return text


def _line(rung: Rung, gain: str, scale: int, label: str) -> Text:
    sign, style = SIGNS[rung.state]
    is_within = rung.name.startswith("@")
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append("  " if is_within else f"{sign} ", style=style)
    name = f"{printable(rung.name):<10}"
    line.append(name, style="dim" if rung.state is RungState.WAITING or is_within else "bold")
    if rung.pass_at_1 is None:
        return line.append_text(_training(rung))
    line.append(f" {label}{percent(rung.pass_at_1):>7} ", style="" if is_within else "bold")
    if scale >= SCALE:
        line.append_text(draw_scale(rung, scale)).append(" ")
    line.append(f"{_interval(rung):>7} %  {rung.size:<6}", style="dim")
    if gain:
        line.append(f" {gain}", style=_gain_style(gain))
    return line


def _gain_style(gain: str) -> str:
    if gain.endswith("?"):
        return "yellow"
    return "green" if gain.startswith("+") else "red"


def _training(rung: Rung) -> Text:
    text = Text()
    if rung.kind != "eval" and rung.step is not None:
        text.append(f" {_steps(rung)} steps")
        if rung.state is RungState.RUNNING and rung.num_steps:
            text.append(f"  {bar(rung.step / rung.num_steps, width=STEPS_BAR)}", style="cyan")
    if rung.seconds is not None:
        text.append(f"  {duration(rung.seconds)}", style="dim")
    return text


def _steps(rung: Rung) -> str:
    return f"{rung.step or 0}/{rung.num_steps}" if rung.num_steps else f"{rung.step or 0}"


def _interval(rung: Rung) -> str:
    return f"{100 * (rung.low or 0.0):.0f}–{100 * (rung.high or 0.0):.0f}"
