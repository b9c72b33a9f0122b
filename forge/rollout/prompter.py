"""The real Prompter: the checkpoint's chat template, the prompts of `forge.data`, the extractor
of `forge.evalpool`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge.data.answers import extract
from forge.data.prompts import Exchange, feedback_message, fit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.data.chat import ChatTemplate
    from forge.records import Problem, Prompt, Reason, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplatePrompter:
    """Prompts by chat template, within a budget of tokens."""

    chat: ChatTemplate
    context_tokens: int
    """Prompt and completion together."""
    max_completion_tokens: int

    def prompt(self, problem: Problem, attempts: Sequence[Exchange]) -> Prompt | None:
        """Oldest attempts are dropped, one at a time, until prompt and completion fit the
        context."""
        return fit(
            problem,
            attempts,
            budget_tokens=self.context_tokens - self.max_completion_tokens,
            render=self.chat.prompt,
        )

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.chat.decode(token_ids)

    def feedback(self, verdict: Verdict) -> str:
        return feedback_message(verdict).content

    def extract(self, problem: Problem, completion_text: str) -> tuple[str, Reason]:
        found = extract(completion_text, entry_point=problem.entry_point)
        return found.code, found.reason
