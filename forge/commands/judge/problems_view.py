"""Output of `forge problems check`: a table, or JSON."""

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
    """One line per problem, and a summary. Control characters from problem files are escaped."""
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
        for flag, reason in list(each.flags.items())[1:]:
            table.add_row("", "", "", Text(flag, style=_style(each)), Text(printable(reason)))
    return Group(table, Text(""), Text(summary(examinations)))


def summary(examinations: Sequence[Examination]) -> str:
    """`100 problems: 81 can be trained on, 12 …, 7 cannot be judged`."""
    num_usable = sum(each.is_usable for each in examinations)
    num_trainable = sum(each.is_trainable for each in examinations)
    num_unchecked = sum(each.num_unchecked > 0 for each in examinations)
    plural = "" if len(examinations) == 1 else "s"
    text = f"{len(examinations)} problem{plural}: {num_trainable} can be trained on"
    if num_trivial := num_usable - num_trainable:
        text += f", {num_trivial} would reward an answer that does less than asked"
    if num_unusable := len(examinations) - num_usable:
        text += f", {num_unusable} cannot be judged"
    if num_unchecked:
        text += f"; {num_unchecked} not fully checked, for lack of time"
    return text


def to_json(examinations: Sequence[Examination]) -> dict[str, Any]:
    """The result for programs."""
    return {
        "num_problems": len(examinations),
        "num_usable": sum(each.is_usable for each in examinations),
        "num_trainable": sum(each.is_trainable for each in examinations),
        "problems": [each.to_json() for each in examinations],
    }


def _shapes(each: Examination) -> str:
    more = len(each.outputs) - MAX_SHAPES
    shapes = "\n".join(each.outputs[:MAX_SHAPES])
    return f"{shapes}\nand {more} more" if more > 0 else shapes


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _style(each: Examination) -> str:
    if not each.flags:
        return "green"
    return "yellow" if each.is_usable else "red"
