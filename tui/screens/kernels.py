"""The Kernels screen: the best kernel of each problem with its code, times, step and policy; a key
copies or saves it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import DataTable, Input, Static

from forge.errors import ConfigError
from forge.store.reader import RunReader
from forge.tui.frame.asking import AskLine, Confirm, FilterLine, PacedScreen, TableScreen, ask
from forge.tui.frame.watched import Watched
from forge.tui.screens.rollout import RolloutScreen
from forge.tui.widgets.texts import Column, RowTable, copy_code, kernel_facts, shown_code
from forge.views.problems import Kernel, file_name, load_kernel, load_kernels, write_kernel
from forge.views.text import at_least, printable

COLUMNS = (
    Column("rank", "#", "rank", is_number=True),
    Column("name", "problem", "problem_id", takes_rest=True),
    Column("low", "speed-up", "speedup_low", at_least, is_number=True),
    Column("launches", "launches", "num_launches", is_number=True),
    Column("step", "step", "step", is_number=True),
    Column("policy", "policy", "policy_version", from_width=60, is_number=True),
)


@dataclass(frozen=True, slots=True)
class Shown:
    """The list, and the kernel under the cursor."""

    kernels: list[dict[str, Any]]
    kernel: Kernel | None


class KernelsScreen(TableScreen[Shown], PacedScreen[Shown]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("c", "copy", "Copy"),
        Binding("w", "save", "Write to a file"),
        Binding("enter", "open", "Open rollout", show=False),
        Binding("j", "scroll(5)", "Code down", show=False),
        Binding("k", "scroll(-5)", "Code up", show=False),
        Binding("escape", "unfilter", "Clear filter", show=False),
    ]
    DEFAULT_CSS = """
    KernelsScreen #list { height: 9; }
    KernelsScreen RowTable { height: 1fr; }
    KernelsScreen #one { height: 1fr; border-top: solid $primary; }
    KernelsScreen.-wide #body { layout: horizontal; }
    KernelsScreen.-wide #list { width: 76; height: 1fr; }
    KernelsScreen.-wide #one { width: 1fr; border-top: none; border-left: solid $primary; }
    """

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._words: str | None = None
        self._chosen: str | None = None
        """turn_id of the selected kernel; None: the best."""
        self._listed: tuple[Any, list[dict[str, Any]]] | None = None

    def compose_body(self) -> ComposeResult:
        with Vertical(id="list"):
            yield Static(id="caption", markup=False)
            yield FilterLine(placeholder="part of a problem's or family's name")
            yield RowTable(COLUMNS, id="kernels")
        with VerticalScroll(id="one"):
            yield Static(id="facts", markup=False)
            yield Static(id="code", markup=False)

    def question(self) -> tuple[str | None, str | None]:
        return self._words, self._chosen

    def answer(self, reader: RunReader, question: Any) -> Shown:
        words, chosen = question
        kernels = self._list(reader, words)
        known = [row["turn_id"] for row in kernels]
        wanted = chosen if chosen in known else next(iter(known), None)
        return Shown(kernels, None if wanted is None else load_kernel(reader, wanted))

    def _list(self, reader: RunReader, words: str | None) -> list[dict[str, Any]]:
        """Queried only if it can differ: moving the cursor loads one kernel."""
        asked = (reader, reader.data_version(), words)
        if self._listed is None or self._listed[0] != asked:
            self._listed = asked, load_kernels(reader, words=words)
        return self._listed[1]

    def show_answer(self, data: Shown) -> None:
        num = len(data.kernels)
        num_found = data.kernels[0]["num_found"] if num else 0
        counted = f"{num}" if num == num_found else f"{num} of {num_found}"
        words = f"best kernels of {counted} problems" if num else "no correct kernel"
        self.query_one("#caption", Static).update(words)
        self.query_one(RowTable).show_rows([(row["turn_id"], row) for row in data.kernels])
        kernel = data.kernel
        self.query_one("#facts", Static).update(kernel_facts(kernel) if kernel else Text())
        self.query_one("#code", Static).update(shown_code(kernel.code) if kernel else Text())

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        chosen = event.row_key.value
        if chosen is not None and chosen != self._chosen:
            self._chosen = chosen
            self.query_one("#one").scroll_home(animate=False)
            self.ask_now()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._words = event.value.strip() or None
        self.ask_now()

    def action_scroll(self, by: int) -> None:
        self.query_one("#one").scroll_relative(y=by, animate=False)

    def action_open(self) -> None:
        if kernel := self._kernel:
            where = {name: kernel.turn[name] for name in ("group_id", "rollout", "turn")}
            self.app.push_screen(RolloutScreen(self.watched, **where))

    def action_copy(self) -> None:
        if kernel := self._kernel:
            copy_code(self.app, kernel.code, kernel.turn["problem_id"])

    def action_save(self) -> None:
        """Asks for a file name and writes the code; overwrites only after confirmation."""
        if kernel := self._kernel:
            name = file_name(kernel.turn["problem_id"])
            line = AskLine(f"File to write, in {_here()}:", value=name)
            ask(self.app, line, lambda name: self._write(kernel, Path(name), may_replace=False))

    @property
    def _kernel(self) -> Kernel | None:
        return None if self._shown is None else self._shown.kernel

    def _write(self, kernel: Kernel, path: Path, *, may_replace: bool) -> None:
        def write() -> None:
            try:
                written = write_kernel(kernel.code, path, may_replace=may_replace)
            except FileExistsError:
                self.app.call_from_thread(self._ask_to_replace, kernel, path)
            except ConfigError as error:
                words = printable(str(error))
                self.notify(words, title="Not written", severity="error", markup=False)
            else:
                self.notify(printable(str(written)), title="Written", markup=False)

        self.run_worker(write, thread=True, group="write")

    def _ask_to_replace(self, kernel: Kernel, path: Path) -> None:
        words = f"{printable(str(path))} exists; its content will be lost."
        dialog = Confirm("Replace the file?", words)
        ask(self.app, dialog, lambda _: self._write(kernel, path, may_replace=True))


def _here() -> str:
    try:
        return printable(str(Path.cwd()))
    except OSError:
        return "a deleted folder"
