"""The base classes of screens: run line, content, keys.

A subclass queries in `load` (a worker thread, so that the loop never waits for a disk) and displays
in `show` (the loop). One query runs at a time; changes during a query cause another one after it.

A screen with expensive queries is a `PacedScreen`: one runs only if its result can differ, and so
rarely that it costs a small share of a core. The parameters of a query (a filter, an order) are a
value; a key that changes it causes a query immediately. After a change of the run, the next query
waits for `PACE` times the cost of the last one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from textual.containers import Vertical
from textual.screen import Screen
from textual.worker import Worker, WorkerState

from forge.tui.frame.dialogs import FilterLine
from forge.tui.frame.heading import KeyFooter, NavLine, TopLine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.app import ComposeResult
    from textual.events import ScreenResume

    from forge.store.reader import RunReader
    from forge.tui.frame.watched import Watched

Data = TypeVar("Data")

ASKING = "asking"
"""Worker group of the queries."""
PACE = 25.0
"""Limits queries to 4 % of a core: one of 200 ms runs every 5 s."""


class AskingScreen(Screen[None], Generic[Data]):
    """A screen on one run.

    Subclasses override `compose_body`, `show`, and either `load` or, if they do not read the run's
    store, `fetch`.
    """

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (70, "-normal"), (130, "-wide")]  # noqa: RUF012

    def __init__(self, watched: Watched) -> None:
        super().__init__()
        self.watched = watched
        self._is_asking = False
        self._is_stale = True

    def compose(self) -> ComposeResult:
        yield NavLine(getattr(self.app, "places", {}), shown=self.app.current_mode)
        yield TopLine(self.watched)
        with Vertical(id="body"):
            yield from self.compose_body()
        yield KeyFooter(show_command_palette=False)

    def compose_body(self) -> ComposeResult:
        """Yields the screen's own widgets, between the run line and the keys."""
        yield from ()

    def load(self, reader: RunReader) -> Data:
        """Queries the run, in a worker thread. sqlite3 errors are shown in the run line."""
        raise NotImplementedError

    def fetch(self) -> Data | None:
        """Runs `load`, in a worker thread; None if the run cannot be read."""
        return self.watched.ask(self.load)

    def show(self, data: Data) -> None:
        """Displays the result of `load`, in the event loop. Not called if the run could not be
        read.
        """
        raise NotImplementedError

    def refresh_data(self) -> None:
        """Queries again; called by the app when this screen is on top and something changed."""
        self._is_stale = True
        if not self._is_asking:
            self._is_asking = True
            self.run_worker(self._ask, thread=True, group=ASKING)

    def action_filter(self) -> None:
        """Opens the filter line of a screen that has one."""
        self.query_one(FilterLine).open()

    def action_unfilter(self) -> None:
        """Clears and closes the filter line."""
        self.query_one(FilterLine).close()

    def poll(self) -> None:
        """Called by a timer of a screen that reads more than the run's store."""
        if self.is_current:
            self.refresh_data()

    def on_screen_resume(self, event: ScreenResume) -> None:
        self.refresh_data()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Results arrive as messages, so a screen that was closed meanwhile gets none."""
        if event.worker.group == ASKING and event.state is WorkerState.SUCCESS:
            self._answered(event.worker.result)

    def _ask(self) -> Data | None:
        self._is_stale = False
        return self.fetch()

    def _answered(self, data: Data | None) -> None:
        self._is_asking = False
        for line in self.query(TopLine):
            line.update_line()
        if data is not None:
            self.show(data)
        if self._is_stale and self.is_current:
            self.refresh_data()


class PacedScreen(AskingScreen[Data], Generic[Data]):
    """A screen that queries at most every `PACE` times the last cost.

    Subclasses override `question`, `answer` and `show_answer` instead of `load` and `show`.
    """

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._answered_to: tuple[Any, int, Any] | None = None
        self._answer: Data | None = None
        self._shown: Data | None = None
        self._shown_for: Any = None
        self._asked_at = 0.0
        self._cost_s = 0.0
        self._is_due = False

    def question(self) -> Any:
        """Parameters of the query, comparable with ==; a key that changes them calls `ask_now`."""
        return None

    def answer(self, reader: RunReader, question: Any) -> Data:
        """Queries the run, in a worker thread."""
        raise NotImplementedError

    def show_answer(self, data: Data) -> None:
        """Displays a result, in the event loop. Not called again for an equal one."""
        raise NotImplementedError

    def ask_now(self) -> None:
        """Queries immediately; called after a key changed the question."""
        super().refresh_data()

    def refresh_data(self) -> None:
        wait_s = self._asked_at + PACE * self._cost_s - time.monotonic()
        is_answered = self._answered_to is not None and self._answered_to[2] == self.question()
        if wait_s <= 0 or not is_answered:
            super().refresh_data()
        elif not self._is_due:
            self._is_due = True
            self.set_timer(wait_s, self._due)

    def load(self, reader: RunReader) -> Data:
        question = self.question()
        asked = (reader, reader.data_version(), question)
        if self._answer is None or asked != self._answered_to:
            self._asked_at = time.monotonic()
            self._answer, self._answered_to = self.answer(reader, question), asked
            self._cost_s = time.monotonic() - self._asked_at
        return self._answer

    def show(self, data: Data) -> None:
        question = self.question()
        if data == self._shown and question == self._shown_for:
            return
        began = time.monotonic()
        self._shown, self._shown_for = data, question
        self.show_answer(data)
        self._cost_s += time.monotonic() - began

    def _due(self) -> None:
        self._is_due = False
        super().refresh_data()


def following(values: Iterable[Any], value: Any) -> Any:
    """The value after `value`, or the first one after the last."""
    every = list(values)
    return every[(every.index(value) + 1) % len(every)]
