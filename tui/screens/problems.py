"""The Problems screen: every problem with its pass rate, best speed-up, attempts and trend, sorted
and filtered by keys; Enter opens all attempts at one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.binding import Binding
from textual.widgets import DataTable, Input, Static

from forge.records import Purpose
from forge.tui.frame.asking import PacedScreen, following
from forge.tui.frame.dialogs import FilterLine
from forge.tui.widgets.row_table import Column, RowTable
from forge.tui.widgets.texts import spark
from forge.views.problems import ORDERS, ProblemFilter, load_problems
from forge.views.text.numbers import NONE, factor, number, share
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from forge.store.reader import RunReader
    from forge.tui.frame.watched import Watched

PURPOSES: tuple[str | None, ...] = (None, *Purpose)
SOLVED = {None: "all", False: "never solved", True: "solved"}


def _whole(value: int | None) -> str:
    return NONE if value is None else str(value)


COLUMNS = (
    Column("name", "problem", lambda row: row["problem_id"], takes_rest=True),
    Column("family", "family", lambda row: row["family"] or NONE, from_width=130),
    Column("level", "lvl", lambda row: _whole(row["level"]), from_width=60, is_number=True),
    Column("purpose", "for", lambda row: row["purpose"] or NONE, from_width=70),
    Column("pass", "pass", lambda row: share(row["correct_share"]), is_number=True),
    Column(
        "speedup", "fastest", lambda row: factor(row["best_speedup"]), from_width=60, is_number=True
    ),
    Column(
        "reward", "reward", lambda row: number(row["best_reward"]), from_width=100, is_number=True
    ),
    Column("attempts", "tries", lambda row: str(row["num_rollouts"]), is_number=True),
    Column("turns", "turns", lambda row: str(row["num_turns"]), from_width=130, is_number=True),
    Column(
        "solved",
        "solved at",
        lambda row: _whole(row["first_solved_by_version"]),
        from_width=130,
        is_number=True,
    ),
    Column(
        "recent",
        "played at",
        lambda row: _whole(row["last_played_by_version"]),
        from_width=100,
        is_number=True,
    ),
    Column("trend", "trend", lambda row: spark(row["trend"])),
)  # fmt: skip
"""`solved at` and `played at` are policy versions; pass counts turns, the trend rollouts."""


class ProblemsScreen(PacedScreen[list[dict[str, Any]]]):
    """The Problems screen, key 2."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("o", "order", "Order"),
        Binding("r", "reverse", "Reverse"),
        Binding("p", "purpose", "Purpose"),
        Binding("u", "solved", "Unsolved"),
        Binding("enter", "attempts", "Attempts", show=False),
        Binding("escape", "unfilter", "Clear filters", show=False),
    ]
    DEFAULT_CSS = """
    ProblemsScreen #caption { height: auto; }
    ProblemsScreen RowTable { height: 1fr; }
    """

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._wanted = ProblemFilter()

    def compose_body(self) -> ComposeResult:
        yield Static(id="caption", markup=False)
        yield FilterLine(placeholder="part of a problem's name, or softmax-*")
        yield RowTable(COLUMNS, id="problems")

    def on_mount(self) -> None:
        self.query_one(RowTable).focus()

    def question(self) -> ProblemFilter:
        return self._wanted

    def answer(self, reader: RunReader, question: Any) -> list[dict[str, Any]]:
        return load_problems(reader, question)

    def show_answer(self, data: list[dict[str, Any]]) -> None:
        self.query_one("#caption", Static).update(caption(self._wanted, data))
        rows = [(f"{row['purpose']} {row['problem_id']}", row) for row in data]
        self.query_one(RowTable).show_rows(rows, marked=self._wanted.order)

    def on_input_changed(self, event: Input.Changed) -> None:
        self._change(words=event.value or None)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()
        self.action_attempts()

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """Sorts by the clicked column; a second click reverses the order."""
        order = event.column_key.value
        if order == self._wanted.order:
            self.action_reverse()
        elif order in ORDERS:
            self._change(order=order, is_reversed=False)

    def action_unfilter(self) -> None:
        """Clears every filter."""
        super().action_unfilter()
        self._change(words=None, purpose=None, is_solved=None)

    def action_order(self) -> None:
        """Selects the next order."""
        self._change(order=following(ORDERS, self._wanted.order), is_reversed=False)

    def action_reverse(self) -> None:
        """Reverses the order."""
        self._change(is_reversed=not self._wanted.is_reversed)

    def action_purpose(self) -> None:
        """Selects the next purpose, or all."""
        self._change(purpose=following(PURPOSES, self._wanted.purpose))

    def action_solved(self) -> None:
        """Cycles through all, never solved and solved problems."""
        self._change(is_solved=following(SOLVED, self._wanted.is_solved))

    def action_attempts(self) -> None:
        """Opens all attempts at the problem under the cursor."""
        from forge.tui.screens.attempts import AttemptsScreen

        chosen = self.query_one(RowTable).chosen
        if chosen is not None:
            problem_id = chosen.partition(" ")[2]
            self.app.push_screen(AttemptsScreen(self.watched, problem_id))

    def _change(self, **changes: Any) -> None:
        self._wanted = replace(self._wanted, **changes)
        self.ask_now()


def caption(wanted: ProblemFilter, data: list[dict[str, Any]]) -> Text:
    """Number of rows, order and filters."""
    num, found = len(data), data[0]["num_found"] if data else 0
    text = Text(f"{num} problems" if num == found else f"{num} of {found} problems")
    text.append(f" · by {wanted.order}{', reversed' if wanted.is_reversed else ''}")
    parts = [wanted.purpose and f"for {wanted.purpose}", wanted.words and f"“{wanted.words}”"]
    if wanted.is_solved is not None:
        parts.append(SOLVED[wanted.is_solved])
    for part in parts:
        if part:
            text.append(f" · {printable(part)}", style="bold")
    if data:
        text.append(" · pass of turns, trend of rollouts", style="dim")
    else:
        text.append(" · none; Escape shows all")
    return text
