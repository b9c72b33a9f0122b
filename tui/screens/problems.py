"""The Problems screen: every problem with its pass rate, best speed-up, attempts and trend, sorted
and filtered by keys; Enter opens all attempts at one, and there the conversation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import ContentSwitcher, DataTable, Input, Static

from forge.records import Purpose
from forge.store.reader import RunReader
from forge.tui.frame.asking import FilterLine, PacedScreen, TableScreen, following
from forge.tui.frame.watched import Watched
from forge.tui.screens.rollout import RolloutScreen
from forge.tui.widgets.texts import Column, RowTable, path_of_statuses, shown_code, spark
from forge.views.problems import ORDERS, ProblemFilter, ProblemHistory, load_history, load_problems
from forge.views.text import NONE, factor, number, printable, share

Rows = list[dict[str, Any]]
PURPOSES: tuple[str | None, ...] = (None, *Purpose)
SOLVED = {None: "all", False: "never solved", True: "solved"}


COLUMNS = (
    Column("name", "problem", "problem_id", takes_rest=True),
    Column("family", "family", "family", from_width=130),
    Column("level", "lvl", "level", from_width=60, is_number=True),
    Column("purpose", "for", "purpose", from_width=70),
    Column("pass", "pass", "correct_share", share, is_number=True),
    Column("speedup", "fastest", "best_speedup", factor, from_width=60, is_number=True),
    Column("reward", "reward", "best_reward", number, from_width=100, is_number=True),
    Column("attempts", "tries", "num_rollouts", is_number=True),
    Column("turns", "turns", "num_turns", from_width=130, is_number=True),
    Column("solved", "solved at", "first_solved_by_version", from_width=130, is_number=True),
    Column("recent", "played at", "last_played_by_version", from_width=100, is_number=True),
    Column("trend", "trend", "trend", spark),
)
"""`solved at` and `played at` are policy versions; pass counts turns, the trend rollouts."""


class ProblemsScreen(TableScreen[Rows], PacedScreen[Rows]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("o", "order", "Order"),
        Binding("r", "reverse", "Reverse"),
        Binding("p", "purpose", "Purpose"),
        Binding("u", "solved", "Unsolved"),
        Binding("enter", "open", "Attempts", show=False),
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

    def question(self) -> ProblemFilter:
        return self._wanted

    def answer(self, reader: RunReader, question: Any) -> Rows:
        return load_problems(reader, question)

    def show_answer(self, data: Rows) -> None:
        self.query_one("#caption", Static).update(caption(self._wanted, data))
        rows = [(f"{row['purpose']} {row['problem_id']}", row) for row in data]
        self.query_one(RowTable).show_rows(rows, marked=self._wanted.order)

    def on_input_changed(self, event: Input.Changed) -> None:
        self._change(words=event.value or None)

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """Sorts by the clicked column; a second click reverses the order."""
        order = event.column_key.value
        if order == self._wanted.order:
            self.action_reverse()
        elif order in ORDERS:
            self._change(order=order, is_reversed=False)

    def action_unfilter(self) -> None:
        super().action_unfilter()
        self._change(words=None, purpose=None, is_solved=None)

    def action_order(self) -> None:
        self._change(order=following(ORDERS, self._wanted.order), is_reversed=False)

    def action_reverse(self) -> None:
        self._change(is_reversed=not self._wanted.is_reversed)

    def action_purpose(self) -> None:
        self._change(purpose=following(PURPOSES, self._wanted.purpose))

    def action_solved(self) -> None:
        self._change(is_solved=following(SOLVED, self._wanted.is_solved))

    def action_open(self) -> None:
        chosen = self.query_one(RowTable).chosen
        if chosen is not None:
            problem_id = chosen.partition(" ")[2]
            self.app.push_screen(AttemptsScreen(self.watched, problem_id))

    def _change(self, **changes: Any) -> None:
        self._wanted = replace(self._wanted, **changes)
        self.ask_now()


def caption(wanted: ProblemFilter, data: Rows) -> Text:
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


ATTEMPT_ORDERS = {
    "latest": lambda row: (-row["group_id"], row["rollout"]),
    "reward": lambda row: -(row["reward"] if row["reward"] is not None else -1e9),
    "speedup": lambda row: -(row["speedup"] or 0.0),
    "tokens": lambda row: -row["num_completion_tokens"],
}
"""Sort keys, largest first; ties stay in the order of `latest`."""

MAX_ROWS = 500
"""Maximum rows listed; a row costs 0.1 ms each time it changes."""

FILTERS = {
    "all": lambda row: True,
    "solved": lambda row: row["is_correct"],
    "failed": lambda row: not row["is_correct"],
}


ATTEMPT_COLUMNS = (
    Column("latest", "rollout", "rollout_id"),
    Column("purpose", "for", None,
           lambda row: (row["purpose"] or NONE) + (", greedy" if row["is_greedy"] else ""),
           from_width=70),
    Column("stage", "stage", "stage_name", from_width=100),
    Column("step", "step", "step", is_number=True),
    Column("policy", "policy", "min_version", from_width=70, is_number=True),
    Column("reward", "reward", "reward", number, is_number=True),
    Column("speedup", "fastest", "speedup", factor, from_width=60, is_number=True),
    Column("tokens", "tokens", "num_completion_tokens", from_width=100, is_number=True),
    Column("ended", "ended", "ended", lambda ended: ended or "playing", from_width=100),
    Column("turns", "turns", "statuses", lambda found: path_of_statuses(found.split()),
           takes_rest=True, style=lambda row: "green" if row["is_correct"] else ""),
)  # fmt: skip


class AttemptsScreen(TableScreen[ProblemHistory], PacedScreen[ProblemHistory]):
    """The attempts at one problem."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "Back"),
        Binding("o", "order", "Order"),
        Binding("f", "filter", "Filter"),
        Binding("r", "reference", "Reference"),
        Binding("enter", "open", "Open", show=False),
    ]
    DEFAULT_CSS = """
    AttemptsScreen #caption { height: auto; max-height: 6; }
    AttemptsScreen ContentSwitcher { height: 1fr; }
    AttemptsScreen RowTable { height: 1fr; }
    """

    def __init__(self, watched: Watched, problem_id: str) -> None:
        super().__init__(watched)
        self._problem_id = problem_id
        self._order, self._filter = "latest", "all"

    def compose_body(self) -> ComposeResult:
        yield Static(id="caption", markup=False)
        with ContentSwitcher(initial="attempts"):
            yield RowTable(ATTEMPT_COLUMNS, id="attempts")
            with VerticalScroll(id="reference"):
                yield Static(id="source", markup=False)

    def answer(self, reader: RunReader, question: Any) -> ProblemHistory:
        return load_history(reader, self._problem_id)

    def show_answer(self, data: ProblemHistory) -> None:
        attempts = [each for each in data.attempts if FILTERS[self._filter](each)]
        attempts.sort(key=ATTEMPT_ORDERS[self._order])
        self.query_one("#caption", Static).update(self._caption(data, len(attempts)))
        rows = [(each["rollout_id"], each) for each in attempts[:MAX_ROWS]]
        self.query_one(RowTable).show_rows(rows, marked=self._order)
        self.query_one("#source", Static).update(shown_code(data.source or "# not stored"))

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        if event.column_key.value in ATTEMPT_ORDERS:
            self._order = event.column_key.value
            self._again()

    def action_order(self) -> None:
        self._order = following(ATTEMPT_ORDERS, self._order)
        self._again()

    def action_filter(self) -> None:
        self._filter = following(FILTERS, self._filter)
        self._again()

    def action_reference(self) -> None:
        switcher = self.query_one(ContentSwitcher)
        switcher.current = "reference" if switcher.current == "attempts" else "attempts"
        self.query_one(f"#{switcher.current}").focus()

    def action_open(self) -> None:
        chosen = self.query_one(RowTable).chosen
        if chosen is not None and self.query_one(ContentSwitcher).current == "attempts":
            group_id, rollout = (int(part[1:]) for part in chosen.split("."))
            self.app.push_screen(RolloutScreen(self.watched, group_id=group_id, rollout=rollout))

    def _again(self) -> None:
        if self._shown is not None:
            self.call_after_refresh(self.show_answer, self._shown)

    def _caption(self, data: ProblemHistory, num_shown: int) -> Text:
        text = Text(printable(data.problem_id), style="bold", overflow="fold")
        for row in data.totals:
            text.append("\n")
            text.append(_totals(row), style="not bold")
        num = len(data.attempts)
        rest = "" if num == data.num_attempts else f" (the latest {num} of {data.num_attempts})"
        listed = f", {MAX_ROWS} listed" if num_shown > MAX_ROWS else ""
        words = f"\n{num_shown} attempts{rest}{listed} · {self._filter} · by {self._order}"
        return text.append(words, style="not bold")


def _totals(row: dict[str, Any]) -> str:
    parts = [
        f"{row['purpose']}: {share(row['correct_share'])} of {row['num_turns']} turns correct",
        f"best reward {number(row['best_reward'])}",
    ]
    if row["best_speedup"] is not None:
        parts.append(f"fastest {factor(row['best_speedup'])}")
    if row["first_solved_by_version"] is not None:
        parts.append(f"first solved by policy {row['first_solved_by_version']}")
    if row["trend"]:
        parts.append(spark(row["trend"]))
    return printable(" · ".join(parts))
