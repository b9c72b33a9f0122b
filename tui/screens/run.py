"""The Run screen: state of the run, its processes, its curves.

While a supervisor answers, processes and rates come from it, at most two seconds old; otherwise
they come from the store, and the screen says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rich.columns import Columns
from rich.console import Group
from rich.text import Text
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.message import Message
from textual.widgets import DataTable, Static

from forge.views.run.monitor import Activity, Curve, Curves, load_activity
from forge.views.text.numbers import NONE, bar, duration, number, percent, share
from forge.views.text.terminal import printable
from tui.frame.asking import AskingScreen
from tui.widgets.curves import CurveGrid
from tui.widgets.processes import SIGNS, STYLES, ProcessTable, row_of_component, row_of_store

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.events import Resize

    from forge.control import LiveStatus
    from forge.store.reader import RunReader
    from forge.views.run.standing import Standing
    from forge.views.run.steps import PlayedSteps
    from tui.frame.watched import Watched

IDLE_BAR = 8
MIX_BAR = 12


class LogWanted(Message):
    """Request for the log of a process."""

    def __init__(self, process: str | None) -> None:
        super().__init__()
        self.process = process


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """Data of one refresh."""

    now: float
    standing: Standing | None
    live: LiveStatus | None
    activity: Activity
    curves: list[Curve]
    curves_of: str


class RunScreen(AskingScreen[RunData]):
    """The Run screen, key 1."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("S", "app.ask('stop')", "Stop", tooltip="After this step"),
        Binding("C", "app.ask('save')", "Checkpoint", tooltip="At the end of this step"),
        Binding("E", "app.ask('evaluate')", "Evaluate", tooltip="After this step"),
    ]
    VERTICAL_BREAKPOINTS = [(0, "-low"), (40, "-tall")]  # noqa: RUF012
    CURVES_OF: ClassVar[dict[str | None, str]] = {
        "grpo": "rollouts and training", "sft": "training", None: "nothing was trained yet",
    }  # fmt: skip

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._curves = Curves()
        self._version: int | None = None
        self._read: tuple[Activity, list[Curve]] | None = None

    def compose_body(self) -> ComposeResult:
        with VerticalScroll(id="page"):
            yield Static(id="figures", markup=False)
            yield Static(id="health", markup=False)
            yield ProcessTable()
            yield CurveGrid()
            yield Static(id="mix", markup=False)

    def load(self, reader: RunReader) -> RunData:
        """Queries the store only if it changed; the supervisor's status is new each second."""
        now = self.watched.clock()
        version = reader.data_version()
        if self._read is None or version != self._version:
            self._read = load_activity(reader, now=now), self._curves.read(reader)
            self._version = version
        activity, curves = self._read
        words = self.CURVES_OF.get(self._curves.kind, "")
        if self._curves.stage is not None:
            words = f"{words}, {self._curves.kind}-{self._curves.stage}, by step"
        return RunData(
            now=now, standing=self.watched.standing, live=self.watched.live, activity=activity,
            curves=curves, curves_of=words,
        )  # fmt: skip

    def show(self, data: RunData) -> None:
        self.query_one("#figures", Static).update(figures(data))
        self.query_one("#health", Static).update(health(data))
        self.query_one(ProcessTable).show_rows(_rows(data))
        self.query_one(CurveGrid).show_curves(data.curves_of, data.curves)
        self.query_one("#mix", Static).update(mix(data.activity))

    def on_resize(self, event: Resize) -> None:
        self.refresh_data()  # other columns of the table fit

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Opens the log of the process."""
        self.post_message(LogWanted(event.row_key.value))


def figures(data: RunData) -> Text:
    """Step, ETA, rates; then idle shares. Missing numbers are omitted."""
    live, activity = data.live, data.activity
    if live:
        pairs = [
            (live.stage, f"{live.done}/{live.total} {live.unit}" if live.total else ""),
            ("ETA", duration(live.eta_s)),
            ("tok/s", number(live.tokens_per_s)),
            ("judged/s", number(live.judged_per_s)),
        ]
    else:
        pairs = _store_figures(data.standing, activity)
    if live or (data.standing is not None and data.standing.state == "running"):
        pairs.insert(2, ("rollouts/s", number(activity.rollouts_per_s)))
    if data.standing is not None:
        pairs += [
            *_played(data.standing.played),
            ("pass@1", percent(data.standing.pass_at_1)),
            ("evaluated", data.standing.judged if data.standing.is_judged_in_part else NONE),
            ("trained on", data.standing.trained_on or NONE),
        ]
    text = Text()
    for name, value in pairs:
        if value != NONE:
            text.append(f"{printable(name)} ").append(f"{printable(value)}  ", style="bold")
    idle = live.idle if live else activity.idle
    text.append("\nidle ")
    for role in sorted(idle, reverse=True):
        text.append(f"{printable(role)} ").append(share(idle[role]), style="bold")
        text.append(f" {bar(idle[role], width=IDLE_BAR)}  ")
    return text if idle else text.append(NONE)


def _played(played: PlayedSteps) -> list[tuple[str, str]]:
    """Means of the last finished step; then the open steps with their groups."""
    return [
        ("reward", number(played.reward)),
        ("pass rate", number(played.pass_rate)),
        *(
            (f"step {each.step} open", f"{each.num_groups}/{each.num_expected_groups} groups")
            for each in played.open_steps
        ),
    ]


def _store_figures(standing: Standing | None, activity: Activity) -> list[tuple[str, str]]:
    """Numbers from the store. A run that has ended has no rates."""
    pairs = [("ran", duration(activity.ran_s))]
    if standing is None:
        return pairs
    step = NONE if standing.step is None else f"{standing.step}/{standing.num_steps or '?'}"
    if standing.state == "running":
        pairs = [
            ("ETA", duration(standing.eta_s)),
            ("tok/s", number(standing.tokens_per_s)),
            ("turns/s", number(standing.turns_per_s)),
        ]
    return [("step", step), *pairs, ("turns", str(standing.num_turns))]


def health(data: RunData) -> Text:
    """The worst processes first, with the reason; then the number of healthy ones."""
    text = Text("health ")
    live, standing = data.live, data.standing
    if live is not None and not live.components:
        return text.append(f"{NONE} its supervisor, of another version, does not report them")
    if live is None:
        state = standing.state if standing else "unknown"
        words = data.activity.end_reason
        return text.append(f"{NONE} no supervisor answers; the run is {state}").append(
            f" ({printable(words)})" if words and words != state else ""
        )
    for kind in ("red", "yellow"):
        for each in live.components:
            if each.health == kind:
                text.append(SIGNS[kind], style=STYLES[kind])
                text.append(f" {printable(each.name)} {printable(each.why)}  ")
    num_well = sum(each.health == "green" for each in live.components)
    text.append(SIGNS["green"], style=STYLES["green"])
    return text.append(f" {num_well} of {len(live.components)}")


def mix(activity: Activity) -> Group:
    """Distribution of the last verdicts."""
    parts = [
        Text(
            f"{printable(row['status'])} {share(row['share'])} {bar(row['share'], width=MIX_BAR)}",
            no_wrap=True,
        )
        for row in activity.mix
    ]
    heading = Text("verdicts of the last groups", style="bold")
    return Group(heading, Columns(parts or [Text("none yet")], padding=(0, 3)))


def _rows(data: RunData) -> list:
    if data.live is not None and data.live.components:
        return [row_of_component(each) for each in data.live.components]
    is_running = data.standing is not None and data.standing.state == "running"
    return [
        row_of_store(row, now=data.now, is_running=is_running) for row in data.activity.processes
    ]
