"""The failure of a reference as its child reports it to the judge, in a FAILED frame."""

from __future__ import annotations

from forge.evalpool.judge.channel.words import needs_card
from forge.evalpool.judge.numbers.called import Unjudgeable

MAX_CHARACTERS = 1000


def describe(error: BaseException) -> dict[str, str]:
    """Type and message of an error."""
    kind, message = type(error).__name__, str(error)
    if needs_card(message):
        kind = Unjudgeable.__name__
        message = (
            "its code asks for a GPU, and this judge computes on the CPU: leave devices out of the"
            " problem's file, or judge it on a GPU"
        )
    return {"type": kind, "message": message[:MAX_CHARACTERS]}
