"""The base classes of screens: the lines around each, its content, keys, and its queries; dialogs,
a filter line, and the command palette.

Above are all screens with their keys, and name and state of the run with a problem, if any; below
are the keys. A subclass queries in `load` (a worker thread, so that the loop never waits for a
disk) and displays in `show` (the loop). One query runs at a time; changes during a query cause
another one after it.

A screen with expensive queries is a `PacedScreen`: one runs only if its result can differ, and so
rarely that it costs a small share of a core. The parameters of a query (a filter, an order) are a
value; a key that changes it causes a query immediately. After a change of the run, the next query
waits for `PACE` times the cost of the last one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import ActiveBinding, Binding, BindingType
from textual.command import CommandList, CommandPalette
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.events import Resize, ScreenResume
from textual.screen import ModalScreen, Screen
from textual.theme import Theme
from textual.widgets import Button, DataTable, Input, Static
from textual.worker import Worker, WorkerState

from forge.store.reader import RunReader
from forge.tui.frame.watched import Watched
from forge.views.text import printable

Answer = TypeVar("Answer")
Data = TypeVar("Data")


class Dialog(ModalScreen[Answer], Generic[Answer]):
    """A box over the screen, which returns an answer."""

    DEFAULT_CSS = """
    Dialog { align: center middle; }
    Dialog > * {
        width: 64; max-width: 95%; height: auto; max-height: 90%; border: round $primary;
        padding: 0 1; background: $surface;
    }
    """


def ask(app: App[Any], dialog: Dialog[Answer], act: Callable[[Answer], object]) -> None:
    """Shows a dialog, and acts on its answer unless that is no or nothing."""

    def answered(answer: Answer | None) -> None:
        if answer:
            act(answer)

    app.push_screen(dialog, answered)


class Confirm(Dialog[bool]):
    """Returns True for yes; the focus is on no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "Yes"),
        Binding("n,escape", "dismiss(False)", "No"),
        Binding("left,right", "app.focus_next", "Other button", show=False),
    ]
    DEFAULT_CSS = """
    Confirm Static { margin-bottom: 1; }
    Confirm Horizontal { height: auto; align-horizontal: right; }
    Confirm Button { margin-left: 1; min-width: 10; }
    """

    def __init__(self, question: str, words: str) -> None:
        super().__init__()
        self._text = f"{question}\n{words}"

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(self._text, markup=False)
            with Horizontal():
                yield Button("Yes (y)", id="yes")
                yield Button("No (n)", id="no", variant="primary")

    def on_mount(self) -> None:
        self.query_one("#no").focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")


class AskLine(Dialog[str]):
    """One line of text, such as a rollout to show; empty for Escape."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss('')", "Cancel")]
    DEFAULT_CSS = "AskLine > Vertical { width: 76; }"

    def __init__(self, question: str, *, value: str = "") -> None:
        super().__init__()
        self._question, self._value = question, value

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(self._question, markup=False)
            yield Input(self._value, select_on_focus=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())


class FilterLine(Input):
    """A line that filters the screen's table, hidden until opened (`TableScreen.action_filter`).
    The screen handles its changes; Enter returns to the table."""

    DEFAULT_CSS = """
    FilterLine { display: none; border: none; height: 1; padding: 0; }
    FilterLine.-shown { display: block; }
    """

    def on_input_submitted(self) -> None:
        self.screen.query_one(DataTable).focus()


class Help(Dialog[None]):
    """The list of keys; any of the usual keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,enter", "dismiss", "Close")
    ]

    def __init__(self, bindings: Iterable[ActiveBinding]) -> None:
        super().__init__()
        self._keys = list(bindings)

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(self._text())

    def _text(self) -> Text:
        keys: dict[str, list[str]] = {}
        for active in sorted(self._keys, key=_rank):
            if active.enabled and active.binding.description and not active.binding.system:
                shown = self.app.get_key_display(active.binding)
                keys.setdefault(active.binding.description, []).append(shown)
        text = Text("Keys on this screen (Escape closes)\n", style="bold")
        for description, names in keys.items():
            text.append(f"\n{' '.join(dict.fromkeys(names)):>14}  ", style="bold")
            text.append(description, style="not bold")
        text.append("\n\nThe mouse works: click a key, a row, a tab; the wheel scrolls.")
        text.append(
            "\nThe monitor only reads a run; S, C and E ask its supervisor, once confirmed."
        )
        return text


