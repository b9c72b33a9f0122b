"""Judged attempts, and the part of a conversation about them that fits the context.

Called by the rollout loop and by the makers of SFT rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forge.data.prompts.prompt_set import PromptSet
    from forge.records import Message, Problem, Prompt, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A judged attempt: the model's completion and the verdict."""

    completion_text: str
    verdict: Verdict


def fit(
    prompts: PromptSet,
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
        prompt = render(prompts.conversation(problem, attempts[first:]))
        if len(prompt.ids) <= budget_tokens:
            return prompt
    return None
