"""Prompts: a problem's first messages, feedback on attempts, and what fits the context.

Called by the rollout loop, evaluations, chat and the makers of SFT rows, so that trained and played
prompts are the same. Works for any file in KernelBench's layout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge.records import Message, Problem, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forge.records import Prompt, Timing

SYSTEM = "Write {entry_point}New with Triton."
"""Short, since it is part of every prompt."""
MAX_FEEDBACK_CHARS = 600
"""Maximum length of the judge's detail: three turns share the context with the problem."""
_PREFIX = "judge> "
"""Marks each line of the judge, so that a candidate's output cannot look like our message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A judged attempt: the model's completion and the verdict."""

    completion_text: str
    verdict: Verdict


def first_messages(problem: Problem) -> tuple[Message, ...]:
    """The system and user message at the start of every conversation about a problem."""
    return (
        Message(role="system", content=SYSTEM.format(entry_point=problem.entry_point)),
        Message(role="user", content=problem.source.strip()),
    )


def feedback_message(verdict: Verdict, *, max_chars: int = MAX_FEEDBACK_CHARS) -> Message:
    """The verdict as a message: status, reason, and the detail, shortened in the middle."""
    head = f"{verdict.status}: {verdict.reason}"
    detail = _shorten(verdict.detail.strip(), max_chars=max_chars)
    lines = [head, *detail.splitlines()]
    if verdict.timing is not None:
        lines += _describe_shapes(verdict)
    elif verdict.estimate is not None:
        lines += verdict.estimate.lines()
    return Message(role="user", content="\n".join(_PREFIX + line for line in lines))


def conversation(problem: Problem, attempts: Sequence[Exchange]) -> tuple[Message, ...]:
    """All messages before the next attempt; the chat template drops earlier thinking."""
    messages = list(first_messages(problem))
    for attempt in attempts:
        messages.append(Message(role="assistant", content=attempt.completion_text))
        messages.append(feedback_message(attempt.verdict))
    return tuple(messages)


def fit(
    problem: Problem,
    attempts: Sequence[Exchange],
    *,
    budget_tokens: int,
    render: Callable[[Sequence[Message]], Prompt],
) -> Prompt | None:
    """The conversation within `budget_tokens`: the oldest attempts are dropped first, the newest
    never.

    Returns:
        The prompt; None if not even the newest attempt fits (the rollout ends `context_full`).
    """
    for first in range(max(1, len(attempts))):
        prompt = render(conversation(problem, attempts[first:]))
        if len(prompt.ids) <= budget_tokens:
            return prompt
    return None


def _shorten(text: str, *, max_chars: int) -> str:
    """Keep both ends: a traceback has its location and its message there."""
    if len(text) <= max_chars:
        return text
    tail = max_chars * 2 // 3
    return f"{text[: max_chars - tail].rstrip()}\n...\n{text[-tail:].lstrip()}"


def _describe_shapes(verdict: Verdict) -> list[str]:
    """The speed of a timed verdict; of several shapes the mean and the slowest."""
    assert verdict.timing is not None
    speed = _describe_speed(verdict.timing)
    timed = [shape for shape in verdict.shapes if shape.timing is not None]
    if len(timed) < 2:
        return [speed]
    slowest = min(timed, key=lambda shape: shape.timing.speedup if shape.timing else math.inf)
    assert slowest.timing is not None
    return [
        f"geometric mean of {len(timed)} shapes: {speed}",
        f"slowest at {slowest.name}: {_describe_speed(slowest.timing)}",
    ]


def _describe_speed(timing: Timing) -> str:
    line = (
        f"{timing.candidate_us:.1f} us, baseline {timing.baseline_us:.1f} us: "
        f"{timing.speedup:.2f}x (at least {timing.speedup_low:.2f}x)"
    )
    if timing.achieved_gbps is not None:
        line += f", {timing.achieved_gbps:.0f} GB/s"
    if timing.roofline_share is not None:
        line += f", {timing.roofline_share:.0%} of roofline"
    return line
