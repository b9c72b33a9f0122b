"""The prompter of a run: prompts and extractor of `forge.data`, and a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from forge.data.answer_form import ToolForm
from forge.data.answers import extract
from forge.data.chat import ChatTemplate
from forge.data.prompts.prompt_set import TOOL_ROLE, Exchange, PromptSet, fit
from forge.errors import ConfigError
from forge.records import Completion, Message, Problem, Prompt, Reason, Status, Verdict
from forge.tools.toolbox import TOOLS, Call, fenced_words, find_call

SHORTEST = Exchange(
    completion_text="""```python
@triton.jit
def kernel(x, y): ...
class ModelNew(nn.Module):
    def forward(self, x): ...
```""",
    verdict=Verdict(status=Status.REJECTED, reason=Reason.NO_CODE_BLOCK, detail=""),
)
"""An answer that is shorter than any with a kernel, and the least that a verdict says."""


@dataclass(frozen=True, kw_only=True)
class TemplatePrompter:
    prompts: PromptSet
    chat: ChatTemplate
    context_tokens: int
    """Largest sum of prompt and completion."""
    max_completion_tokens: int
    tools: tuple[str, ...] = ()
    max_calls: int = 0
    has_template: bool = True
    """Tools are called as the model's chat template writes it, where that is known."""

    def prompt(self, problem: Problem, attempts: Sequence[Exchange]) -> Prompt | None:
        """The next turn's prompt, with as many of the newest attempts as fit beside a completion;
        None if not even one does."""
        room = self.context_tokens - self.max_completion_tokens
        prompt = fit(self.prompts, problem, attempts, budget_tokens=room, render=self._render)
        return None if prompt is None else replace(prompt, prompt_hash=self.prompts.hash)

    def require_room(self, problems: Sequence[Problem], *, max_turns: int) -> str:
        """A remark if a first answer of full length leaves no room for a second turn; else empty.

        Raises ConfigError if no problem has room for its first prompt and a completion, or for a
        second turn after the shortest of answers.
        """
        ordered = sorted(problems, key=lambda problem: len(problem.source))
        for turn in range(min(max_turns, 2)):
            attempts = [SHORTEST] * turn
            if not any(self.prompt(problem, attempts) for problem in ordered):
                least = self._least_tokens(ordered[0], attempts)
                fewer = f", or rollout.max_turns = 1 instead of {max_turns}" if turn else ""
                raise ConfigError(
                    f"serve.context_tokens: found {self.context_tokens}; no prompt of turn "
                    f"{turn + 1} fits beside rollout.max_completion_tokens = "
                    f"{self.max_completion_tokens}: at least {least}{fewer}"
                )
        shortest = self._least_tokens(ordered[0], [SHORTEST] * (max_turns > 1))
        least = shortest + self.max_completion_tokens
        if max_turns == 1 or least <= self.context_tokens:
            return ""
        return (
            f"serve.context_tokens = {self.context_tokens}: no second turn fits after an answer of "
            f"rollout.max_completion_tokens = {self.max_completion_tokens}; in {least} one would"
        )

    def _least_tokens(self, problem: Problem, attempts: Sequence[Exchange]) -> int:
        conversation = self.prompts.conversation(problem, attempts)
        return len(self._render(conversation).ids) + self.max_completion_tokens

    @cached_property
    def _form(self) -> ToolForm | None:
        """How the model's own template calls tools; None for fenced blocks."""
        return self.chat.tool_form if self.tools and self.has_template else None

    @property
    def _schemas(self) -> list[Mapping[str, Any]]:
        return [] if self._form is None else [TOOLS[name].schema() for name in self.tools]

    def _render(self, messages: Sequence[Message]) -> Prompt:
        """A conversation, whose template or first message tells about the tools."""
        if not self.tools:
            return self.chat.prompt(messages)
        if self._form is not None:
            return self.chat.prompt(messages, tools=self._schemas)
        words = fenced_words(self.tools, max_calls=self.max_calls)
        first, *others = messages
        told = replace(first, content=f"{first.content}\n\n{words}")
        others = [replace(one, role="user") if one.role == TOOL_ROLE else one for one in others]
        return self.chat.prompt([told, *others])

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.chat.decode(token_ids)

    def feedback(self, verdict: Verdict) -> str:
        return self.prompts.feedback_message(verdict).content

    def extract(self, problem: Problem, completion_text: str) -> tuple[str, Reason]:
        found = extract(
            completion_text, entry_point=problem.entry_point, thinking=self.prompts.thinking
        )
        return found.code, found.reason

    def find_call(self, message: str) -> Call | None:
        """The call of a tool that a message asks for; None for an answer."""
        thinking = self.prompts.thinking
        return find_call(message, self.tools, thinking=thinking, form=self._form)

    def reply(
        self, prompt: Prompt, completion: Completion, *, message: str, result: str
    ) -> Prompt | None:
        """The prompt that a turn goes on from; None if it leaves no room for a completion."""
        reply = Message(role="user" if self._form is None else TOOL_ROLE, content=result)
        reply_ids = self.chat.following(reply, completion.token_ids, tools=self._schemas)
        ids = (*prompt.ids, *completion.token_ids, *reply_ids)
        if len(ids) > self.context_tokens - self.max_completion_tokens:
            return None
        messages = (*prompt.messages, Message(role="assistant", content=message), reply)
        return Prompt(ids=ids, messages=messages, prompt_hash=prompt.prompt_hash)
