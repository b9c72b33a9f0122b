"""The Run screen: state, stages, processes and curves of a run; of a finished one its results.

While a supervisor answers, processes and rates come from it, at most two seconds old; otherwise
they come from the store, and the screen says so. Histories of CPU, memory, GPU and throughput are
kept by the monitor itself, one sample a second, so they begin when it is opened. Curves are a
sparkline each in a small terminal, otherwise a plot each.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, ClassVar

from rich.columns import Columns
from rich.console import Group
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.events import Resize
from textual.message import Message
from textual.widgets import DataTable, Sparkline, Static
from textual_plotext import PlotextPlot

from forge.process.control import ComponentStatus, LiveStatus
from forge.store.reader import RunReader
from forge.tui.frame.asking import AskingScreen
from forge.tui.frame.watched import Watched
from forge.tui.widgets.texts import SIGNS as VERDICT_SIGNS
from forge.tui.widgets.texts import STOPPED, Column, RowTable, spark
from forge.views import run_state
from forge.views.compare import load_gains
from forge.views.curves import Activity, Curve, Curves, load_activity
from forge.views.problems import load_kernels
from forge.views.text import (
    NONE,
    at_least,
    bar,
    duration,
    factor,
    launches,
    memory,
    number,
    percent,
    printable,
    share,
    spread,
)

SIGNS = {"green": "● ok", "yellow": "▲ watch", "red": "✘ bad"}
STYLES = {"green": "green", "yellow": "yellow", "red": "bold red"}

UUID = re.compile(r"((?:GPU|MIG)-[0-9a-f]{8})-[0-9a-f-]+")
"""Shortened to eight digits, which CUDA accepts too."""

NARROW, WIDE = 60, 130
OF_GPUS = ("gpu_use", "gpu_memory")
"""Columns shown if there is a GPU; without one, the machine's memory is shown."""

ProcessRow = dict[str, str]
"""Texts of a process by the keys of COLUMNS, and its name."""


def row_of_component(status: ComponentStatus) -> ProcessRow:
    """A row from the supervisor's status; the reason of its health precedes its last log line."""
    return {
        "health": status.health, "name": status.name, "role": status.role,
        "device": status.device, "phase": status.phase,
        "cpu": NONE if status.cpu_cores is None else f"{status.cpu_cores:.1f}",
        "gpu_use": share(status.gpu_use), "gpu_memory": memory(status.gpu_memory_bytes),
        "memory": memory(status.memory_bytes), "age": duration(status.progress_age_s),
        "restarts": str(status.num_restarts),
        "words": " · ".join(filter(None, (status.why, status.last_words))),
    }  # fmt: skip


def row_of_store(row: dict[str, Any], *, now: float) -> ProcessRow:
    """A row from the store, of a process that is alive or did not end well."""
    ended = row["ended_at"]
    return dict.fromkeys(("health", "cpu", *OF_GPUS, "memory"), NONE) | {
        "name": row["name"], "role": re.sub(r"-\d+$", "", row["name"]),
        "device": UUID.sub(r"\1", row["devices"] or ""), "phase": "ended" if ended else "started",
        "age": duration(now - (ended or row["started_at"] or now)),
        "restarts": str(row["num_restarts"]), "words": row["reason"] or "alive",
    }  # fmt: skip


COLUMNS = (
    Column("health", "health", "health", lambda health: SIGNS.get(health, NONE),
           style=lambda row: STYLES.get(row["health"], "")),
    Column("name", "process", "name"),
    Column("role", "role", "role", from_width=WIDE),
    Column("device", "device", "device", from_width=NARROW),
    Column("phase", "phase", "phase"),
    Column("cpu", "CPU", "cpu", from_width=NARROW),
    Column("gpu_use", "GPU", "gpu_use", from_width=NARROW),
    Column("gpu_memory", "GPUmem", "gpu_memory", from_width=NARROW),
    Column("memory", "memory", "memory", from_width=WIDE),
    Column("age", "ago", "age"),
    Column("restarts", "rst", "restarts", from_width=NARROW),
    Column("words", "last log line", "words", str, from_width=NARROW, takes_rest=True),
)  # fmt: skip


