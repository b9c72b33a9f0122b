"""What this folder needs of others, as protocols; `runner` knows who provides them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from forge.records import Message, Problem, Verdict

CountTokens = Callable[[Sequence[Message]], int]
"""Tokens of a conversation rendered as a prompt, generation prompt included."""


class Judge(Protocol):
    """Judges a candidate's source."""

    async def __call__(self, problem: Problem, code: str) -> Verdict:
        """The verdict, with its own deadline; an infra fault is a verdict too."""
        ...
