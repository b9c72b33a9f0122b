"""The real Prompter: the checkpoint's chat template, the prompts of `forge.data`, the extractor
of `forge.evalpool`."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forge.data.answers import extract
from forge.data.prompts import Exchange, feedback_message, fit
from forge.errors import ConfigError
from forge.rollout.ports import Prompt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.data.chat import ChatTemplate
    from forge.records import Message, Problem, Reason, Verdict

REMEMBERED = 4096
"""Conversations of the last prompts: more than are in flight at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplatePrompter:
    """Prompts by chat template, within a budget of tokens."""

    chat: ChatTemplate
    context_tokens: int
    """Prompt and completion together."""
    max_completion_tokens: int
    _asked: OrderedDict[int, Sequence[Message]] = field(default_factory=OrderedDict, repr=False)
    """By the hash of their ids."""

    def prompt(self, problem: Problem, attempts: Sequence[Exchange]) -> Prompt | None:
        """Oldest attempts are dropped, one at a time, until prompt and completion fit the
        context."""
        messages = fit(
            problem,
            attempts,
            budget_tokens=self.context_tokens - self.max_completion_tokens,
            count_tokens=lambda shown: len(self.chat.render(shown, add_generation_prompt=True)),
        )
        if messages is None:
            return None
        ids = tuple(self.chat.render(messages, add_generation_prompt=True))
        self._asked[hash(ids)] = messages
        while len(self._asked) > REMEMBERED:
            self._asked.popitem(last=False)
        return Prompt(ids=ids, text=self.chat.render_text(messages, add_generation_prompt=True))

    def messages(self, prompt_ids: Sequence[int]) -> Sequence[Message]:
        """The conversation of a recent prompt: what a server behind a URL is asked that takes no
        ids."""
        found = self._asked.get(hash(tuple(prompt_ids)))
        if found is None:
            raise ConfigError("serve.url: this prompt is no conversation of this run")
        return found

    def encode(self, text: str) -> list[int]:
        """Token ids of a text in which nothing is a special token."""
        return self.chat.encode_plain(text)

    @property
    def stop_token_ids(self) -> Sequence[int]:
        return self.chat.stop_token_ids

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.chat.decode(token_ids)

    def feedback(self, verdict: Verdict) -> str:
        return feedback_message(verdict).content

    def extract(self, problem: Problem, completion_text: str) -> tuple[str, Reason]:
        found = extract(completion_text, entry_point=problem.entry_point)
        return found.code, found.reason