def _rank(active: ActiveBinding) -> int:
    """Order: keys of the footer, keys of every screen, keys that move."""
    if active.binding.show:
        return 0
    return 1 if active.node.is_attached and active.node is active.node.app else 2


class Palette(CommandPalette):
    """Works around two errors: Textual raises KeyError for a page key on a list without lines, and
    ValueError if a list has no width to wrap to (six columns are padding and scroll bar)."""

    DEFAULT_CSS = "Palette CommandList { min-width: 10; }"

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disables the keys of a list that is not drawn."""
        return action != "command_list" or all(
            shown.scrollable_content_region for shown in self.query(CommandList)
        )


STATES = {
    "running": ("▶", "bold cyan"), "done": ("✔", "bold green"), "stopped": ("■", "bold yellow"),
    "failed": ("✘", "bold red"), "killed": ("✘", "bold red"), "new": ("…", "not bold"),
}  # fmt: skip

ROOM_FOR_NAMES = 60
"""Minimum width for all titles; below it only the current screen has one."""


class NavLine(Static):
    """`1 Run 2 Problems ...`, the current one in reverse. Titles are ours: they may be markup."""

    def __init__(self, places: Mapping[str, Sequence[str]], *, shown: str) -> None:
        """`places` maps each mode to its key, its title and more."""
        super().__init__()
        self._places, self._mode = places, shown

    def on_resize(self, event: Resize) -> None:
        is_roomy = event.size.width >= ROOM_FOR_NAMES
        parts = []
        for mode, (key, title, *_) in self._places.items():
            is_shown = mode == self._mode
            words = f" {key} {title} " if is_roomy or is_shown else f" {key} "
            style = "reverse bold" if is_shown else ""
            parts.append(f"[{style} @click=app.go('{mode}')]{words}[/]")
        self.update("".join(parts))


class KeyLine(Static):
    """` jk Move  q Quit `: the screen's keys, in one widget: they change with focus and run, and
    textual's Footer mounts a widget for each key at every change."""

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self.show_keys)

    def show_keys(self, screen: Screen[Any]) -> None:
        shown = dict[str, dict[str, ActiveBinding]]()
        for each in screen.active_bindings.values():
            if (binding := each.binding).show:
                words = binding.group.description if binding.group else binding.description
                shown.setdefault(words, {}).setdefault(binding.action, each)
        parts: list[tuple[str, str]] = []
        for words, found in shown.items():
            click = ""
            parts.append((" ", ""))
            for _, binding, is_enabled, _ in found.values():
                click = f"@click=app.simulate_key('{binding.key}')" if is_enabled else "dim"
                key = self.app.get_key_display(binding)
                parts.append((key, f"bold $footer-key-foreground {click}"))
            parts.append((f" {words} ", click))
        self.update(Content.assemble(*parts))


class TopLine(Static):
    """`▶ quickstart-1 running · stage 4/5 grpo · step 3/20 · policy 4`, and a problem below."""

    DEFAULT_CSS = """
    TopLine { height: auto; max-height: 3; background: $panel; padding: 0 1; }
    """

    def __init__(self, watched: Watched) -> None:
        super().__init__(markup=False)
        self._watched = watched
        self._headline: Text | None = None

    def on_mount(self) -> None:
        self.update_line()

    def update_line(self) -> None:
        line = headline(self._watched)
        if line != self._headline:
            self._headline = line
            self.update(line)


