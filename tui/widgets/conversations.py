"""A rollout to read: head, feedback and answer of a turn with highlighted code, the difference from
the turn before, and the rollouts of its group side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text
from textual.containers import HorizontalScroll, Vertical, VerticalScroll
from textual.widgets import Static

from forge.tui.widgets.row_table import Column, RowTable
from forge.tui.widgets.texts import (
    MAX_SHOWN,
    path_of_statuses,
    shown_code,
    shown_diff,
    shown_text,
    signed,
    speedup,
    verdict_word,
)
from forge.views.rollouts import AnswerPart, diff_codes, split_answer
from forge.views.text.numbers import factor, number
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType
    from textual.app import ComposeResult

    from forge.views.rollouts import Conversation, Sibling

MAX_THINKING = 12
"""Lines of folded thinking."""
MAX_REASON = 40
"""Maximum characters of the reason in the head; the verdict pane shows all."""
STYLES = {AnswerPart.TEXT: "", AnswerPart.THINKING: "italic dim"}


def head_of(found: Conversation, turn: dict[str, Any]) -> Text:
    """Position of the turn, then its verdict and reward."""
    row, group = turn, found.group
    num_siblings = max(group["num_rollouts"] or 0, len(found.siblings))
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(turn["turn_id"], style="bold")
    text.append(f" · turn {row['turn'] + 1} of {len(found.turns)}")
    text.append(f" · sibling {found.rollout + 1} of {num_siblings}")
    text.append(f" · {_when(group)}\n")
    text.append(printable(found.problem_id), style="bold")
    text.append("" if group["level"] is None else f" level {group['level']}")
    text.append("\n").append(verdict_word(row["status"]))
    text.append(f" ({printable((row['reason'] or '–')[:MAX_REASON])})")
    if row["speedup"] is not None:
        text.append(f" · {speedup(row)}")
    text.append(f" · reward {number(row['reward'])} · return {number(row['discounted_return'])}")
    text.append(f" · advantage {signed(turn['advantage'])}")
    return text


def _when(group: Any) -> str:
    if group["purpose"] is None:
        return "not in a group"
    greedy = ", greedy" if group["is_greedy"] else ""
    flat = ", flat" if group["is_flat"] else ""
    stage = printable(group["stage_name"])
    return f"{group['purpose']}{greedy}{flat}, {stage} step {group['step']}"


def answer_of(found: Conversation, turn: dict[str, Any], *, is_folded: bool = False) -> Group:
    """The prompt or feedback that the model received, and its answer.

    Args:
        is_folded: only the first lines of long thinking.
    """
    number_of = turn["turn"]
    before = next((t for t in found.turns if t["turn"] == number_of - 1), None)
    parts: list[RenderableType] = []
    if before is not None:
        parts += [_heading("feedback"), shown_text(before["feedback"] or "nothing")]
    else:
        tokens = turn["num_prompt_tokens"]
        parts.append(_heading(f"the problem ({tokens} tokens; t shows them)"))
    parts.append(_heading("answer"))
    completion = turn["completion"] or ""
    for kind, text in split_answer(completion[:MAX_SHOWN], thinking=found.thinking):
        if kind is AnswerPart.CODE:
            parts.append(shown_code(text))
        elif kind is AnswerPart.THINKING and is_folded and text.count("\n") > MAX_THINKING:
            lines = text.split("\n")
            parts.append(shown_text("\n".join(lines[:MAX_THINKING]), style=STYLES[kind]))
            parts.append(_heading(f"{len(lines) - MAX_THINKING} more lines of thinking (z)"))
        else:
            parts.append(shown_text(text.removesuffix("\n"), style=STYLES[kind]))
    if len(completion) > MAX_SHOWN:
        parts.append(_heading(f"… {len(completion) - MAX_SHOWN} more characters"))
    if turn["is_truncated"]:
        parts.append(_heading("… cut off at its length"))
    return Group(*parts)


def prompt_of(turn: dict[str, Any]) -> Group:
    """The exact text that the model received, including template tokens."""
    tokens = turn["num_prompt_tokens"]
    return Group(_heading(f"prompt: {tokens} tokens"), shown_text(turn["prompt"]))


def turn_diff(found: Conversation, turn: dict[str, Any]) -> Group:
    """Differences of the code from that of the turn before."""
    number_of = turn["turn"]
    before = next((t for t in found.turns if t["turn"] == number_of - 1), None)
    if before is None:
        return Group(_heading("the first turn has none before it"))
    heading = _heading(f"from {before['turn_id']} (-) to {turn['turn_id']} (+)")
    if not before["code"] and not turn["code"]:
        return Group(heading, Text("neither has code"))
    lines = diff_codes((before["code"] or ""), (turn["code"] or ""))
    return Group(heading, shown_diff(lines) if lines else Text("the same code"))


def _heading(words: str) -> Text:
    return Text(f"── {printable(words)}", style="bold cyan")


MAX_COLUMNS = 8
"""Number of codes shown at once, around the current sibling."""


def _by_turn(key: str, show: Callable[[Any], str]) -> Callable[[Sibling], str]:
    return lambda sibling: " ".join(show(turn[key]) for turn in sibling.turns)


COLUMNS = (
    Column("rollout", "rollout", lambda s: f"r{s.rollout}"),
    Column("return", "return", lambda s: number(s.turns[0]["discounted_return"]), is_number=True),
    Column("reward", "reward", _by_turn("reward", number), from_width=60),
    Column("advantage", "advantage", _by_turn("advantage", signed), from_width=50),
    Column(
        "tokens", "tokens", _by_turn("num_completion_tokens", str), from_width=100, is_number=True
    ),
    Column(
        "turns",
        "turns",
        lambda s: path_of_statuses([t["status"] or "?" for t in s.turns]),
        takes_rest=True,
    ),
)


class SiblingsPane(Vertical):
    """Filled by `show_group`; choosing a row posts DataTable.RowSelected."""

    DEFAULT_CSS = """
    SiblingsPane RowTable { height: auto; max-height: 9; }
    SiblingsPane HorizontalScroll { height: 1fr; scrollbar-size-horizontal: 0; }
    SiblingsPane .code { width: 48; min-width: 38; height: 1fr; border-left: solid $primary; }
    SiblingsPane .-own { border-left: thick $accent; }
    """

    def compose(self) -> ComposeResult:
        yield RowTable(COLUMNS, id="siblings-table")
        yield HorizontalScroll(id="codes", can_focus=False)

    async def show_group(self, found: Conversation, turn: int) -> None:
        """Shows the codes of `turn`, or of the last turn before it."""
        table = self.query_one(RowTable)
        table.show_rows([(f"r{each.rollout}", each) for each in found.siblings])
        table.choose(f"r{found.rollout}")
        codes = self.query_one("#codes", HorizontalScroll)
        await codes.remove_children()
        shown = _around(found)
        await codes.mount_all([_code(each, turn, found.rollout) for each in shown])
        own = codes.query(".-own").first()
        self.call_after_refresh(codes.scroll_to_widget, own, animate=False)


def _around(found: Conversation) -> list[Sibling]:
    at = next(i for i, each in enumerate(found.siblings) if each.rollout == found.rollout)
    first = max(0, min(at - MAX_COLUMNS // 2, len(found.siblings) - MAX_COLUMNS))
    return list(found.siblings[first : first + MAX_COLUMNS])


def _code(sibling: Sibling, number_of: int, own: int) -> VerticalScroll:
    turn = sibling.turn(number_of)
    heading = Text(f"r{sibling.rollout}.t{turn['turn']} ", style="bold")
    heading.append(verdict_word(turn["status"]))
    heading.append(f" reward {number(turn['reward'])}")
    if turn["speedup"] is not None:
        heading.append(f" {factor(turn['speedup'])}")
    classes = f"code{' -own' if sibling.rollout == own else ''}"
    code = turn["code"]
    return VerticalScroll(
        Static(heading, markup=False),
        Static(shown_code(code) if code else Text("no code"), markup=False),
        classes=classes,
    )
