"""The monitor's application: its screens, their keys, and the polling for changes.

Started by `forge tui` as a process of its own: it reads the store, and its end does not affect a
run. Every second a worker thread checks for changes; only after one, and only on the top screen, is
the store queried. Each screen is a mode: it keeps its position, and the screens opened from it,
while another one is shown.
"""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from textual import work
from textual.app import App, SystemCommand
from textual.await_complete import AwaitComplete
from textual.binding import Binding
from textual.drivers.linux_driver import LinuxDriver
from textual.screen import Screen
from textual.theme import ThemeProvider

from forge.errors import ForgeError
from forge.tui.frame.asking import FORGE, Confirm, Help, Palette, TopLine, ask
from forge.tui.frame.watched import Watched
from forge.views.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from textual.binding import BindingType
    from textual.worker import Worker

    from forge.store.layout import RunPaths
    from forge.tui.screens.run import LogWanted
    from forge.tui.screens.runs import RunChosen

PERIOD_S = 1.0
POLLING = "polling"
END_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""Without a handler these signals would leave the terminal raw, with mouse reporting on."""
SIGNAL_EXIT = 128
"""Exit codes from here on mean a signal, as in a shell."""
NOWHERE = "nowhere"
"""Mode during a change of run: the current mode cannot be removed."""

PLACES = {
    "run": ("1", "Run", "forge.tui.screens.run:RunScreen"),
    "problems": ("2", "Problems", "forge.tui.screens.problems:ProblemsScreen"),
    "rollout": ("3", "Rollout", "forge.tui.screens.rollout:RolloutScreen"),
    "kernels": ("4", "Kernels", "forge.tui.screens.kernels:KernelsScreen"),
    "logs": ("5", "Logs", "forge.tui.screens.logs:LogsScreen"),
    "runs": ("6", "Runs", "forge.tui.screens.runs:RunsScreen"),
}
"""Mode to key, title and class; a class is imported when its screen is first shown."""

ACTIONS = {
    "stop": ("S", "Stop after this step", "The step ends, everything is saved, the run ends."),
    "save": ("C", "Checkpoint now", "A checkpoint is saved at the end of this step."),
    "evaluate": ("E", "Evaluate now", "An evaluation runs after this step."),
}
"""Method of the control client to its key, its title and its effect."""


class _Terminal(LinuxDriver):
    """Input and output of the terminal. Bytes that are no UTF-8, as a paste may have, are
    dropped; Textual's own reader ends the monitor with a traceback."""

    def run_input_thread(self) -> None:
        while True:
            with suppress(UnicodeDecodeError):
                return super().run_input_thread()


