"""A screen whose question may be dear: it is asked again only when its answer can differ, and so
seldom that it costs a small share of a core.

The question's own part (a filter, an order) is a value; when a key changes it, the run is asked at
once. When the run was written, it is asked as soon as `PACE` times the last answer's cost is over.
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
"""At most 4 % of a core, however long a view takes: 200 ms are asked for every 5 s."""


class PacedScreen(AskingScreen[Data], Generic[Data]):
    """`question` is what `answer` depends on beside the run; `show_answer` shows it."""

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
        """A value that equals itself while nothing was changed by a key."""
        return None

    def answer(self, reader: RunReader, question: Any) -> Data:
        """Asks the run, in a worker thread."""
        raise NotImplementedError

    def show_answer(self, data: Data) -> None:
        """Shows it, in the event loop. Not called again for an equal one."""
        raise NotImplementedError

    def ask_now(self) -> None:
        """What a key calls that changed the question."""
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