def headline(watched: Watched) -> Text:
    """The line, with the problem below it, if any."""
    run = watched.run
    line = Text(printable(watched.paths.name), style="bold")
    if run is not None:
        sign, style = STATES[run.state]
        line.append(f" {sign} {run.state}", style=style)
        words = [""]
        if run.stage is not None:
            words.append(f"stage {run.stage + 1}/{run.num_stages} {run.stage_kind}")
        if run.step is not None:
            words.append(f"step {run.step}/{run.num_steps or '?'}")
        if run.policy_version is not None:
            words.append(f"policy {run.policy_version}")
        line.append(" · ".join(words), style="not bold")
    if watched.problem is not None:
        line.append(f"\n✘ {printable(watched.problem)}", style="reverse")
    return line


FORGE = Theme(
    name="forge",
    primary="#4aa3ff",
    secondary="#39c5cf",
    accent="#f0883e",
    foreground="#e6edf3",
    background="#0c0c0c",
    surface="#12161c",
    panel="#1b2430",
    success="#3fb950",
    warning="#e3b341",
    error="#ff6b62",
    dark=True,
    variables={
        "block-cursor-text-style": "none",
        "footer-key-foreground": "#f0883e",
        "input-selection-background": "#4aa3ff 35%",
    },
)


ASKING = "asking"
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
        yield KeyLine()

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
        read."""
        raise NotImplementedError

    def refresh_data(self) -> None:
        """Queries again; called by the app when this screen is on top and something changed."""
        self._is_stale = True
        if not self._is_asking:
            self._is_asking = True
            self.run_worker(self._ask, thread=True, group=ASKING)

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


class TableScreen(AskingScreen[Data], Generic[Data]):
    """A screen with a table, whose rows open with Enter, and perhaps a filter line."""

    def on_mount(self) -> None:
        self.query_one(DataTable).focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()
        self.action_open()

    def action_open(self) -> None:
        raise NotImplementedError

    def action_filter(self) -> None:
        line = self.query_one(FilterLine)
        line.add_class("-shown")
        line.focus()

    def action_unfilter(self) -> None:
        line = self.query_one(FilterLine)
        line.value = ""
        line.remove_class("-shown")
        self.query_one(DataTable).focus()


class PacedScreen(AskingScreen[Data], Generic[Data]):
    """A screen that queries at most every `PACE` times the last cost.

    Subclasses override `question`, `answer` and `show_answer` instead of `load` and `show`.
    """

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._asked: tuple[Any, ...] | None = None
        """Reader, its data version and the question of the last answer."""
        self._answer: Data | None = None
        self._shown: Data | None = None
        self._shown_for: Any = None
        self._next_at = 0.0
        """Monotonic time of the next query after a change of the run."""
        self._is_due = False

    def question(self) -> Any:
        """Parameters of the query, comparable with ==; a key that changes them calls `ask_now`."""
        return None

    def answer(self, reader: RunReader, question: Any) -> Data:
        raise NotImplementedError

    def show_answer(self, data: Data) -> None:
        """Displays a result, in the event loop. Not called again for an equal one."""
        raise NotImplementedError

    def ask_now(self) -> None:
        """Queries immediately; called after a key changed the question."""
        self._is_due = False
        super().refresh_data()

    def refresh_data(self) -> None:
        wait_s = self._next_at - time.monotonic()
        if wait_s <= 0 or self._asked is None or self._asked[2] != self.question():
            self.ask_now()
        elif not self._is_due:
            self._is_due = True
            self.set_timer(wait_s, self.ask_now)

    def load(self, reader: RunReader) -> Data:
        asked = (reader, reader.data_version(), self.question())
        if self._answer is None or asked != self._asked:
            self._next_at = began = time.monotonic()
            self._answer, self._asked = self.answer(reader, asked[2]), asked
            self._next_at += PACE * (time.monotonic() - began)
        return self._answer

    def show(self, data: Data) -> None:
        question = self.question()
        if data != self._shown or question != self._shown_for:
            began = time.monotonic()
            self._shown, self._shown_for = data, question
            self.show_answer(data)
            self._next_at += PACE * (time.monotonic() - began)


def following(values: Iterable[Any], value: Any) -> Any:
    """The value after `value`, or the first one after the last."""
    every = list(values)
    return every[(every.index(value) + 1) % len(every)]
