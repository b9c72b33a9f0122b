"""All attempts at one problem over the run, opened from the Problems screen; Enter opens the
conversation, Escape closes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import ContentSwitcher, DataTable, Static

from forge.tui.frame.asking import PacedScreen, following
from forge.tui.screens.rollout import RolloutScreen
from forge.tui.widgets.row_table import Column, RowTable
from forge.tui.widgets.texts import shown_code, spark
from forge.tui.widgets.verdicts import path_of_statuses
from forge.views.problems import ProblemHistory, load_history
from forge.views.text.numbers import NONE, factor, number, share
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from forge.store.reader import RunReader
    from forge.tui.frame.watched import Watched

ORDERS = {
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


COLUMNS = (
    Column("latest", "rollout", lambda row: row["rollout_id"]),
    Column(
        "purpose",
        "for",
        lambda row: (row["purpose"] or NONE) + (", greedy" if row["is_greedy"] else ""),
        from_width=70,
    ),
    Column("stage", "stage", lambda row: printable(row["stage_name"] or NONE), from_width=100),
    Column(
        "step",
        "step",
        lambda row: NONE if row["step"] is None else str(row["step"]),
        is_number=True,
    ),
    Column("policy", "policy", lambda row: str(row["min_version"]), from_width=70, is_number=True),
    Column("reward", "reward", lambda row: number(row["reward"]), is_number=True),
    Column("speedup", "fastest", lambda row: factor(row["speedup"]), from_width=60, is_number=True),
    Column(
        "tokens",
        "tokens",
        lambda row: str(row["num_completion_tokens"]),
        from_width=100,
        is_number=True,
    ),
    Column("ended", "ended", lambda row: row["ended"] or "playing", from_width=100),
    Column(
        "turns",
        "turns",
        lambda row: path_of_statuses(row["statuses"].split()),
        takes_rest=True,
        style=lambda row: "green" if row["is_correct"] else "",
    ),
)  # fmt: skip


class AttemptsScreen(PacedScreen[ProblemHistory]):
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
            yield RowTable(COLUMNS, id="attempts")
            with VerticalScroll(id="reference"):
                yield Static(id="source", markup=False)

    def on_mount(self) -> None:
        self.query_one(RowTable).focus()

    def answer(self, reader: RunReader, question: Any) -> ProblemHistory:
        return load_history(reader, self._problem_id)

    def show_answer(self, data: ProblemHistory) -> None:
        attempts = [each for each in data.attempts if FILTERS[self._filter](each)]
        attempts.sort(key=ORDERS[self._order])
        self.query_one("#caption", Static).update(self._caption(data, len(attempts)))
        rows = [(each["rollout_id"], each) for each in attempts[:MAX_ROWS]]
        self.query_one(RowTable).show_rows(rows, marked=self._order)
        self.query_one("#source", Static).update(shown_code(data.source or "# not stored"))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()
        self.action_open()

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        if event.column_key.value in ORDERS:
            self._order = event.column_key.value
            self._again()

    def action_order(self) -> None:
        """Selects the next order."""
        self._order = following(ORDERS, self._order)
        self._again()

    def action_filter(self) -> None:
        """Selects the next filter."""
        self._filter = following(FILTERS, self._filter)
        self._again()

    def action_reference(self) -> None:
        """Switches between the table and the problem's reference module."""
        switcher = self.query_one(ContentSwitcher)
        switcher.current = "reference" if switcher.current == "attempts" else "attempts"
        self.query_one(f"#{switcher.current}").focus()

    def action_open(self) -> None:
        """Opens the conversation under the cursor."""
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
