"""Untrusted text as renderables: highlighted code, a signed diff, plain text, and a search in them;
a verdict or a kernel with signs and units, where a missing number is a dash; and a
table with keyed rows: it keeps the cursor on its row, rewrites only changed cells, and shows as
many columns as fit.

The result contains no control characters and no markup, whatever the input; a text of any length
costs a bounded time. Code is copied to the clipboard by OSC 52, which the terminal handles, also
through SSH. A search is for plain words, ignoring case; its result is independent of how lines are
wrapped, except for a match that is broken across two of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Group
from rich.syntax import Syntax
from rich.text import Text
from textual.coordinate import Coordinate
from textual.widgets import DataTable

from forge.views.rollouts import MENTIONED_QUEUE_S
from forge.views.text import NONE, factor, number, printable, share, when

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console, RenderableType
    from textual.app import App

    from forge.views.problems import Kernel

MAX_SHOWN = 60_000
"""Maximum characters of one text; `forge rollouts --turns` prints all of it."""
MAX_LINES = 1000
"""Maximum lines of one text: each costs 12 us per layout."""
MAX_COLOURED = 20_000
"""Maximum characters to highlight: a lexer takes 70 ms for these."""
THEME = "ansi_dark"
"""The terminal's own colours, readable on light and dark backgrounds."""
MAX_COPIED = 74_994
"""Maximum characters that xterm and tmux accept (100,000 bytes of base64)."""
SPARKS = "▁▂▃▄▅▆▇█"
DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def shown_text(text: str | None, *, style: str = "") -> Text:
    """Plain text with control characters made visible."""
    return Text(_bounded(text or ""), style=style, overflow="fold")


def shown_code(text: str | None) -> Syntax | Text:
    code = _bounded(text or "")
    if len(code) > MAX_COLOURED:
        return Text(code, overflow="fold")
    return Syntax(
        code, "python", theme=THEME, background_color="default", word_wrap=True, tab_size=4
    )


def shown_diff(lines: Sequence[str]) -> Text:
    """Lines of a diff; the sign repeats what the colour says."""
    text = Text(overflow="fold")
    for line in lines:
        text.append(f"{_bounded(line)}\n", style=DIFF_STYLES.get(line[:1], ""))
    return text


def cell(value: str, *, style: str = "") -> Text:
    """One line for a table, cut with an ellipsis."""
    line = printable(value[:MAX_SHOWN]).replace("\n", "␤").replace("\t", "␉")
    return Text(line, style=style, no_wrap=True, overflow="ellipsis")


def spark(values: Sequence[float], *, high: float = 1.0) -> str:
    """One character per value, from 0 (▁) to `high` (█)."""
    steps = [round(min(max(v, 0.0), high) / high * (len(SPARKS) - 1)) for v in values]
    return "".join(SPARKS[step] for step in steps)


def copy_code(app: App[Any], code: str, name: str) -> None:
    """Copies code and notifies; on failure notifies the reason. A paste acts like typing: control
    characters are copied in visible form, so that no paste runs a command or ends a bracketed
    paste."""
    if not code:
        app.notify(f"{printable(name)}: it has no code", severity="warning", markup=False)
        return
    if len(code.encode("utf-8", errors="replace")) > MAX_COPIED:
        words = f"{printable(name)}: {len(code)} characters; a terminal accepts {MAX_COPIED}"
        app.notify(words, severity="error", markup=False)
        return
    harmless = printable(code)
    app.copy_to_clipboard(harmless)
    changed = "" if harmless == code else "; control characters were made visible"
    app.notify(f"{printable(name)}: copied{changed}", markup=False)


def _bounded(text: str) -> str:
    cut = text[:MAX_SHOWN]
    lines = cut.split("\n", MAX_LINES)
    if len(lines) > MAX_LINES:
        cut = "\n".join(lines[:MAX_LINES])
    rest = len(text) - len(cut)
    return f"{printable(cut)}\n… {rest} more characters" if rest else printable(cut)


