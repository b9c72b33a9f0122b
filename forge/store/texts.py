"""Texts and token arrays of turns: encoded on one thread, written on the next.

`TurnEncoder` hashes and compresses, which takes longer than all rows of a turn, on the encoder's
thread (`store.encoder_thread`); `TextTable` finds or inserts each text, on the writer's. A text
that both saw lately is neither compressed nor looked up again: a group's prompt comes G times.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge.store.codec import Body, Encoder, Part, find_part

if TYPE_CHECKING:
    import sqlite3

    from forge.records import Sample, Turn

CACHE_SIZE = 4096
"""Hashes that are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedText:
    """A text, ready to be stored."""

    value: str
    digest: bytes
    num_bytes: int
    body: Body | None = None
    """None for one that was seen lately, so that it is stored, or that is a part of another."""
    part: Part | None = None
    """Where it is in the text that it was encoded beside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedTurn:
    """The heavy half of a turn."""

    prompt: EncodedText | None
    """None for an empty text, as all below."""
    completion: EncodedText | None
    code: EncodedText | None
    feedback: EncodedText | None
    detail: EncodedText | None
    tokens: tuple[bytes, bytes, bytes]
    """Prompt ids, completion ids, log probabilities."""


class TurnEncoder:
    """For one thread: neither the compressor nor what it remembers may be shared."""

    def __init__(self, *, texts: str) -> None:
        self._encoder = Encoder(texts=texts)
        self._is_plain = texts == "plain"
        self._seen: set[bytes] = set()

    def turn(self, turn: Turn) -> EncodedTurn:
        completion, feedback = turn.completion, turn.feedback
        return EncodedTurn(
            prompt=self.text(turn.prompt_text),
            completion=self.text(turn.completion_text),
            code=self.text(turn.code, within=turn.completion_text),
            feedback=self.text(feedback),
            detail=self.text(turn.verdict.detail, within=feedback),
            tokens=self.tokens(turn.prompt_ids, completion.token_ids, completion.logprobs),
        )

    def text(self, value: str, *, within: str = "") -> EncodedText | None:
        """None for an empty text.

        Args:
            within: a text that is stored before, which may have it as a part.
        """
        if not value:
            return None
        raw = value.encode("utf-8", errors="replace")
        digest = hashlib.sha256(raw).digest()
        if digest in self._seen:
            return EncodedText(value=value, digest=digest, num_bytes=len(raw))
        if len(self._seen) >= CACHE_SIZE:
            self._seen.clear()
        self._seen.add(digest)
        part = None if self._is_plain else find_part(raw, within)
        body = self.body(value) if part is None else None
        return EncodedText(value=value, digest=digest, num_bytes=len(raw), body=body, part=part)

    def body(self, value: str) -> Body:
        return self._encoder.text(value)

    def sample_tokens(self, sample: Sample) -> tuple[bytes, bytes, bytes]:
        return self.tokens(sample.prompt_ids, sample.completion_ids, sample.logprobs)

    def tokens(
        self, prompt_ids: tuple[int, ...], ids: tuple[int, ...], logprobs: tuple[float, ...]
    ) -> tuple[bytes, bytes, bytes]:
        encoder = self._encoder
        return encoder.ids(prompt_ids), encoder.ids(ids), encoder.logprobs(logprobs)


class TextTable:
    """`texts` of run.db, on the writer's thread."""

    def __init__(self, run: sqlite3.Connection, *, encoder: TurnEncoder) -> None:
        self._run = run
        self._encoder = encoder
        self._text_ids: dict[bytes, int] = {}

    def put(self, text: EncodedText | None, *, within_id: int | None = None) -> int | None:
        """The text_id of a text, which is inserted if it is new; None for an empty one.

        Args:
            within_id: of the text that it was encoded beside.
        """
        if text is None:
            return None
        text_id = self._text_ids.get(text.digest)
        if text_id is None:
            text_id = self._find(text.digest)
        if text_id is None:
            text_id = self._insert(text, within_id)
        if len(self._text_ids) >= CACHE_SIZE:
            self._text_ids.clear()
        self._text_ids[text.digest] = text_id
        return text_id

    def _find(self, digest: bytes) -> int | None:
        query = "SELECT text_id FROM texts WHERE sha256 = ?"
        row = self._run.execute(query, (digest,)).fetchone()
        return None if row is None else row[0]

    def _insert(self, text: EncodedText, within_id: int | None) -> int:
        body = text.body
        if text.part is not None and within_id is not None:
            body = text.part.body(within_id)
        row = (
            text.digest,
            text.num_bytes,
            self._encoder.body(text.value) if body is None else body,
        )
        query = "INSERT INTO texts (sha256, num_bytes, body) VALUES (?, ?, ?)"
        text_id = self._run.execute(query, row).lastrowid
        assert text_id is not None
        return text_id
