"""Conversations of a harvested problem: the question and its answer, and a repair where a broken
variant was judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.data.prompts.prompt_set import Exchange
from forge.records import Message, Problem, Split, Status, Verdict
from forge.records.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge.data.harvest.harvested import Harvested
    from forge.data.prompts.prompt_set import PromptSet


def conversations(result: Harvested, id: str, prompts: PromptSet) -> Iterator[tuple[Message, ...]]:
    """The rows of a problem with a correct answer."""
    problem = Problem(
        problem_id=id, source=result.text, family=result.kind, level=result.level, split=Split.SFT
    )
    answer = Message(role="assistant", content=_fenced(result.code))
    yield (*prompts.first_messages(problem), answer)
    if result.broken:
        status, reason, detail = result.words
        verdict = Verdict(status=Status(status), reason=Reason(reason), detail=detail)
        tried = Exchange(completion_text=_fenced(result.broken), verdict=verdict)
        yield (*prompts.conversation(problem, [tried]), answer)


def _fenced(code: str) -> str:
    return f"```python\n{code.strip()}\n```"
