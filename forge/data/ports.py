"""What this folder needs of others, as protocols; `runner` knows who provides them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from forge.records import Problem, Verdict


class Judge(Protocol):
    """Judges a candidate's source."""

    async def __call__(self, problem: Problem, code: str) -> Verdict:
        """The verdict, with its own deadline; an infra fault is a verdict too."""
        ...
