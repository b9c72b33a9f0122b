"""The Run screen: state, stages, processes and curves of a run; of a finished one its results.

While a supervisor answers, processes and rates come from it, at most two seconds old; otherwise
they come from the store, and the screen says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.message import Message
from textual.widgets import DataTable, Static

from forge.tui.frame.asking import AskingScreen
from forge.tui.widgets.run_lines import (
    ENDED,
    CurveGrid,
    Histories,
    ProcessTable,
    best_kernels,
    draw_ladder,
    figures,
    health,
    ladder_line,
    mix,
    row_of_component,
    row_of_store,
)
from forge.views.curves import Activity, Curve, Curves, load_activity
from forge.views.gains import load_gains
from forge.views.run_state import (
    IN_ORDER,
    Rung,
    load_ladder,
    load_stages,
    stage_name,
    stage_names,
)

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.events import Resize

    from forge.store.reader import RunReader
    from forge.tui.frame.watched import Watched
    from forge.views.run_state import RunState

BEST_KERNELS = """
SELECT problem_id, speedup_low, speedup, num_launches, turn_id FROM v_best_kernels
ORDER BY rank LIMIT 3
"""
PLOTS_FROM = (100, 32)
"""Columns and lines of the terminal from which curves are plots."""
WHOLE_LADDER_FROM = 30
"""Lines of the terminal from which a running run has all of its stages below each other, and two
lines of histories."""
MARGIN = 6
"""Lines of the screen around its texts: title, state, keys, headings."""


class LogWanted(Message):
    """Request for the log of a process."""

    def __init__(self, process: str | None) -> None:
        super().__init__()
        self.process = process


@dataclass(frozen=True, slots=True, kw_only=True)
class FromStore:
    """Data that change with the store only."""

    activity: Activity
    curves: list[Curve]
    rungs: list[Rung]
    gains: dict[str, str]
    """Name of an evaluation to the gain of the training before it."""
    kernels: list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """Data of one refresh."""

    now: float
    run: RunState | None
    stored: FromStore
    curves_of: str

    @property
    def is_ended(self) -> bool:
        """True if the run has ended and its results are what matters."""
        return self.run is not None and self.run.live is None and self.run.state in ENDED


class RunScreen(AskingScreen[RunData]):
    """The Run screen, key 1."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("S", "ask('stop')", "Stop", tooltip="After this step"),
        Binding("C", "ask('save')", "Checkpoint", tooltip="At the end of this step"),
        Binding("E", "ask('evaluate')", "Evaluate", tooltip="After this step"),
    ]
    CURVES_OF: ClassVar[dict[str | None, str]] = {
        "grpo": "rollouts and training", "sft": "training", None: "nothing was trained yet",
    }  # fmt: skip

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._curves = Curves()
        self._histories = Histories()
        self._version: tuple[int, str | None] | None = None
        self._stored: FromStore | None = None
        self._gains: tuple[int, dict[str, str]] = (0, {})

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """False for a request to a run that has ended: the keys are not shown. The app's, which are
        never shown, then say that the run has ended."""
        return self.watched.is_open if action == "ask" else super().check_action(action, parameters)

    async def action_ask(self, action: str) -> None:
        """Requests an action from the run's supervisor."""
        await self.run_action(f"app.ask('{action}')")

    def compose_body(self) -> ComposeResult:
        with VerticalScroll(id="page"):
            yield Static(id="figures", markup=False)
            yield Static(id="health", markup=False)
            yield Static(id="ladder", markup=False)
            yield Static(id="histories", markup=False)
            yield ProcessTable()
            yield Static(id="best", markup=False)
            yield CurveGrid()
            yield Static(id="mix", markup=False)

    def load(self, reader: RunReader) -> RunData:
        """Queries the store only if it changed; the supervisor's status is new each second."""
        run = self.watched.run
        now, state = self.watched.clock(), run.state if run else None
        version = (reader.data_version(), state)
        if self._stored is None or version != self._version:
            self._stored = self._load_stored(reader, now=now, state=state)
            self._version = version
        words = self.CURVES_OF.get(self._curves.kind, "")
        if self._curves.stage is not None:
            words = f"{words}, {stage_name(load_stages(reader), self._curves.stage)}, by step"
        return RunData(
            now=now, run=run, stored=self._stored, curves_of=words,
        )  # fmt: skip

    def _load_stored(self, reader: RunReader, *, now: float, state: str | None) -> FromStore:
        curves = self._curves.read(reader)
        is_ended = state in ENDED
        if is_ended and (loss := self._curves.sft_loss(reader)) is not None:
            curves = [*curves, loss]
        stages = load_stages(reader)
        return FromStore(
            activity=load_activity(reader, now=now),
            curves=curves,
            rungs=load_ladder(reader, stages, is_running=not is_ended),
            gains=self._load_gains(reader, stage_names(stages)),
            kernels=reader.rows(BEST_KERNELS) if is_ended else [],
        )

    def _load_gains(self, reader: RunReader, names: list[str]) -> dict[str, str]:
        """Gains, read again only after another evaluation."""
        rows = reader.rows(IN_ORDER)
        if len(rows) != self._gains[0]:
            found = load_gains(reader, rows, names)
            self._gains = len(rows), {gain.after: gain.short() for gain in found}
        return self._gains[1]

    def show(self, data: RunData) -> None:
        stored, live = data.stored, data.run and data.run.live
        if live is not None:
            self._histories.add(live, now=data.now)
        width = self.app.size.width - 2
        rows = _process_rows(data)
        texts = {
            "figures": figures(data.run, stored.activity),
            "health": health(data.run),
            "ladder": self._ladder(data, width),
            "histories": self._draw_histories(width) if live is not None else Text(),
            "best": best_kernels(stored.kernels),
        }
        for name, text in texts.items():
            widget = self.query_one(f"#{name}", Static)
            widget.display = bool(text)
            widget.update(text)
        table = self.query_one(ProcessTable)
        table.show_processes(rows)
        table.display = bool(rows)
        table.refresh(layout=True)
        used = len(rows) + sum(text.plain.count("\n") + 1 for text in texts.values() if text)
        self._show_curves(data, used + 2)
        self.query_one("#mix", Static).update(mix(stored.activity))

    def _draw_histories(self, width: int) -> Text:
        is_tall = self.app.size.height >= WHOLE_LADDER_FROM
        return self._histories.draw(width, most_lines=2 if is_tall else 1)

    def _ladder(self, data: RunData, width: int) -> Text:
        if data.is_ended or self.app.size.height >= WHOLE_LADDER_FROM:
            return draw_ladder(data.stored.rungs, data.stored.gains, width=width)
        return ladder_line(data.stored.rungs)

    def _show_curves(self, data: RunData, used: int) -> None:
        """Plots where the terminal has the room, which they fill."""
        width, height = self.app.size
        is_roomy = width >= PLOTS_FROM[0] and height >= PLOTS_FROM[1]
        room = (width - 4, height - used - MARGIN) if is_roomy else None
        curves = data.stored.curves
        self.query_one(CurveGrid).show_curves(data.curves_of, curves, room=room)

    def on_resize(self, event: Resize) -> None:
        self.refresh_data()  # other columns of the table fit

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Opens the log of the process."""
        self.post_message(LogWanted(event.row_key.value))


def _process_rows(data: RunData) -> list:
    """All processes of a running run; of one that failed or was killed those that did not end
    well."""
    run = data.run
    if run is not None and run.live is not None:
        return [row_of_component(each) for each in run.live.components]
    state = run.state if run else None
    if state in ("done", "stopped"):
        return []
    rows = data.stored.activity.processes
    if state != "running":  # one without a reason was killed with its supervisor
        rows = [row for row in rows if not (row["reason"] or "exit 0").startswith("exit 0")]
    return [row_of_store(row, now=data.now) for row in rows]
