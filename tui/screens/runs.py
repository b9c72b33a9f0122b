"""The Runs screen: every run of the store directory; one can be opened, two compared side by side,
like `forge compare`.

A run is read again only if its files changed; a comparison only by key: it is expensive.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Group
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.widgets import Input, Static

from forge.errors import ForgeError
from forge.store.layout import RunPaths, is_owned, list_runs
from forge.store.reader import RunReader
from forge.tui.frame.asking import STATES, AskingScreen, FilterLine, TableScreen, following
from forge.tui.frame.watched import Watched
from forge.tui.widgets.texts import Column, RowTable
from forge.views.compare import UNITS, compare, render_comparison
from forge.views.runs import load_run
from forge.views.text import NONE, percent, printable, when


class CompareScreen(AskingScreen[Group]):
    """The comparison. Queried once, then only by key: it is expensive and concerns two runs."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("b", "by", "Compare by"),
        Binding("r", "again", "Reload"),
        Binding("escape", "app.pop_screen", "Back"),
    ]

    def __init__(self, watched: Watched, a: RunPaths, b: RunPaths) -> None:
        super().__init__(watched)
        self._pair = a, b
        self._by = "step"
        self._is_asked = False

    def compose_body(self) -> ComposeResult:
        with VerticalScroll(id="page"):
            yield Static(self._heading("… reading both runs"), id="comparison", markup=False)

    def on_mount(self) -> None:
        self.query_one("#page").focus()

    def fetch(self) -> Group:
        a, b = self._pair
        try:
            with RunReader(a) as left, RunReader(b) as right:
                found = compare(left, right, by=self._by)
        except (ForgeError, sqlite3.Error, OSError, ValueError) as error:
            return Group(self._heading(f"✘ {error}"))
        return Group(self._heading(), render_comparison(found))

    def show(self, data: Group) -> None:
        self.query_one("#comparison", Static).update(data)

    def refresh_data(self) -> None:
        if not self._is_asked:
            self._is_asked = True
            super().refresh_data()

    def action_by(self) -> None:
        self._by = following(UNITS, self._by)
        self.action_again()

    def action_again(self) -> None:
        self._is_asked = False
        self.refresh_data()

    def _heading(self, words: str = "") -> Text:
        a, b = self._pair
        line = f"{a.name} against {b.name}, at equal {self._by} {words}"
        return Text(printable(line), style="bold")


Row = dict[str, Any]

POLL_S = 5.0
HELP = "Enter opens a run · Space marks it · c compares it with the marked one"


class RunChosen(Message):
    """Request to watch another run."""

    def __init__(self, paths: RunPaths) -> None:
        super().__init__()
        self.paths = paths


def _last(show: Callable[[Row], str], *, missing: str = "") -> Callable[[Row], str]:
    """Text about the last evaluation."""
    return lambda row: show(last) if (last := row.get("last_evaluation")) else missing


def _state(row: Row) -> str:
    """The state; of an unreadable run the reason, without the advice after a semicolon."""
    state = row["state"].replace(f"{row['path']}/", "").partition(";")[0]
    return f"{STATES.get(state, ('✘', ''))[0]} {state}"


COLUMNS = (
    Column("mark", " ", "mark"),
    Column("name", "run", "name"),
    Column("state", "state", None, _state, takes_rest=True),
    Column("stages", "stages", None, lambda row: " ".join(map(str, row.get("stages", []))),
           from_width=70),
    Column("turns", "turns", None, lambda row: str(row.get("num_turns", "")), is_number=True,
           from_width=50),
    Column("pass", "pass@1", None, _last(lambda last: last["short"], missing=NONE),
           is_number=True),
    Column("of", "of", None, _last(lambda last: f" {last['stage']}"), from_width=70),
    Column("interval", "95 %", None, _last(
        lambda last: f"{percent(last['ci_low'])} … {percent(last['ci_high'])}"), from_width=130),
    Column("began", "started (UTC)", None, lambda row: when(row.get("started_at"), missing=""),
           from_width=100),
)  # fmt: skip


class RunsScreen(TableScreen[list[Row]]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("space", "mark", "Mark"),
        Binding("c", "compare", "Compare"),
        Binding("escape", "unfilter", "Clear filter", show=False),
    ]

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._rows: list[Row] = []
        self._known: dict[Path, tuple[tuple[Any, ...], Row]] = {}
        self._marked: list[str] = []
        self._words = ""

    @property
    def store_dir(self) -> Path:
        """Directory of the runs: the parent of the watched one."""
        return self.watched.paths.root.parent

    def compose_body(self) -> ComposeResult:
        yield Static(HELP, id="hint", markup=False)
        yield FilterLine(placeholder="part of a run's name or state")
        yield RowTable(COLUMNS)

    def on_mount(self) -> None:
        self.set_interval(POLL_S, self.poll)

    def fetch(self) -> list[Row]:
        """All runs, newest first; reads only those that changed."""
        return [self._load(paths) for paths in reversed(list_runs(self.store_dir))]

    def show(self, data: list[Row]) -> None:
        self._rows = data
        rows = [
            (row["name"], {**row, "mark": self._mark(row)})
            for row in data
            if self._words in f"{row['name']} {row['state']}".casefold()
        ]
        self.query_one(RowTable).show_rows(rows)

    def on_resize(self) -> None:
        self.show(self._rows)

    def on_input_changed(self, event: Input.Changed) -> None:
        self._words = event.value.strip().casefold()
        self.show(self._rows)

    def action_mark(self) -> None:
        """Marks the run under the cursor; the last two marked are compared."""
        name = self.query_one(RowTable).chosen
        if name in self._marked:
            self._marked.remove(name)
        elif name is not None:
            self._marked = [*self._marked[-1:], name]
        self.show(self._rows)

    def action_compare(self) -> None:
        """Compares the two marked runs, or the marked one, or the watched one, with the run under
        the cursor."""
        table = self.query_one(RowTable)
        names = list(self._marked) or [self.watched.paths.name]
        if len(names) == 1 and table.chosen not in (None, *names):
            names.append(str(table.chosen))
        paths = {row["name"]: RunPaths(self.store_dir / row["name"]) for row in self._rows}
        if len(names) < 2 or not all(name in paths for name in names):
            self.notify("Mark a run with Space, move to another one, press c.", markup=False)
            return
        self.app.push_screen(CompareScreen(self.watched, paths[names[0]], paths[names[1]]))

    def action_open(self) -> None:
        if (name := self.query_one(RowTable).chosen) is not None:
            self.post_message(RunChosen(RunPaths(self.store_dir / name)))

    def refresh_data(self) -> None:
        """Limits the rate: other runs do not report changes."""
        if time.monotonic() - getattr(self, "_asked_at", -POLL_S) >= POLL_S / 2:
            self._asked_at = time.monotonic()
            super().refresh_data()

    def _load(self, paths: RunPaths) -> Row:
        stamp = _stamp(paths)
        known = self._known.get(paths.root)
        if known is None or known[0] != stamp:
            known = stamp, load_run(paths)
            self._known[paths.root] = known
        return known[1]

    def _mark(self, row: Row) -> str:
        if row["name"] in self._marked:
            return "ab"[self._marked.index(row["name"])]
        return "▸" if row["name"] == self.watched.paths.name else " "


def _stamp(paths: RunPaths) -> tuple[Any, ...]:
    """Changes when the run is written, or its supervisor starts or ends."""
    files = (paths.run_db, paths.root / "run.db-wal")
    stats = [file.stat() for file in files if file.exists()]
    return is_owned(paths), *((stat.st_mtime_ns, stat.st_size) for stat in stats)
