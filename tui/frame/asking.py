"""What every screen is: a line that says which run this is, what the run answered, the keys.

A subclass asks in `load` (a worker thread, so that the loop never waits for a disk) and shows the
answer in `show` (the loop). While a question runs no second one is asked: what changed meanwhile is
asked for when it is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from textual.containers import Vertical
from textual.screen import Screen
from textual.widgets import Footer
from textual.worker import Worker, WorkerState

from tui.frame.navline import NavLine
from tui.frame.topline import TopLine

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.events import ScreenResume

    from forge.store.reader import RunReader
    from tui.frame.watched import Watched

Data = TypeVar("Data")

ASKING = "asking"
"""The group of the workers that ask."""


class AskingScreen(Screen[None], Generic[Data]):
    """A screen on one run. `compose_body` yields what is between the top line and the keys."""

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
        yield Footer(show_command_palette=False)

    def compose_body(self) -> ComposeResult:
        """The screen's own widgets."""
        yield from ()

    def load(self, reader: RunReader) -> Data:
        """Asks the run, in a worker thread. What it raises of sqlite3 is shown as the problem."""
        raise NotImplementedError

    def fetch(self) -> Data | None:
        """In a worker thread: `load` on the run; None where it cannot be read."""
        return self.watched.ask(self.load)

    def show(self, data: Data) -> None:
        """Shows an answer, in the event loop. Not called where the run could not be read."""
        raise NotImplementedError

    def refresh_data(self) -> None:
        """Called by the app while this screen is on top and something changed."""
        self._is_stale = True
        if not self._is_asking:
            self._is_asking = True
            self.run_worker(self._ask, thread=True, group=ASKING)

    def on_screen_resume(self, event: ScreenResume) -> None:
        self.refresh_data()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """The answer comes as a message: a screen that is gone by then gets none."""
        if event.worker.group == ASKING and event.state is WorkerState.SUCCESS:
            self._answered(event.worker.result)

    def _ask(self) -> Data | None:
        self._is_stale = False
        return self.fetch()

    def _answered(self, data: Data | None) -> None:
        self._is_asking = False
        for line in self.query(TopLine):
            line.tell()
        if data is not None:
            self.show(data)
        if self._is_stale and self.is_current:
            self.refresh_data()
