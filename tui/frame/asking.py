"""The base class of every screen: run line, content, keys.

A subclass queries in `load` (a worker thread, so that the loop never waits for a disk) and displays
in `show` (the loop). One query runs at a time; changes during a query cause another one after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from textual.containers import Vertical
from textual.screen import Screen
from textual.widgets import Footer
from textual.worker import Worker, WorkerState

from tui.frame.heading import NavLine, TopLine

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.events import ScreenResume

    from forge.store.reader import RunReader
    from tui.frame.watched import Watched

Data = TypeVar("Data")

ASKING = "asking"
"""Worker group of the queries."""


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
        yield Footer(show_command_palette=False)

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
