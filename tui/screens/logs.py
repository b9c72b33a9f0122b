"""The Logs screen: output of the processes of the latest attempt, by process, level and pattern.

Log files grow without a change in the store, so this screen polls them itself while it is on top.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, Log, Static, Tab, Tabs

from forge.errors import ConfigError
from forge.tui.frame.asking import AskingScreen, following
from forge.tui.frame.watched import Watched
from forge.views.logs import Level, LogBook, LogFilter, LogLine, compile_pattern
from forge.views.text import printable

POLL_S = 1.0
ALL = "all"
NAME_WIDTH = 11


class LogsScreen(AskingScreen[list[LogLine]]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "follow", "Follow"),
        Binding("l", "level", "Level"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("right_square_bracket", "next(1)", "Next process", key_display="]", show=False),
        Binding("left_square_bracket", "next(-1)", "Previous process", key_display="[", show=False),
        Binding("escape", "clear_filter", "Clear filter", show=False),
    ]

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._book = LogBook(watched.paths)
        self._wanted = LogFilter()
        self._words = ""
        self._is_following = True
        self._has_tabs = False
        self._problem: str | None = None

    def compose_body(self) -> ComposeResult:
        yield Tabs(Tab(ALL, id=_tab_id(ALL)))
        yield Static(id="wanted", markup=False)
        yield Input(
            placeholder="regular expression; Enter applies it, Escape clears it", compact=True
        )
        yield Log(highlight=False, max_lines=5000)

    def on_mount(self) -> None:
        self.query_one(Input).display = False
        self.query_one(Log).focus()
        self.set_interval(POLL_S, self.poll)

    def fetch(self) -> list[LogLine]:
        """Reads log files instead of the store."""
        return self._book.read()

    def show(self, data: list[LogLine]) -> None:
        if not data and self._has_tabs:
            return
        self._show_tabs()
        self._write(self._chosen(data))
        self._update_caption()

    def choose(self, process: str | None) -> None:
        """Shows one process, or all for None."""
        self._wanted = replace(self._wanted, process=process)
        self._mark_tab()
        self._rewrite()

    def action_follow(self) -> None:
        self._is_following = not self._is_following
        self.query_one(Log).auto_scroll = self._is_following
        if self._is_following:
            self.query_one(Log).scroll_end(animate=False)
        self._update_caption()

    def action_level(self) -> None:
        self._wanted = replace(self._wanted, level=following(Level, self._wanted.level))
        self._rewrite()

    def action_filter(self) -> None:
        line = self.query_one(Input)
        line.display = True
        line.focus()

    def action_clear_filter(self) -> None:
        self.query_one(Input).value = ""
        self._take_filter("")

    def action_next(self, by: int) -> None:
        names = [None, *self._book.processes()]
        at = names.index(self._wanted.process) if self._wanted.process in names else 0
        self.choose(names[(at + by) % len(names)])

    @on(Input.Submitted)
    def _on_filter(self, event: Input.Submitted) -> None:
        self._take_filter(event.value)

    @on(Tabs.TabActivated)
    def _on_tab(self, event: Tabs.TabActivated) -> None:
        name = str(event.tab.label)
        process = None if name == ALL else name
        if not self._has_tabs:
            self._has_tabs = True  # the first activation is Tabs' initial one, not a choice
        elif process != self._wanted.process:
            self.choose(process)

    def _take_filter(self, words: str) -> None:
        try:
            pattern = compile_pattern(words)
        except ConfigError as error:
            self._problem = str(error)
            self._update_caption()
            return
        self._problem = None
        self._words, self._wanted = words, replace(self._wanted, pattern=pattern)
        self.query_one(Input).display = False
        self.query_one(Log).focus()
        self._rewrite()

    def _show_tabs(self) -> None:
        tabs = self.query_one(Tabs)
        shown = {str(tab.label) for tab in tabs.query(Tab)}
        for name in self._book.processes():
            if name not in shown:
                tabs.add_tab(Tab(Text(printable(name)), id=_tab_id(name)))
                self.call_after_refresh(self._mark_tab)

    def _mark_tab(self) -> None:
        tabs, wanted = self.query_one(Tabs), _tab_id(self._wanted.process or ALL)
        if tabs.query(f"#{wanted}"):
            tabs.active = wanted

    def _rewrite(self) -> None:
        self.query_one(Log).clear()
        self._write(self._chosen(self._book.lines))
        self._update_caption()

    def _chosen(self, lines: Iterable[LogLine]) -> list[LogLine]:
        """Matching lines; a pattern that is too slow is dropped, and all lines are shown again."""
        try:
            return self._wanted.choose(lines)
        except ConfigError as error:
            self._problem, self._words = str(error), ""
            self._wanted = replace(self._wanted, pattern=None)
            self.query_one(Log).clear()
            return self._wanted.choose(self._book.lines)

    def _write(self, lines: list[LogLine]) -> None:
        is_named = self._wanted.process is None
        texts = [
            f"{printable(line.process):{NAME_WIDTH}} {line.text}" if is_named else line.text
            for line in lines
        ]
        if texts:
            self.query_one(Log).write_lines(texts, scroll_end=self._is_following)

    def _update_caption(self) -> None:
        level = self._wanted.level
        parts = [
            f"follow {'on' if self._is_following else 'off'}",
            f"level {'all' if level is Level.DEBUG else f'{level.name} and above'}",
            f"filter {self._words or '–'}",
            f"{self.query_one(Log).line_count} lines",
        ]
        text = Text(printable(" · ".join(parts)))
        if self._problem is not None:
            text.append(f"  ✘ {printable(self._problem)}", style="reverse")
        self.query_one("#wanted", Static).update(text)


def _tab_id(name: str) -> str:
    return "tab-" + "".join(c if c.isalnum() else f"_{ord(c):x}_" for c in name)
