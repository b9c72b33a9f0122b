"""Parts of the Run screen: figures, health or ending, stages with their evaluations, best kernels,
verdicts; the table of processes; histories of CPU, memory, GPU and throughput.

Processes are those of the supervisor while it runs, later those of the store. Histories are kept by
the monitor itself, one sample a second, so they begin when it is opened.
"""

from __future__ import annotations

import math
import re
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rich.columns import Columns
from rich.console import Group
from rich.text import Text

from forge.tui.widgets.row_table import Column, RowTable
from forge.tui.widgets.texts import SIGNS as VERDICT_SIGNS
from forge.tui.widgets.texts import STOPPED, spark
from forge.views.run_state import Rung, RungState
from forge.views.text.numbers import (
    NONE,
    at_least,
    bar,
    duration,
    factor,
    launches,
    memory,
    number,
    percent,
    share,
)
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from forge.process.control import ComponentStatus, LiveStatus
    from forge.views.curves import Activity
    from forge.views.run_state import PlayedSteps, RunState

SIGNS: dict[str | None, str] = {"green": "● ok", "yellow": "▲ watch", "red": "✘ bad"}
STYLES: dict[str | None, str] = {"green": "green", "yellow": "yellow", "red": "bold red"}

UUID = re.compile(r"((?:GPU|MIG)-[0-9a-f]{8})-[0-9a-f-]+")
"""Shortened to eight digits, which CUDA accepts too."""

NARROW, WIDE = 60, 130
OF_GPUS = ("gpu_use", "gpu_memory")
"""Columns shown if there is a GPU; without one, the machine's memory is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    """One process, as text."""

    name: str
    role: str
    device: str
    phase: str
    health: str | None
    """green, yellow or red; None if unknown."""
    cpu: str = NONE
    """Cores in use."""
    gpu_use: str = NONE
    gpu_memory: str = NONE
    memory: str = NONE
    age: str = NONE
    """Time since its last progress, or since its end."""
    restarts: str
    words: str


def row_of_component(status: ComponentStatus) -> ProcessRow:
    """A row from the supervisor's status; the reason of its health precedes its last log line."""
    words = " · ".join(part for part in (status.why, status.last_words) if part)
    return ProcessRow(
        name=status.name, role=status.role, device=status.device, phase=status.phase,
        health=status.health, cpu=_cores(status.cpu_cores), gpu_use=share(status.gpu_use),
        gpu_memory=memory(status.gpu_memory_bytes), memory=memory(status.memory_bytes),
        age=duration(status.progress_age_s), restarts=str(status.num_restarts), words=words,
    )  # fmt: skip


def row_of_store(row: dict[str, Any], *, now: float) -> ProcessRow:
    """A row from the store, of a process that is alive or did not end well."""
    ended = row["ended_at"]
    return ProcessRow(
        name=row["name"], role=re.sub(r"-\d+$", "", row["name"]),
        device=UUID.sub(r"\1", row["devices"] or "") or NONE,
        phase="ended" if ended else "started", health=None,
        age=duration(now - (ended or row["started_at"] or now)),
        restarts=str(row["num_restarts"]), words=row["reason"] or "alive",
    )  # fmt: skip


def _text(name: str) -> Callable[[ProcessRow], str]:
    return lambda row: printable(getattr(row, name))