MATCH = "black on yellow"


def marked(shown: RenderableType, words: str) -> RenderableType:
    """The same with every match of `words` marked; highlighted code keeps its colours."""
    if not words:
        return shown
    if isinstance(shown, Group):
        return Group(*(marked(each, words) for each in shown.renderables))
    if isinstance(shown, Syntax):
        text = shown.highlight(shown.code)
        text.overflow = "fold"
        text.rstrip()
    elif isinstance(shown, Text):
        text = shown.copy()
    else:
        return shown
    text.highlight_regex(re.compile(re.escape(words), re.IGNORECASE), MATCH)
    return text


def lines_with(console: Console, shown: RenderableType, words: str, *, width: int) -> list[int]:
    """Numbers of the lines, from 0, that have a match when drawn in this width."""
    if not words:
        return []
    drawn = console.render_lines(shown, console.options.update(width=width), pad=False)
    texts = ("".join(segment.text for segment in line).casefold() for line in drawn)
    return [number for number, text in enumerate(texts) if words.casefold() in text]


SIGNS = {
    "correct": ("✔", "green"), "wrong": ("✘", "red"),
    "unjudgeable": ("?", "cyan"), "infra_error": ("?", "cyan"),
}  # fmt: skip
STOPPED = ("!", "yellow")
"""Every other status: there was no result to compare."""
MAX_WORDS = 20_000
"""Maximum characters of the judge's detail and feedback; the judge limits them to 2,000."""
WAITING = ("…", "")
"""A turn without a verdict yet."""


def verdict_word(status: str | None) -> Text:
    """`✔ correct`."""
    sign, style = WAITING if status is None else SIGNS.get(status, STOPPED)
    return Text(f"{sign} {printable(status or 'not judged yet')}", style=style)


def path_of_statuses(statuses: Sequence[str]) -> str:
    """`wrong → wrong → ✔ correct`."""
    return " → ".join("✔ correct" if each == "correct" else each for each in statuses)


def signed(value: float | None) -> str:
    """An advantage: `+0.31`."""
    return NONE if value is None else f"{value:+.3g}"


def microseconds(value: float | None, spread: float | None = None) -> str:
    """`104 us ±3`; in ms from ten thousand us."""
    if value is None:
        return NONE
    scale, unit = (1000.0, "ms") if value >= 10_000 else (1.0, "us")
    around = "" if spread is None else f" ±{spread / scale:.2g}"
    return f"{value / scale:.4g} {unit}{around}"


def speedup(row: Mapping[str, Any]) -> str:
    """`2.10x (at least 1.98x)`."""
    if row["speedup"] is None:
        return NONE
    low = "" if row["speedup_low"] is None else f" (at least {factor(row['speedup_low'])})"
    return f"{factor(row['speedup'])}{low}"


