"""The rollouts of a group side by side: a table with their turns, and below it their code at the
current turn, one column each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text
from textual.containers import HorizontalScroll, Vertical, VerticalScroll
from textual.widgets import Static

from forge.tui.widgets.row_table import Column, RowTable
from forge.tui.widgets.texts import shown_code
from forge.tui.widgets.verdicts import path_of_statuses, signed, verdict_word
from forge.views.text.numbers import factor, number

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult

    from forge.views.rollouts import Conversation, Sibling

MAX_COLUMNS = 8
"""Number of codes shown at once, around the current sibling."""


def _by_turn(key: str, show: Callable[[Any], str]) -> Callable[[Sibling], str]:
    return lambda sibling: " ".join(show(turn[key]) for turn in sibling.turns)


COLUMNS = (
    Column("rollout", "rollout", lambda s: f"r{s.rollout}"),
    Column("return", "return", lambda s: number(s.turns[0]["discounted_return"]), is_number=True),
    Column("reward", "reward", _by_turn("reward", number), from_width=60),
    Column("advantage", "advantage", _by_turn("advantage", signed), from_width=50),
    Column(
        "tokens", "tokens", _by_turn("num_completion_tokens", str), from_width=100, is_number=True
    ),
    Column(
        "turns",
        "turns",
        lambda s: path_of_statuses([t["status"] or "?" for t in s.turns]),
        takes_rest=True,
    ),
)


class SiblingsPane(Vertical):
    """Filled by `show_group`; choosing a row posts DataTable.RowSelected."""

    DEFAULT_CSS = """
    SiblingsPane RowTable { height: auto; max-height: 9; }
    SiblingsPane HorizontalScroll { height: 1fr; scrollbar-size-horizontal: 0; }
    SiblingsPane .code { width: 48; min-width: 38; height: 1fr; border-left: solid $primary; }
    SiblingsPane .-own { border-left: thick $accent; }
    """

    def compose(self) -> ComposeResult:
        yield RowTable(COLUMNS, id="siblings-table")
        yield HorizontalScroll(id="codes", can_focus=False)

    async def show_group(self, found: Conversation, turn: int) -> None:
        """Shows the codes of `turn`, or of the last turn before it."""
        table = self.query_one(RowTable)
        table.show_rows([(f"r{each.rollout}", each) for each in found.siblings])
        table.choose(f"r{found.rollout}")
        codes = self.query_one("#codes", HorizontalScroll)
        await codes.remove_children()
        shown = _around(found)
        await codes.mount_all([_code(each, turn, found.rollout) for each in shown])
        own = codes.query(".-own").first()
        self.call_after_refresh(codes.scroll_to_widget, own, animate=False)


def _around(found: Conversation) -> list[Sibling]:
    at = next(i for i, each in enumerate(found.siblings) if each.rollout == found.rollout)
    first = max(0, min(at - MAX_COLUMNS // 2, len(found.siblings) - MAX_COLUMNS))
    return list(found.siblings[first : first + MAX_COLUMNS])


def _code(sibling: Sibling, number_of: int, own: int) -> VerticalScroll:
    turn = sibling.turn(number_of)
    heading = Text(f"r{sibling.rollout}.t{turn['turn']} ", style="bold")
    heading.append(verdict_word(turn["status"]))
    heading.append(f" reward {number(turn['reward'])}")
    if turn["speedup"] is not None:
        heading.append(f" {factor(turn['speedup'])}")
    classes = f"code{' -own' if sibling.rollout == own else ''}"
    code = turn["code"]
    return VerticalScroll(
        Static(heading, markup=False),
        Static(shown_code(code) if code else Text("no code"), markup=False),
        classes=classes,
    )
