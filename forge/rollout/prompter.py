"""The prompter of a run: prompts and extractor of `forge.data`, and a chat template."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forge.data.answers import extract
from forge.data.prompts.prompt_set import Exchange, fit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.data.chat import ChatTemplate
    from forge.data.prompts.prompt_set import PromptSet
    from forge.records import Problem, Prompt, Reason, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplatePrompter:
    """Renders prompts with a chat template, within a budget of tokens."""

    prompts: PromptSet
    chat: ChatTemplate
    context_tokens: int
    """Largest sum of prompt and completion."""
    max_completion_tokens: int

    def prompt(self, problem: Problem, attempts: Sequence[Exchange]) -> Prompt | None:
        """The next turn's prompt, with as many of the newest attempts as fit beside a completion;
        None if not even one does."""
        prompt = fit(
            self.prompts,
            problem,
            attempts,
            budget_tokens=self.context_tokens - self.max_completion_tokens,
            render=self.chat.prompt,
        )
        return None if prompt is None else replace(prompt, prompt_hash=self.prompts.hash)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of a completion."""
        return self.chat.decode(token_ids)

    def feedback(self, verdict: Verdict) -> str:
        """The message to the model about a verdict."""
        return self.prompts.feedback_message(verdict).content

    def extract(self, problem: Problem, completion_text: str) -> tuple[str, Reason]:
        """Source, or an empty text, and a reason."""
        found = extract(
            completion_text, entry_point=problem.entry_point, thinking=self.prompts.thinking
        )
        return found.code, found.reason