def times(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Pairs of (name, measurement); a single pair with the reason if nothing was timed."""
    if row["candidate_us"] is None:
        return [("times", "none" if row["device"] != "cpu" else "none: nothing is timed on a CPU")]
    return [
        ("speed-up", speedup(row)),
        ("candidate", microseconds(row["candidate_us"], row["candidate_spread_us"])),
        ("baseline", microseconds(row["baseline_us"], row["baseline_spread_us"])),
        ("GB/s", number(row["achieved_gbps"])),
        ("TFLOP/s", number(row["achieved_tflops"])),
        ("roofline", share(row["roofline_share"])),
    ]


def kernel_facts(kernel: Kernel) -> Text:
    """Origin and speed of a kernel."""
    row = kernel.turn
    stage = NONE if row["stage_name"] is None else f"{row['stage_name']} step {row['step']}"
    text = Text(f"{printable(row['problem_id'])}\n", style="bold", overflow="fold")
    found = (
        f"found by {kernel.run}, {row['turn_id']} ({row['purpose'] or NONE}), {stage}, policy "
        f"{row['policy_version']}, {when(row['recorded_at'])} UTC\n"
    )
    text.append(printable(found), style="not bold")
    pairs = [*times(row), ("launches", str(row["num_launches"])), ("device", row["device"])]
    facts = [f"{name} {printable(value)}" for name, value in pairs if value != NONE]
    text.append(" · ".join([*facts, f"reward {number(row['reward'])}"]), style="not bold")
    if len(kernel.times) > 1:
        measured = [time["candidate_us"] for time in kernel.times]
        low, high = microseconds(min(measured)), microseconds(max(measured))
        text.append(f"\nmeasured {len(measured)} times: {low} to {high}", style="not bold")
    if kernel.num_found_again > 1:
        again = f"\nthe same code was found {kernel.num_found_again} times"
        text.append(again, style="not bold")
    return text.append("\n")


def verdict_panel(row: dict[str, Any]) -> Text:
    """Everything about a turn except prompt and answer; the feedback comes last."""
    text = Text(overflow="fold")
    text.append(verdict_word(row["status"])).append(f" ({printable(row['reason'] or NONE)})\n")
    sections = {"judge": _judge(row), "phases": _phases(row), "reward": _reward(row)}
    for heading, pairs in {**sections, "sampled": _sampled(row)}.items():
        if pairs:
            text.append(f"\n{heading}\n", style="bold")
        for name, value in pairs:
            text.append(f"  {printable(name):<13}").append(f"{printable(value)}\n")
    for heading, key in (("detail", "detail"), ("feedback to the model", "feedback")):
        if row[key]:
            text.append(f"\n{heading}\n", style="bold")
            text.append(f"{printable(row[key][:MAX_WORDS])}\n")
    return text


def _judge(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        *times(row),
        ("launches", NONE if row["num_launches"] is None else str(row["num_launches"])),
        ("torch share", share(row["torch_share"])),
        ("device", row["device"] or NONE),
        ("sandbox", f"{row['isolation'] or NONE}, memory {row['caps'] or NONE}"),
        ("judged in", f"{row['judge_s']:.3f} s"),
    ]


def _phases(row: dict[str, Any]) -> list[tuple[str, str]]:
    """Seconds from the request for a verdict, starting with the queue for a judge."""
    queue = {"queue": row["queued_s"]} if row["queued_s"] >= MENTIONED_QUEUE_S else {}
    return [(name, f"{s:.3f} s") for name, s in (queue | row["phase_s"]).items()]


def _reward(row: dict[str, Any]) -> list[tuple[str, str]]:
    terms = [(name, f"{value:+.3f}") for name, value in row["reward_terms"].items()]
    total = "not scored" if row["reward"] is None else f"{row['reward']:.3f}"
    trained = [f"{stage} step {step}, {age} old" for stage, step, age in row["trained_at"]]
    return [
        *terms,
        ("reward", total),
        ("return", number(row["discounted_return"])),
        ("advantage", signed(row["advantage"])),
        ("trained", "; ".join(trained) or "no"),
    ]


def _sampled(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    versions = sorted({row["min_version"], row["max_version"]})
    return [
        ("policy", "–".join(str(version) for version in versions)),
        ("tokens", f"{row['num_completion_tokens']} after {row['num_prompt_tokens']}"),
        ("finish", "length: cut off" if row["is_truncated"] else row["finish"]),
        ("generated in", f"{row['generate_s']:.3f} s"),
    ]


Row = TypeVar("Row")


def plain(value: Any) -> str:
    """A dash for a missing value and for an empty text."""
    return NONE if value in (None, "") else str(value)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table. Values need not be printable."""

    key: str
    heading: str
    field: str | None
    """Field of a row, which is a mapping; None for the whole row."""
    show: Callable[[Any], str] = plain
    _: KW_ONLY
    from_width: int = 0
    """Minimum width of the table, in terminal columns, to show this column."""
    is_number: bool = False
    takes_rest: bool = False
    """Takes the remaining width; at most one column."""
    style: Callable[[Any], str] = lambda _: ""

    def cell(self, row: Any) -> Text:
        value = row if self.field is None else row[self.field]
        return cell(self.show(value), style=self.style(row))


MIN_REST = 12
MAX_COLUMN = 40
"""Maximum width of the other columns, so that one long word cannot fill the table."""
SCROLLBAR = 2


class RowTable(DataTable["Text"]):
    """Rows of one kind. `show_rows` may be called any number of times."""

    def __init__(self, columns: Sequence[Column], *, id: str | None = None) -> None:
        super().__init__(cursor_type="row", cell_padding=0, zebra_stripes=True, id=id)
        self.columns_shown: Sequence[Column] = columns
        self._given: tuple[Sequence[tuple[str, Any]], str | None] = ((), None)
        self._given_width = 0
        self._shape: Any = None
        self._keys: list[str] = []
        self._cells: list[list[Text]] = []

    @property
    def chosen(self) -> str | None:
        return self._keys[self.cursor_row] if 0 <= self.cursor_row < len(self._keys) else None

    def show_rows(self, rows: Sequence[tuple[str, Row]], *, marked: str | None = None) -> None:
        """Shows rows of (key, row). `marked` names a column whose heading gets a mark."""
        self._given = rows, marked
        self._given_width = width = self._room
        columns = [column for column in self.columns_shown if column.from_width <= width]
        headings = [f"{'▾' if c.key == marked else ''}{c.heading}" for c in columns]
        cells = [[cell(heading) for heading in headings]]
        cells += [[column.cell(row) for column in columns] for _, row in rows]
        widths = _widths(columns, cells, width=width)
        for line in cells:
            for column, text, wide in zip(columns, line, widths, strict=True):
                if column.is_number:
                    text.pad_left(max(0, wide - 1 - text.cell_len))
        self._show(columns, widths, [key for key, _ in rows], cells)

    @property
    def _room(self) -> int:
        """Width including a scrollbar, so that a scrollbar that appears changes nothing."""
        return self.outer_size.width or self.app.size.width

    def on_resize(self) -> None:
        if self._given_width not in (0, self._room):
            rows, marked = self._given
            self.show_rows(rows, marked=marked)

    def choose(self, key: str) -> None:
        if key in self._keys:
            self.move_cursor(row=self._keys.index(key))

    def _show(
        self, columns: list[Column], widths: list[int], keys: list[str], cells: list[list[Text]]
    ) -> None:
        shape = (tuple(c.key for c in columns), tuple(widths), tuple(keys), tuple(cells[0]))
        if shape == self._shape:
            self._rewrite(cells[1:])
        else:
            chosen, at, top = self.chosen, self.cursor_row, self.scroll_y
            self.clear(columns=True)
            self._shape, self._keys, self._cells = shape, keys, cells[1:]
            for column, heading, width in zip(columns, cells[0], widths, strict=True):
                self.add_column(heading, key=column.key, width=width)
            for key, row in zip(keys, cells[1:], strict=True):
                self.add_row(*row, key=key)
            if keys:
                at = keys.index(chosen) if chosen in keys else min(at, len(keys) - 1)
                self.move_cursor(row=at)
                self.scroll_to(y=top, animate=False)

    def _rewrite(self, cells: list[list[Text]]) -> None:
        for y, (old, new) in enumerate(zip(self._cells, cells, strict=True)):
            for x, (before, after) in enumerate(zip(old, new, strict=True)):
                if before != after:
                    self.update_cell_at(Coordinate(y, x), after)
        self._cells = cells


def _widths(columns: list[Column], cells: list[list[Text]], *, width: int) -> list[int]:
    """Width of each column plus a blank; the column that takes the rest gets as much of it as it
    needs."""
    widths = [
        1 + min(max(line[i].cell_len for line in cells), width if c.takes_rest else MAX_COLUMN)
        for i, c in enumerate(columns)
    ]
    for i, column in enumerate(columns):
        if column.takes_rest:
            rest = width - SCROLLBAR - sum(widths) + widths[i]
            widths[i] = max(MIN_REST, min(widths[i], rest))
    return widths