class ProcessTable(RowTable):
    """The table; choosing a row (Enter, a click) leads to its log."""

    DEFAULT_CSS = """
    ProcessTable { height: auto; max-height: 14; scrollbar-size-horizontal: 0; }
    """

    def __init__(self) -> None:
        super().__init__(COLUMNS)

    def show_processes(self, rows: Sequence[ProcessRow]) -> None:
        """Shows the columns that have a value; without a GPU, the memory from a narrow width."""
        has_gpu = any(row[name] != NONE for row in rows for name in OF_GPUS)
        left_out = () if has_gpu else OF_GPUS
        if all(row["cpu"] == NONE for row in rows):  # from the store
            left_out = (*left_out, "cpu")
        self.columns_shown = [
            each if has_gpu or each.key != "memory" else replace(each, from_width=NARROW)
            for each in COLUMNS
            if each.key not in left_out
        ]
        self.show_rows([(row["name"], row) for row in rows])


PERIOD_S = 0.9
"""Minimum time between samples; the monitor refreshes every second, and after each new row."""
LONGEST = 240
"""Samples kept: four minutes at one a second."""
LABEL = 15
LEAST_SPARK = 8
GAP = 2


@dataclass(slots=True)
class Histories:
    samples: dict[str, deque[float]] = field(default_factory=dict)
    _sampled_at: float = -math.inf

    def add(self, live: LiveStatus, *, now: float) -> None:
        """Takes a sample, at most one per period; a quantity that is not reported has none."""
        if now - self._sampled_at < PERIOD_S:
            return
        self._sampled_at = now
        for name, (measure, _) in QUANTITIES.items():
            value = measure(live)
            if value is not None:
                self.samples.setdefault(name, deque(maxlen=LONGEST)).append(value)

    def draw(self, width: int, *, most_lines: int) -> Text:
        """The histories side by side, the first ones if there is no room for all; quantities that
        were always zero are left out."""
        shown = [name for name in QUANTITIES if any(self.samples.get(name, ()))]
        if not shown:
            return Text()
        per_line = max(1, min(len(shown), width // (LABEL + LEAST_SPARK + GAP)))
        shown = shown[: per_line * most_lines]
        room = max(width // per_line - LABEL - GAP, LEAST_SPARK)
        text = Text(no_wrap=True, overflow="crop")
        for place, name in enumerate(shown):
            if place and place % per_line == 0:
                text.append("\n")
            values = list(self.samples[name])[-room:]
            text.append(f"{name} ", style="dim")
            value = QUANTITIES[name][1](values[-1])
            text.append(f"{value:<{LABEL - len(name) - 1}}", style="bold")
            text.append(f"{spark(values, high=max(*values, 1e-9)):<{room}}", style="cyan")
            text.append(" " * GAP)
        return text


def _total(live: LiveStatus, name: str) -> float | None:
    found = [each for one in live.components if (each := getattr(one, name)) is not None]
    return float(sum(found)) if found else None


def _gpu_use(live: LiveStatus) -> float | None:
    """Mean over the devices in use; processes that share one report the same number."""
    by_device = {one.device: one.gpu_use for one in live.components if one.gpu_use is not None}
    return sum(by_device.values()) / len(by_device) if by_device else None


QUANTITIES: dict[str, tuple[Callable[[LiveStatus], float | None], Callable[[float], str]]] = {
    "CPU": (lambda live: _total(live, "cpu_cores"), lambda value: f"{value:.1f} cores"),
    "GPU": (_gpu_use, share),
    "tok/s": (lambda live: live.tokens_per_s, number),
    "judged/s": (lambda live: live.judged_per_s, number),
    "memory": (lambda live: _total(live, "memory_bytes"), lambda value: memory(int(value))),
    "GPUmem": (lambda live: _total(live, "gpu_memory_bytes"), lambda value: memory(int(value))),
}
"""Name to its measurement and its text, the most important first."""


IDLE_BAR = 8
MIX_BAR = 12
IDLE_MUCH = 0.5
"""Idle share from which a role is marked."""
ENDED = {"done": "bold green", "stopped": "bold yellow", "failed": "bold red", "killed": "bold red"}


def figures(run: run_state.RunState | None, activity: Activity) -> Text:
    """Step, ETA, rates; then idle shares. Missing numbers are omitted."""
    text = Text()
    for name, value in _figures(run, activity) if run else ():
        if value not in (NONE, ""):
            text.append(f"{printable(name)} ", style="dim")
            text.append(f"{printable(value)}  ", style="bold")
    idle = run.live.idle if run and run.live else activity.idle
    if idle:
        text.append("\nidle ", style="dim")
    for role in sorted(idle, reverse=True):
        style = "yellow" if idle[role] >= IDLE_MUCH else "green"
        text.append(f"{printable(role)} ").append(share(idle[role]), style="bold")
        text.append(f" {bar(idle[role], width=IDLE_BAR)}  ", style=style)
    return text


def _figures(run: run_state.RunState, activity: Activity) -> list[tuple[str, str]]:
    """Name and value of each; a run that has ended has no rates."""
    live, is_running, last, played = run.live, run.state == "running", run.evaluation, run.played
    if live:
        pairs = [
            (live.stage, f"{live.done}/{live.total} {live.unit}" if live.total else " "),
            ("ETA", duration(live.eta_s)),
            ("rollouts/s", number(activity.rollouts_per_s)),
            *((name, number(value)) for name, value in live.numbers.items() if name == "loss"),
            ("tok/s", number(live.tokens_per_s or None)),
            ("judged/s", number(live.judged_per_s or None)),
        ]
    else:
        pairs = [
            ("step", "" if run.step is None else f"{run.step}/{run.num_steps or '?'}"),
            ("ETA", duration(run.eta_s) if is_running else NONE),
            ("rollouts/s", number(activity.rollouts_per_s) if is_running else NONE),
            ("tok/s", number(run.tokens_per_s) if is_running else NONE),
            ("turns/s", number(run.turns_per_s) if is_running else NONE),
            ("ran", NONE if is_running else duration(run.ran_s)),
            ("turns", f"{run.num_turns:,}"),
        ]
    return [
        *pairs,
        ("reward", number(played["reward"])),
        ("pass rate", percent(played["pass_rate"])),
        *(
            (
                f"step {each['step']} open",
                "{num_groups}/{num_expected_groups} groups".format(**each),
            )
            for each in played["open_steps"]
        ),
        ("pass@1", "" if live else last["pass_by_source"]),  # beside its stage
        ("evaluated", last["judged"] if last["is_judged_in_part"] else ""),
        ("trained on", last["trained_on"]),
    ]


def health(run: run_state.RunState | None) -> Text:
    """Reason why a run ended, empty if it is done; of a running one the worst processes first, with
    the reason, then the number of healthy ones."""
    live = run and run.live
    if live is None:
        return _ending(run)
    text = Text("health ", style="dim")
    for kind in ("red", "yellow"):
        for each in live.components:
            if each.health == kind:
                text.append(SIGNS[kind], style=f"not dim {STYLES[kind]}")
                text.append(f" {printable(each.name)} {printable(each.why)}  ", style="not dim")
    num_well = sum(each.health == "green" for each in live.components)
    text.append(SIGNS["green"], style=f"not dim {STYLES['green']}")
    return text.append(f" {num_well} of {len(live.components)}", style="not dim")


def _ending(run: run_state.RunState | None) -> Text:
    state = run.state if run else "unknown"
    if state not in ENDED:
        return Text(f"no supervisor answers; the run is {state}")
    words = run.reason if run else None
    if state == "done" and words in (None, state):
        return Text()
    text = Text(state, style=ENDED[state])
    if words and words != state:
        text.append(f": {printable(words)}", style="not bold")
    if run is not None and state != "done" and "forge resume" not in (words or ""):
        text.append(f'; "forge resume {printable(run.run)}" continues it', style="not bold")
    return text


def best_kernels(rows: Sequence[Mapping[str, Any]]) -> Text:
    """The best kernels, a line each: speed-up, or launches and length where nothing was timed."""
    text = Text(no_wrap=True, overflow="ellipsis")
    if not rows:
        return text
    text.append("best kernels (4 shows all)", style="bold")
    for row in rows:
        text.append("\n")
        if row["speedup_low"] is None:
            speed = launches(row["num_launches"])
        else:
            speed = f"{at_least(row['speedup_low'])} ({factor(row['speedup'])})"
        text.append(f"{speed:<18}", style="green")
        text.append(f"{printable(row['problem_id'])}  ")
        text.append(printable(row["turn_id"]), style="dim")
    return text


def mix(activity: Activity) -> Group | Text:
    if not activity.mix:
        return Text("no verdict yet", style="dim")
    parts = []
    for row in activity.mix:
        _, style = VERDICT_SIGNS.get(row["status"], STOPPED)
        part = Text(f"{printable(row['status'])} {share(row['share'])} ", no_wrap=True)
        parts.append(part.append(bar(row["share"], width=MIX_BAR), style=style))
    heading = Text("verdicts of the last groups", style="bold")
    return Group(heading, Columns(parts, padding=(0, 3)))


RUNG_SIGNS = {
    run_state.RungState.DONE: ("✔", "green"), run_state.RungState.RUNNING: ("▶", "bold cyan"),
    run_state.RungState.WAITING: ("○", "dim"), run_state.RungState.CUT: ("✘", "red"),
}  # fmt: skip
SCALE, MOST_SCALE = 16, 60
FIXED = 62
NAMED_FROM = 50
"""Columns of the terminal from which a rate has its name."""
STEPS_BAR = 8
NAME = 10


def draw_ladder(rungs: Sequence[run_state.Rung], gains: Mapping[str, str], *, width: int) -> Text:
    """A line per rung; a second one where its number is of several sources, or of problems that are
    trained on, and at the last one with its levels.

    Args:
        gains: name of an evaluation to its gain over the one before: `+21.9 pts`, `+1.2 pts?`.
    """
    scale = min(MOST_SCALE, width - FIXED)
    label = "pass@1 " if width >= NAMED_FROM else ""
    names = max([NAME, *(len(rung.name) for rung in rungs)])
    lines = list[Text]()
    last = next((rung for rung in reversed(rungs) if rung.pass_at_1 is not None), None)
    for rung in rungs:
        lines.append(_line(rung, gains.get(rung.name, ""), scale, label, names))
        parts = rung.parts if rung.has_sources or rung is last else ""
        about = "; ".join(filter(None, (parts, rung.trained_on)))
        lines += [Text(f"    {printable(about)}", style="dim")] * bool(about)
    return Text("\n").join(lines)


def ladder_line(rungs: Sequence[run_state.Rung]) -> Text:
    """All stages in one line, for a small terminal: `✔ eval-0 0.0 %  ▶ grpo-1 12/20`."""
    text = Text(no_wrap=True, overflow="ellipsis")
    for rung in rungs:
        sign, style = RUNG_SIGNS[rung.state]
        if rung.name.startswith("@"):
            continue
        text.append(f"{sign} {printable(rung.name)}", style=style)
        words = rung.short
        if rung.state is run_state.RungState.RUNNING and rung.kind != "eval":
            words = _steps(rung)
        text.append(f" {words}  " if words else "  ", style="bold")
    return text


def draw_scale(rung: run_state.Rung, columns: int) -> Text:
    """`  ├──●──┤   `: the interval and the estimate on 0 to 100 %."""
    assert rung.pass_at_1 is not None
    cells = ["·" if column % max(columns // 4, 1) == 0 else " " for column in range(columns)]
    low, at, high = (
        round(min(max(share, 0.0), 1.0) * (columns - 1))
        for share in (rung.low or 0.0, rung.pass_at_1, rung.high or 0.0)
    )
    for column in range(low, high + 1):
        cells[column] = "─"
    if high > low:
        cells[low], cells[high] = "├", "┤"
    cells[at] = "●"
    text = Text("".join(cells), style="dim")
    text.stylize("not dim cyan", min(low, at), max(high, at) + 1)
    text.stylize("bold", at, at + 1)
    return text


def _line(rung: run_state.Rung, gain: str, scale: int, label: str, names: int) -> Text:
    sign, style = RUNG_SIGNS[rung.state]
    is_within = rung.name.startswith("@")
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append("  " if is_within else f"{sign} ", style=style)
    name = f"{printable(rung.name):<{names}}"
    line.append(
        name, style="dim" if rung.state is run_state.RungState.WAITING or is_within else "bold"
    )
    if rung.pass_at_1 is None:
        return line.append_text(_training(rung))
    line.append(f" {label}{percent(rung.pass_at_1):>7} ", style="" if is_within else "bold")
    if scale >= SCALE:
        line.append_text(draw_scale(rung, scale)).append(" ")
    between = f"{100 * (rung.low or 0.0):.0f}–{100 * (rung.high or 0.0):.0f}"
    line.append(f"{between:>7} %  {rung.size:<6}", style="dim")
    if gain:
        sure = "green" if gain.startswith("+") else "red"
        line.append(f" {gain}", style="yellow" if gain.endswith("?") else sure)
    return line


def _training(rung: run_state.Rung) -> Text:
    text = Text()
    if rung.kind != "eval" and rung.step is not None:
        text.append(f" {_steps(rung)} steps")
        if rung.state is run_state.RungState.RUNNING and rung.num_steps:
            text.append(f"  {bar(rung.step / rung.num_steps, width=STEPS_BAR)}", style="cyan")
    if rung.seconds is not None:
        text.append(f"  {duration(rung.seconds)}", style="dim")
    return text


def _steps(rung: run_state.Rung) -> str:
    return f"{rung.step or 0}/{rung.num_steps}" if rung.num_steps else f"{rung.step or 0}"


MAX_CURVES = 8
MOST_TICKS, TICK_COLUMNS = 5, 14
"""Labels on the axis of steps: at most, and columns for each."""
PLOT_COLUMNS = 28
MOST_IN_A_ROW = 4
SHORTEST, TALLEST = 8, 18
POINTS_PER_COLUMN = 2
"""Resolution of braille; more points would cost time without being visible."""


class CurveBox(Vertical):
    def __init__(self) -> None:
        super().__init__()
        self._curve: tuple[Curve, int] | None = None

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Static(classes="figures", markup=False)
            yield Sparkline([], summary_function=fmean)
            yield Static(classes="range", markup=False)
        yield PlotextPlot()

    def show_curve(self, curve: Curve | None, *, columns: int) -> None:
        """Shows a curve unless it is shown already; None hides the box."""
        self.display = curve is not None
        if curve is None or (curve, columns) == self._curve:
            return
        self._curve = curve, columns
        last = curve.shown[-1]
        figures = Text(f"{curve.name:<14}", style="dim")
        figures.append(f"{number(last):>9}", style="not dim bold")
        self.query_one(".figures", Static).update(figures)
        self.query_one(Sparkline).data = list(curve.shown)
        low, high = min(curve.shown), max(curve.shown)
        between = f"{number(low)} … {number(high)} {curve.unit}".rstrip()
        self.query_one(".range", Static).update(Text(between, style="dim"))
        self._plot(curve, last, columns)

    def _plot(self, curve: Curve, last: float, columns: int) -> None:
        widget = self.query_one(PlotextPlot)
        thin = curve.thin(columns * POINTS_PER_COLUMN)
        plot = widget.plt
        plot.clear_data()
        plot.title(f"{curve.name} {number(last)} {curve.unit}".rstrip())
        plot.plot(list(thin.steps), list(thin.shown), marker="braille")
        # plotext's own would be fractions
        plot.xticks(spread(thin.steps, max(2, min(MOST_TICKS, columns // TICK_COLUMNS))))
        low, high = min(thin.shown), max(thin.shown)
        heights = [low] if low == high else [low, (low + high) / 2, high]
        plot.yticks(heights, [number(each) for each in heights])
        widget.refresh()


class CurveGrid(Vertical):
    """All curves that have points: one line each, or plots that share the room."""

    def __init__(self) -> None:
        super().__init__()
        self._plots: tuple[int, int] | None = None

    def compose(self) -> ComposeResult:
        yield Static("", id="of", markup=False)
        with Vertical(id="boxes"):
            for _ in range(MAX_CURVES):
                yield CurveBox()

    def show_curves(
        self, words: str, curves: Sequence[Curve], *, room: tuple[int, int] | None
    ) -> None:
        """Shows the curves under the heading `words`.

        Args:
            room: columns and lines for plots; None for a line each.
        """
        found = [curve for curve in curves if curve.values][:MAX_CURVES]
        self.query_one("#of", Static).update(Text(words, style="bold"))
        columns = self._arrange(len(found), room)
        for number_, box in enumerate(self.query(CurveBox)):
            box.show_curve(found[number_] if number_ < len(found) else None, columns=columns)

    def _arrange(self, num: int, room: tuple[int, int] | None) -> int:
        """Sets columns and heights of the plots; returns the width of one."""
        if room is None or not num:
            self.set_class(False, "-plots")
            return PLOT_COLUMNS
        width, height = room
        most = max(1, min(MOST_IN_A_ROW, width // PLOT_COLUMNS))
        num_rows = -(-num // most)
        across = -(-num // num_rows)
        lines = max(SHORTEST, min(TALLEST, height // num_rows))
        if (across, lines) != self._plots:
            self._plots = across, lines
            self.query_one("#boxes").styles.grid_size_columns = across
            for plot in self.query(PlotextPlot):
                plot.styles.height = lines
        self.set_class(True, "-plots")
        return width // across


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
    rungs: list[run_state.Rung]
    gains: dict[str, str]
    """Name of an evaluation to the gain of the training before it."""
    kernels: list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """Data of one refresh."""

    now: float
    run: run_state.RunState | None
    stored: FromStore
    curves_of: str

    @property
    def is_ended(self) -> bool:
        """True if the run has ended and its results are what matters."""
        return self.run is not None and self.run.live is None and self.run.state in ENDED


class RunScreen(AskingScreen[RunData]):
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
            stages = run_state.load_stages(reader)
            words = f"{words}, {run_state.stage_name(stages, self._curves.stage)}, by step"
        return RunData(
            now=now, run=run, stored=self._stored, curves_of=words,
        )  # fmt: skip

    def _load_stored(self, reader: RunReader, *, now: float, state: str | None) -> FromStore:
        curves = self._curves.read(reader)
        is_ended = state in ENDED
        if is_ended and (loss := self._curves.sft_loss(reader)) is not None:
            curves = [*curves, loss]
        stages = run_state.load_stages(reader)
        return FromStore(
            activity=load_activity(reader, now=now),
            curves=curves,
            rungs=run_state.load_ladder(reader, stages, is_running=not is_ended),
            gains=self._load_gains(reader, run_state.stage_names(stages)),
            kernels=load_kernels(reader, limit=3) if is_ended else [],
        )

    def _load_gains(self, reader: RunReader, names: list[str]) -> dict[str, str]:
        """Gains, read again only after another evaluation."""
        rows = reader.rows(run_state.IN_ORDER)
        if len(rows) != self._gains[0]:
            found = load_gains(reader, rows, names)
            self._gains = len(rows), {gain.after: gain.short() for gain in found}
        return self._gains[1]

    def show(self, data: RunData) -> None:
        stored, live = data.stored, data.run and data.run.live
        if live is not None:
            self._histories.add(live, now=data.now)
        width, is_tall = self.app.size.width - 2, self.app.size.height >= WHOLE_LADDER_FROM
        rows = _process_rows(data)
        texts = {
            "figures": figures(data.run, stored.activity),
            "health": health(data.run),
            "ladder": draw_ladder(stored.rungs, stored.gains, width=width)
            if data.is_ended or is_tall
            else ladder_line(stored.rungs),
            "histories": self._histories.draw(width, most_lines=2 if is_tall else 1)
            if live is not None
            else Text(),
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
