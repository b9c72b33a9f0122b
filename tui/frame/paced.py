"""The base class of screens with expensive queries: one runs only if its result can differ, and so
rarely that it costs a small share of a core.

The parameters of a query (a filter, an order) are a value; a key that changes it causes a query
immediately. After a change of the run, the next query waits for `PACE` times the cost of the last
one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tui.frame.asking import AskingScreen

if TYPE_CHECKING:
    from forge.store.reader import RunReader
    from tui.frame.watched import Watched

Data = TypeVar("Data")

PACE = 25.0
"""Limits queries to 4 % of a core: one of 200 ms runs every 5 s."""


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