COLUMNS = (
    Column(
        "health", "health", lambda row: SIGNS.get(row.health, NONE),
        style=lambda row: STYLES.get(row.health, ""),
    ),
    Column("name", "process", _text("name")),
    Column("role", "role", _text("role"), from_width=WIDE),
    Column("device", "device", _text("device"), from_width=NARROW),
    Column("phase", "phase", _text("phase")),
    Column("cpu", "CPU", _text("cpu"), from_width=NARROW),
    Column("gpu_use", "GPU", _text("gpu_use"), from_width=NARROW),
    Column("gpu_memory", "GPUmem", _text("gpu_memory"), from_width=NARROW),
    Column("memory", "memory", _text("memory"), from_width=WIDE),
    Column("age", "ago", _text("age")),
    Column("restarts", "rst", _text("restarts"), from_width=NARROW),
    Column("words", "last log line", _text("words"), from_width=NARROW, takes_rest=True),
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
        has_gpu = any(getattr(row, name) != NONE for row in rows for name in OF_GPUS)
        left_out = () if has_gpu else OF_GPUS
        if all(row.cpu == NONE for row in rows):  # from the store
            left_out = (*left_out, "cpu")
        self.columns_shown = [
            each if has_gpu or each.key != "memory" else replace(each, from_width=NARROW)
            for each in COLUMNS
            if each.key not in left_out
        ]
        self.show_rows([(row.name, row) for row in rows])


def _cores(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}"


PERIOD_S = 0.9
"""Minimum time between samples; the monitor refreshes every second, and after each new row."""
LONGEST = 240
"""Samples kept: four minutes at one a second."""
LABEL = 15
"""Columns of a name with its value."""
LEAST_SPARK = 8
GAP = 2


@dataclass(slots=True)
class Histories:
    """The last samples of each quantity."""

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
        were always zero are left out.
        """
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
"""State of a run that has ended, to its style."""


def figures(run: RunState | None, activity: Activity) -> Text:
    """Step, ETA, rates; then idle shares. Missing numbers are omitted."""
    live = run and run.live
    if live:
        pairs = [
            (live.stage, f"{live.done}/{live.total} {live.unit}" if live.total else ""),
            ("ETA", duration(live.eta_s)),
            *((name, number(value)) for name, value in live.numbers.items() if name == "loss"),
            ("tok/s", number(live.tokens_per_s or None)),
            ("judged/s", number(live.judged_per_s or None)),
        ]
    else:
        pairs = _store_figures(run)
    if run is not None and (live or run.state == "running"):
        pairs.insert(2, ("rollouts/s", number(activity.rollouts_per_s)))
    if run is not None:
        pairs += [
            *_played(run.played),
            ("pass@1", NONE if live else run.pass_by_source or NONE),  # beside its stage
            ("evaluated", run.judged if run.is_judged_in_part else NONE),
            ("trained on", run.trained_on or NONE),
        ]
    text = Text()
    for name, value in pairs:
        if value != NONE:
            text.append(f"{printable(name)} ", style="dim")
            text.append(f"{printable(value)}  ", style="bold")
    idle = live.idle if live else activity.idle
    if not idle:
        return text
    text.append("\nidle ", style="dim")
    for role in sorted(idle, reverse=True):
        style = "yellow" if idle[role] >= IDLE_MUCH else "green"
        text.append(f"{printable(role)} ").append(share(idle[role]), style="bold")
        text.append(f" {bar(idle[role], width=IDLE_BAR)}  ", style=style)
    return text


def _played(played: PlayedSteps) -> list[tuple[str, str]]:
    """Means of the last finished step; then the open steps with their groups."""
    return [
        ("reward", number(played.reward)),
        ("pass rate", percent(played.pass_rate)),
        *(
            (f"step {each.step} open", f"{each.num_groups}/{each.num_expected_groups} groups")
            for each in played.open_steps
        ),
    ]


def _store_figures(run: RunState | None) -> list[tuple[str, str]]:
    """Numbers from the store. A run that has ended has no rates."""
    if run is None:
        return []
    pairs = [("ran", duration(run.ran_s))]
    step = NONE if run.step is None else f"{run.step}/{run.num_steps or '?'}"
    if run.state == "running":
        pairs = [
            ("ETA", duration(run.eta_s)),
            ("tok/s", number(run.tokens_per_s)),
            ("turns/s", number(run.turns_per_s)),
        ]
    return [("step", step), *pairs, ("turns", f"{run.num_turns:,}")]


def health(run: RunState | None) -> Text:
    """Reason why a run ended, empty if it is done; of a running one the worst processes first, with
    the reason, then the number of healthy ones.
    """
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


def _ending(run: RunState | None) -> Text:
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
    """Distribution of the last verdicts."""
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
    RungState.DONE: ("✔", "green"), RungState.RUNNING: ("▶", "bold cyan"),
    RungState.WAITING: ("○", "dim"), RungState.CUT: ("✘", "red"),
}  # fmt: skip
SCALE, MOST_SCALE = 16, 60
"""Columns of the scale: least, and most."""
FIXED = 62
"""Columns of a line beside the scale."""
NAMED_FROM = 50
"""Columns of the terminal from which a rate has its name."""
STEPS_BAR = 8
NAME = 10
"""Least columns of a name."""


def draw_ladder(rungs: Sequence[Rung], gains: Mapping[str, str], *, width: int) -> Text:
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


def ladder_line(rungs: Sequence[Rung]) -> Text:
    """All stages in one line, for a small terminal: `✔ eval-0 0.0 %  ▶ grpo-1 12/20`."""
    text = Text(no_wrap=True, overflow="ellipsis")
    for rung in rungs:
        sign, style = RUNG_SIGNS[rung.state]
        if rung.name.startswith("@"):
            continue
        text.append(f"{sign} {printable(rung.name)}", style=style)
        words = rung.short
        if rung.state is RungState.RUNNING and rung.kind != "eval":
            words = _steps(rung)
        text.append(f" {words}  " if words else "  ", style="bold")
    return text


def draw_scale(rung: Rung, columns: int) -> Text:
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


def _line(rung: Rung, gain: str, scale: int, label: str, names: int) -> Text:
    sign, style = RUNG_SIGNS[rung.state]
    is_within = rung.name.startswith("@")
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append("  " if is_within else f"{sign} ", style=style)
    name = f"{printable(rung.name):<{names}}"
    line.append(name, style="dim" if rung.state is RungState.WAITING or is_within else "bold")
    if rung.pass_at_1 is None:
        return line.append_text(_training(rung))
    line.append(f" {label}{percent(rung.pass_at_1):>7} ", style="" if is_within else "bold")
    if scale >= SCALE:
        line.append_text(draw_scale(rung, scale)).append(" ")
    line.append(f"{_interval(rung):>7} %  {rung.size:<6}", style="dim")
    if gain:
        line.append(f" {gain}", style=_gain_style(gain))
    return line


def _gain_style(gain: str) -> str:
    if gain.endswith("?"):
        return "yellow"
    return "green" if gain.startswith("+") else "red"


def _training(rung: Rung) -> Text:
    text = Text()
    if rung.kind != "eval" and rung.step is not None:
        text.append(f" {_steps(rung)} steps")
        if rung.state is RungState.RUNNING and rung.num_steps:
            text.append(f"  {bar(rung.step / rung.num_steps, width=STEPS_BAR)}", style="cyan")
    if rung.seconds is not None:
        text.append(f"  {duration(rung.seconds)}", style="dim")
    return text


def _steps(rung: Rung) -> str:
    return f"{rung.step or 0}/{rung.num_steps}" if rung.num_steps else f"{rung.step or 0}"


def _interval(rung: Rung) -> str:
    return f"{100 * (rung.low or 0.0):.0f}–{100 * (rung.high or 0.0):.0f}"