class WatchApp(App[None]):
    TITLE = "forge"
    BINDINGS: ClassVar[list[BindingType]] = [
        *[
            Binding(key, f"go('{mode}')", title, show=False)
            for mode, (key, title, _) in PLACES.items()
        ],
        Binding("question_mark", "help", "Help", key_display="?"),
        *[
            Binding(key, f"ask('{action}')", title, show=False)
            for action, (key, title, _) in ACTIONS.items()
        ],
        Binding("q", "quit", "Quit"),
        Binding("ctrl+z", "suspend_process", "To the shell (fg returns)", show=False),
    ]
    CSS_PATH = "app.tcss"

    def __init__(self, paths: RunPaths, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(driver_class=_Terminal)
        self._clock = clock
        self.watched = Watched(paths, clock=clock)
        self.first_mode = "run"
        self._is_polling = False
        self.add_mode(NOWHERE, Screen)
        self._add_modes()

    def on_mount(self) -> None:
        self.register_theme(FORGE)
        self.theme = FORGE.name
        for number in END_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._end_by, number)
        self.switch_mode(self.first_mode)
        self.set_interval(PERIOD_S, self._tick)
        self._tick()

    def on_unmount(self) -> None:
        self.watched.close()

    def _end_by(self, number: signal.Signals) -> None:
        self.exit(return_code=SIGNAL_EXIT + number)

    places = PLACES

    def pop_screen(self) -> AwaitComplete:
        """Repeated Escape keys may ask to close the last screen, which stays."""
        return super().pop_screen() if len(self._screen_stack) > 1 else AwaitComplete.nothing()

    async def watch_run(self, paths: RunPaths) -> None:
        """Switches to another run, starting with its Run screen."""
        old, self.watched = self.watched, Watched(paths, clock=self._clock)
        await self.switch_mode(NOWHERE)
        for mode in PLACES:
            await self.remove_mode(mode)
        self._add_modes()
        await self.switch_mode("run")
        old.close()
        self._tick()

    async def action_go(self, mode: str) -> None:
        """Shows a screen; if it is shown already, closes the screens opened from it."""
        if mode == self.current_mode:
            while len(self.screen_stack) > 1:
                await self.pop_screen()
            return
        await self.switch_mode(mode)

    def action_help(self) -> None:
        if not isinstance(self.screen, Help):
            self.push_screen(Help(self.screen.active_bindings.values()))

    def action_ask(self, action: str) -> None:
        """Requests an action from the run's supervisor, after confirmation; a run that has ended
        has none."""
        _, title, words = ACTIONS[action]
        name = self.watched.paths.name
        if not self.watched.is_open:
            self._fail(f"{name} is not running")
            return
        ask(self, Confirm(f"{title}: {name}?", words), lambda _: self._act(action))

    async def on_log_wanted(self, event: LogWanted) -> None:
        await self.action_go("logs")
        choose = getattr(self.screen, "choose", None)
        if choose is not None:
            choose(event.process)

    async def on_run_chosen(self, event: RunChosen) -> None:
        await self.watch_run(event.paths)

    def action_command_palette(self) -> None:
        """Opens the palette as Textual does, with our class."""
        if not isinstance(self.screen, Palette):
            self.push_screen(Palette(id="--command-palette"))

    def search_themes(self) -> None:
        """Opens the list of themes as Textual does, with our palette."""
        self.push_screen(Palette(providers=[ThemeProvider], placeholder="Search for themes…"))

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Entries of the command palette: every screen and every action, then Textual's own."""
        for mode, (_, title, _) in PLACES.items():
            yield SystemCommand(
                f"Go to {title}",
                f"The {title} screen",
                lambda mode=mode: self.call_later(self.action_go, mode),
            )
        for action, (_, title, words) in ACTIONS.items():
            yield SystemCommand(title, words, lambda action=action: self.action_ask(action))
        yield from super().get_system_commands(screen)

    def _add_modes(self) -> None:
        for mode, (_, _, place) in PLACES.items():
            self.add_mode(mode, lambda place=place: self._make_screen(place))

    def _make_screen(self, place: str) -> Screen[Any]:
        module, _, name = place.partition(":")
        return getattr(import_module(module), name)(self.watched)

    def _tick(self) -> None:
        if not self._is_polling:
            self._is_polling = True
            self.run_worker(self._poll, thread=True, group=POLLING)

    def _poll(self) -> bool:
        """Checks for changes, in a worker thread."""
        watched = self.watched
        is_new = watched.changed()
        return watched.poll_live() or is_new

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Refreshes the top screen after a check that found changes.

        The run line first: a screen may delay its query, or limit the rate.
        """
        if event.worker.group == POLLING and event.worker.is_finished:
            self._is_polling = False
            if event.worker.result and self._screen_stack:  # empty once the app ends
                for line in self.screen.query(TopLine):
                    line.update_line()
                self.screen.refresh_bindings()
                getattr(self.screen, "refresh_data", lambda: None)()

    @work(thread=True, group="act")
    def _act(self, action: str) -> None:
        client = self.watched.client()
        try:
            if client is None:
                raise ForgeError(f"{self.watched.paths.name} is not running")
            words = getattr(client, action)() or ACTIONS[action][2]
        except ForgeError as error:
            self._fail(str(error))
        else:
            self.notify(printable(words), title="Requested", markup=False)

    def _fail(self, words: str) -> None:
        self.notify(printable(words), title="Failed", severity="error", markup=False)
