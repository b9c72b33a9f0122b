"""Examinations on a terminal and as JSON. Called by `forge problems check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.records.examination import Examination

MAX_SHAPES = 3


def render(examinations: Sequence[Examination]) -> Group:
    """A line a problem and a summary. What a problem's file said is shown, not obeyed."""
    names = ("problem", "outputs", "forward", "flags", "what it means")
    table = Table(*names, box=None, pad_edge=False)
    table.columns[2].justify = "right"
    for each in examinations:
        table.add_row(
            Text(printable(each.problem_id)),
            Text(printable(_shapes(each))),
            Text("" if each.forward_s is None else _seconds(each.forward_s)),
            Text(next(iter(each.flags), "ok"), style=_style(each)),
            Text(printable(next(iter(each.flags.values()), ""))),
        )
        for flag, words in list(each.flags.items())[1:]:
            table.add_row("", "", "", Text(flag, style=_style(each)), Text(printable(words)))
    return Group(table, Text(""), Text(summary(examinations)))


def summary(examinations: Sequence[Examination]) -> str:
    """`100 problems: 81 trainable, 12 trivial, 7 unusable`, and what follows."""
    num_usable = sum(each.is_usable for each in examinations)
    num_trainable = sum(each.is_trainable for each in examinations)
    num_unchecked = sum(each.num_unchecked > 0 for each in examinations)
    plural = "" if len(examinations) == 1 else "s"
    words = f"{len(examinations)} problem{plural}: {num_trainable} can be trained on"
    if num_trivial := num_usable - num_trainable:
        words += f", {num_trivial} would pay an answer that does less than they ask"
    if num_unusable := len(examinations) - num_usable:
        words += f", {num_unusable} cannot be judged"
    if num_unchecked:
        words += f"; {num_unchecked} not fully checked, for lack of time"
    return words


def to_json(examinations: Sequence[Examination]) -> dict[str, Any]:
    """For programs."""
    return {
        "num_problems": len(examinations),
        "num_usable": sum(each.is_usable for each in examinations),
        "num_trainable": sum(each.is_trainable for each in examinations),
        "problems": [each.to_json() for each in examinations],
    }


def _shapes(each: Examination) -> str:
    more = len(each.outputs) - MAX_SHAPES
    words = "\n".join(each.outputs[:MAX_SHAPES])
    return f"{words}\nand {more} more" if more > 0 else words


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _style(each: Examination) -> str:
    if not each.flags:
        return "green"
    return "yellow" if each.is_usable else "red"
