# pyright: strict
"""Answers of servers, and the messages of those that are errors. Used by every client of forge."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from forge.process.strict_json import parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

LOOP_BYTES = 64 * 1024
"""Largest content that is parsed in the event loop: 64 kB of JSON take about 1 ms."""
MAX_ANSWER_BYTES = 256 << 20
"""Seven times the JSON of 16 samples of 32,000 tokens with their log probabilities."""
MAX_MESSAGE = 500
"""Characters of a server's error message that are shown."""
SHORTEST_PAUSE_S = 0.1
"""Shortest pause before a full server is asked again, whatever it requests."""


class HungUp(Exception):
    """The connection failed or broke; `send` adds the server and the request."""


class AnswerTooLarge(Exception):
    """An answer is larger than MAX_ANSWER_BYTES."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A server's answer, of any status."""

    status: int
    content: bytes
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def json(self) -> Any:
        """The content as JSON. Raises BadJson, a ValueError."""
        return parse_json(self.content)


async def parse_content(content: bytes, parse: Callable[[bytes], T] = parse_json) -> T:
    """Parse in the event loop, or in a thread if the content would block the loop."""
    import anyio.to_thread

    if len(content) <= LOOP_BYTES:
        return parse(content)
    return await anyio.to_thread.run_sync(parse, content)


def error_message(content: bytes) -> str:
    """The message of an answer that is an error, in one line: OpenAI's format, vLLM's older one,
    forge's `{"error": text}`, or else the first 200 characters."""
    try:
        found: Any = parse_json(content)
        inner: Any = found.get("error", found)
        message = inner if isinstance(inner, str) else inner.get("message")
        if isinstance(message, str) and message:
            return " ".join(message.split())[:MAX_MESSAGE]
    except (ValueError, AttributeError):
        pass
    return " ".join(content[:200].decode("utf-8", "replace").split()) or "no message"


def retry_pause_s(answer: Answer, *, default_s: float, longest_s: float) -> float:
    """Seconds until a full server wants the next attempt (Retry-After), within bounds."""
    try:
        asked_s = float(answer.headers.get("Retry-After", default_s))
    except ValueError:  # a date
        asked_s = default_s
    return min(max(SHORTEST_PAUSE_S, asked_s), longest_s)
