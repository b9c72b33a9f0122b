"""The terminal monitor: which screens there are, by which keys, and when they look again.

Started by `forge tui`, a process of its own: it reads the store and can end without harm to a run.
Every second a worker thread asks whether something is new; only then, and only the screen on top,
asks the store. Each screen is a mode: it keeps its place, and what was opened from it, while
another one is looked at.
"""

from __future__ import annotations

import asyncio
import signal
import time
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import App, SystemCommand
from textual.await_complete import AwaitComplete
from textual.binding import Binding
from textual.screen import Screen
from textual.theme import ThemeProvider

from forge.errors import ForgeError
from forge.views.text.terminal import printable
from tui.dialogs.confirm import Confirm
from tui.dialogs.help import Help
from tui.dialogs.palette import Palette
from tui.frame.watched import Watched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from textual.binding import BindingType
    from textual.worker import Worker

    from forge.store.layout import RunPaths
    from tui.screens.run import LogWanted
    from tui.screens.runs import RunChosen

PERIOD_S = 1.0
LOOKING = "looking"
"""The group of the workers that look for something new."""
ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Without a handler they would leave the terminal raw, and reporting the mouse to the shell."""
SIGNALLED = 128
"""Exit codes from here on: as a shell says it of a process that a signal ended."""
NOWHERE = "nowhere"
"""The mode between two runs: one that is shown cannot be removed."""

PLACES = {
    "run": ("1", "Run", "tui.screens.run:RunScreen"),
    "problems": ("2", "Problems", "tui.screens.problems:ProblemsScreen"),
    "rollout": ("3", "Rollout", "tui.screens.rollout:RolloutScreen"),
    "kernels": ("4", "Kernels", "tui.screens.kernels:KernelsScreen"),
    "logs": ("5", "Logs", "tui.screens.logs:LogsScreen"),
    "runs": ("6", "Runs", "tui.screens.runs:RunsScreen"),
}
"""Mode to key, title and class; a class is imported when its screen is first shown."""

ACTIONS = {
    "stop": ("Stop after this step", "The step ends, everything is saved, the run ends."),
    "save": ("Checkpoint now", "A checkpoint is saved at the end of this step."),
    "evaluate": ("Evaluate now", "An evaluation is played after this step."),
}
"""Method of the control client to what it is called and what it does."""


class WatchApp(App[None]):
    """Looks on at one run."""

    TITLE = "forge"
    BINDINGS: ClassVar[list[BindingType]] = [
        *[
            Binding(key, f"go('{mode}')", title, show=False)
            for mode, (key, title, _) in PLACES.items()
        ],
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("S", "ask('stop')", ACTIONS["stop"][0], show=False),
        Binding("C", "ask('save')", ACTIONS["save"][0], show=False),
        Binding("E", "ask('evaluate')", ACTIONS["evaluate"][0], show=False),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+z", "suspend_process", "To the shell; fg comes back", show=False),
    ]
    CSS_PATH = "app.tcss"

    def __init__(self, paths: RunPaths, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__()
        self._clock = clock
        self.watched = Watched(paths, clock=clock)
        self.first_mode = "run"
        self._is_looking = False
        self.add_mode(NOWHERE, Screen)
        self._add_modes()

    def on_mount(self) -> None:
        for number in ENDING:
            asyncio.get_running_loop().add_signal_handler(number, self._end_by, number)
        self.switch_mode(self.first_mode)
        self.set_interval(PERIOD_S, self._tick)
        self._tick()

    def on_unmount(self) -> None:
        self.watched.close()

    def _end_by(self, number: signal.Signals) -> None:
        self.exit(return_code=SIGNALLED + number)

    @property
    def places(self) -> dict[str, tuple[str, str]]:
        """Mode to key and title of every screen that there is."""
        return {
            mode: (key, title) for mode, (key, title, _) in PLACES.items() if mode in self._modes
        }

    def pop_screen(self) -> AwaitComplete:
        """Keys faster than the screen ask twice for the end of one: the last one stays."""
        return super().pop_screen() if len(self._screen_stack) > 1 else AwaitComplete.nothing()

    async def look_at(self, paths: RunPaths) -> None:
        """Looks at another run from now on, beginning with its Run screen."""
        old, self.watched = self.watched, Watched(paths, clock=self._clock)
        await self.switch_mode(NOWHERE)
        for mode in PLACES:
            if mode in self._modes:
                await self.remove_mode(mode)
        self._add_modes()
        await self.switch_mode("run")
        old.close()
        self._tick()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The key of a screen that this version has not got is absent."""
        return action != "go" or parameters[0] in self._modes

    async def action_go(self, mode: str) -> None:
        """To a screen; where it is on top already, back to its beginning."""
        if mode == self.current_mode:
            while len(self.screen_stack) > 1:
                await self.pop_screen()
            return
        await self.switch_mode(mode)

    def action_help(self) -> None:
        """Every key that does something here."""
        if not isinstance(self.screen, Help):
            self.push_screen(Help(self.screen.active_bindings.values()))

    def action_ask(self, action: str) -> None:
        """An action on the run, once it was confirmed."""
        title, words = ACTIONS[action]
        name = self.watched.paths.name

        def answered(is_confirmed: bool | None) -> None:
            if is_confirmed:
                self.run_worker(lambda: self._act(action), thread=True, group="act")

        self.push_screen(Confirm(f"{title}: {name}?", words), answered)

    async def on_log_wanted(self, event: LogWanted) -> None:
        """From the Run screen to the log of one process."""
        await self.action_go("logs")
        choose = getattr(self.screen, "choose", None)
        if choose is not None:
            choose(event.process)

    async def on_run_chosen(self, event: RunChosen) -> None:
        """From the Runs screen to another run."""
        await self.look_at(event.paths)

    def action_command_palette(self) -> None:
        """Textual's way to it, with our class."""
        if not isinstance(self.screen, Palette):
            self.push_screen(Palette(id="--command-palette"))

    def search_themes(self) -> None:
        """As `action_command_palette`."""
        self.push_screen(Palette(providers=[ThemeProvider], placeholder="Search for themes…"))

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """The command palette: every screen and every action, then Textual's own."""
        for mode, (_, title, _) in PLACES.items():
            if mode in self._modes:
                yield SystemCommand(
                    f"Go to {title}", f"The {title} screen", lambda mode=mode: self._go_soon(mode)
                )
        for action, (title, words) in ACTIONS.items():
            yield SystemCommand(title, words, lambda action=action: self.action_ask(action))
        yield from super().get_system_commands(screen)

    def _go_soon(self, mode: str) -> None:
        self.call_later(self.action_go, mode)

    def _add_modes(self) -> None:
        for mode, (_, _, place) in PLACES.items():
            module = place.partition(":")[0]
            if find_spec(module) is not None:
                self.add_mode(mode, lambda place=place: self._make_screen(place))

    def _make_screen(self, place: str) -> Screen[Any]:
        module, _, name = place.partition(":")
        return getattr(import_module(module), name)(self.watched)

    def _tick(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            self.run_worker(self._look, thread=True, group=LOOKING)

    def _look(self) -> bool:
        """In a worker thread: is there anything new?"""
        watched = self.watched
        is_new = watched.changed()
        return watched.look_live() or is_new

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Only the screen on top asks for what is new."""
        if event.worker.group == LOOKING and event.worker.is_finished:
            self._is_looking = False
            if event.worker.result and self._screen_stack:  # empty once the app ends
                getattr(self.screen, "refresh_data", lambda: None)()

    def _act(self, action: str) -> None:
        """In a worker thread: says it to the supervisor; what came of it is one line."""
        client = self.watched.client()
        try:
            if client is None:
                raise ForgeError(f"{self.watched.paths.name} is not running")
            words = getattr(client, action)() or ACTIONS[action][1]
        except ForgeError as error:
            self.notify(printable(str(error)), title="Not done", severity="error", markup=False)
        else:
            self.notify(printable(words), title="Asked for", markup=False)
