"""One turn to read: its head, feedback and answer with highlighted code, and the difference from
the turn before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from forge.tui.widgets.texts import MAX_SHOWN, shown_code, shown_diff, shown_text
from forge.tui.widgets.verdicts import signed, speedup, verdict_word
from forge.views.rollouts import AnswerPart, diff_codes, split_answer
from forge.views.text.numbers import number
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forge.views.rollouts import Conversation, PlayedTurn

MAX_THINKING = 12
"""Lines of folded thinking."""
MAX_REASON = 40
"""Maximum characters of the reason in the head; the verdict pane shows all."""
STYLES = {AnswerPart.TEXT: "", AnswerPart.THINKING: "italic dim"}


def head_of(found: Conversation, turn: PlayedTurn) -> Text:
    """Position of the turn, then its verdict and reward."""
    row, group = turn.row, found.group
    num_siblings = max(group["num_rollouts"] or 0, len(found.siblings))
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(turn.turn_id, style="bold")
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
    text.append(f" · advantage {signed(turn.advantage)}")
    return text


def _when(group: Any) -> str:
    if group["purpose"] is None:
        return "not in a group"
    greedy = ", greedy" if group["is_greedy"] else ""
    flat = ", flat" if group["is_flat"] else ""
    stage = printable(group["stage_name"])
    return f"{group['purpose']}{greedy}{flat}, {stage} step {group['step']}"


def answer_of(found: Conversation, turn: PlayedTurn, *, is_folded: bool = False) -> Group:
    """The prompt or feedback that the model received, and its answer.

    Args:
        is_folded: only the first lines of long thinking.
    """
    number_of = turn.row["turn"]
    before = next((t for t in found.turns if t.row["turn"] == number_of - 1), None)
    parts: list[RenderableType] = []
    if before is not None:
        parts += [_heading("feedback"), shown_text(before.row["feedback"] or "nothing")]
    else:
        tokens = turn.row["num_prompt_tokens"]
        parts.append(_heading(f"the problem ({tokens} tokens; t shows them)"))
    parts.append(_heading("answer"))
    completion = turn.row["completion"] or ""
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
    if turn.row["is_truncated"]:
        parts.append(_heading("… cut off at its length"))
    return Group(*parts)


def prompt_of(turn: PlayedTurn) -> Group:
    """The exact text that the model received, including template tokens."""
    tokens = turn.row["num_prompt_tokens"]
    return Group(_heading(f"prompt: {tokens} tokens"), shown_text(turn.row["prompt"]))


def turn_diff(found: Conversation, turn: PlayedTurn) -> Group:
    """Differences of the code from that of the turn before."""
    number_of = turn.row["turn"]
    before = next((t for t in found.turns if t.row["turn"] == number_of - 1), None)
    if before is None:
        return Group(_heading("the first turn has none before it"))
    heading = _heading(f"from {before.turn_id} (-) to {turn.turn_id} (+)")
    if not before.code and not turn.code:
        return Group(heading, Text("neither has code"))
    lines = diff_codes(before.code, turn.code)
    return Group(heading, shown_diff(lines) if lines else Text("the same code"))


def _heading(words: str) -> Text:
    return Text(f"── {printable(words)}", style="bold cyan")
