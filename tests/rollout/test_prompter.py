"""The prompter renders each conversation once, and gives the tokens together with the messages."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from forge.data.prompts.prompt_set import Exchange
from forge.errors import ConfigError
from forge.records import Message, Prompt, Status, Verdict
from forge.rollout.prompter import TemplatePrompter
from tests.prompting import PROMPTS
from tests.rollout.fakes import problem

WRONG = Verdict(status=Status.WRONG, reason="mismatch", detail="")
ATTEMPTS = [Exchange(completion_text=f"attempt {i}", verdict=WRONG) for i in range(3)]


@dataclass
class Template:
    rendered: list[tuple[Message, ...]] = field(default_factory=list)

    def prompt(self, messages: Sequence[Message]) -> Prompt:
        self.rendered.append(tuple(messages))
        return Prompt(ids=(1,) * len(messages), messages=tuple(messages), text="text")


def prompter_of(template: Any, *, context_tokens: int) -> TemplatePrompter:
    return TemplatePrompter(
        prompts=PROMPTS, chat=template, context_tokens=context_tokens, max_completion_tokens=10
    )


def test_a_conversation_that_fits_is_rendered_once() -> None:
    template = Template()
    prompt = prompter_of(template, context_tokens=18).prompt(problem(), ATTEMPTS)
    assert template.rendered == [prompt.messages] == [PROMPTS.conversation(problem(), ATTEMPTS)]
    assert (len(prompt.ids), prompt.text) == (8, "text")


def test_the_oldest_attempts_are_dropped_until_prompt_and_completion_fit() -> None:
    template = Template()
    prompt = prompter_of(template, context_tokens=14).prompt(problem(), ATTEMPTS)
    assert prompt.messages == PROMPTS.conversation(problem(), ATTEMPTS[2:])
    assert len(template.rendered) == 3
    assert prompter_of(template, context_tokens=13).prompt(problem(), ATTEMPTS) is None


@pytest.mark.parametrize(
    ("context_tokens", "max_turns", "words"),
    [
        (11, 1, "found 11; no prompt of turn 1 .*: at least 12$"),
        (13, 3, "found 13; no prompt of turn 2 .*: at least 14, or rollout.max_turns = 1"),
    ],
)
def test_a_context_without_room_for_a_turn_is_refused(
    context_tokens: int, max_turns: int, words: str
) -> None:
    longer = replace(problem(), source=problem().source * 2)
    prompter = prompter_of(Template(), context_tokens=context_tokens)
    with pytest.raises(ConfigError, match=words):
        prompter.require_room([longer, problem()], max_turns=max_turns)
    assert prompter_of(Template(), context_tokens=24).require_room([longer], max_turns=3) == ""
    said = prompter_of(Template(), context_tokens=23).require_room([longer], max_turns=3)
    assert "in 24 one would" in said
    assert prompter_of(Template(), context_tokens=12).require_room([longer], max_turns=1) == ""
