"""What a prompter remembers of its prompts, for servers that take messages only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from forge.errors import ConfigError
from forge.records import Message
from forge.rollout import prompter as module
from forge.rollout.prompter import TemplatePrompter


def test_a_prompts_conversation_is_found_by_its_ids_until_many_others_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chat: Any = SimpleNamespace(
        render=lambda messages, **_: [ord(letter) for letter in messages[0].content],
        render_text=lambda messages, **_: messages[0].content,
        encode_plain=lambda text: [len(text)],
        stop_token_ids=(7,),
    )
    asked = iter(["first", "second", "third"])
    monkeypatch.setattr(module, "fit", lambda *_, **__: [Message(role="user", content=next(asked))])
    monkeypatch.setattr(module, "REMEMBERED", 2)
    prompter = TemplatePrompter(chat=chat, context_tokens=9, max_completion_tokens=1)
    problem: Any = None
    prompts = [prompter.prompt(problem, []) for _ in range(3)]
    contents = []
    for prompt in prompts[1:]:
        assert prompt is not None
        contents.append(prompter.messages(list(prompt.ids))[0].content)
    assert contents == ["second", "third"]
    assert prompts[0] is not None
    with pytest.raises(ConfigError, match="no conversation of this run"):
        prompter.messages(prompts[0].ids)
    assert (prompter.encode("four"), prompter.stop_token_ids) == ([4], (7,))
