"""Texts and token arrays of turns: encoded on one thread, written on the next.

`TurnEncoder` hashes and compresses on the encoder's thread (`writer`), which takes longer
than writing all rows of a turn; `TextTable` finds or inserts each text on the writer's. Texts seen
recently are neither compressed nor looked up again: a group's prompt occurs G times.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from forge.store.codec import (
    Body,
    Encoder,
    TextPart,
    find_part,
    ids_to_bytes,
    logprobs_to_bytes,
)

if TYPE_CHECKING:
    import sqlite3

    from forge.records import Sample, Turn

CACHE_SIZE = 4096
"""Maximum number of remembered hashes, on each thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedText:
    """A text, ready to be stored."""

    value: str
    digest: bytes
    num_bytes: int
    body: Body | None = None
    """None if the text was seen recently, so is stored already, or is part of another."""
    part: TextPart | None = None
    """Its range in the text it was encoded beside."""
    frame: int | None = None
    """Index of its body among the frames compressed together."""

    def with_frame(self, frames: list[bytes]) -> EncodedText:
        """The text with its body taken from `frames`."""
        return self if self.frame is None else replace(self, body=frames[self.frame], frame=None)


@dataclass(frozen=True, slots=True)
class EncodedProgram:
    """A captured program, which its judge has compressed."""

    digest: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class EncodedTurn:
    """Texts and tokens of a turn."""

    tokens: tuple[bytes, bytes, bytes]
    """Prompt ids, completion ids, log probabilities."""
    prompt: EncodedText | None
    """None for an empty text, as all below."""
    completion: EncodedText | None
    code: EncodedText | None
    feedback: EncodedText | None
    detail: EncodedText | None
    program: EncodedProgram | None


class TurnEncoder:
    """Encoder for one thread: neither the compressor nor the remembered hashes may be shared."""

    def __init__(self, *, texts: str) -> None:
        self._encoder = Encoder(texts=texts)
        self._is_plain = texts == "plain"
        self._seen: set[bytes] = set()

    def turns(self, turns: Sequence[Turn]) -> list[EncodedTurn]:
        """Encodes all turns with one call of the compressor."""
        raws: list[bytes] = []
        drafts = [self._draft(turn, raws) for turn in turns]
        frames = self._encoder.compress(raws)
        return [
            _finish(texts, first, frames, program=_program(turn.verdict.program))
            for turn, (texts, first) in zip(turns, drafts, strict=True)
        ]

    def text(self, value: str) -> EncodedText | None:
        """Encodes one text; None for an empty one."""
        raws: list[bytes] = []
        draft = self._text(value, raws)
        return draft and draft.with_frame(self._encoder.compress(raws))

    def tokens(self, sample: Sample) -> tuple[bytes, bytes, bytes]:
        """Encodes prompt ids, completion ids and log-probabilities."""
        raws = _token_bytes(sample.prompt_ids, sample.completion_ids, sample.logprobs)
        first, second, third = self._encoder.compress(raws)
        return first, second, third

    def body(self, value: str) -> Body:
        """The body of a text, whether or not it was seen recently."""
        return self._encoder.text(value)

    def _draft(self, turn: Turn, raws: list[bytes]) -> tuple[tuple[EncodedText | None, ...], int]:
        """Texts without their frames, and the index of the first token array in `raws`."""
        completion = turn.completion
        texts = (
            self._text(turn.prompt_text, raws),
            self._text(turn.completion_text, raws),
            self._text(turn.code, raws, within=turn.completion_text),
            self._text(turn.feedback, raws),
            self._text(turn.verdict.detail, raws, within=turn.feedback),
        )
        first = len(raws)
        raws += _token_bytes(turn.prompt_ids, completion.token_ids, completion.logprobs)
        return texts, first

    def _text(self, value: str, raws: list[bytes], *, within: str = "") -> EncodedText | None:
        """Drafts a text and appends its bytes to `raws` if they must be compressed.

        Args:
            within: a text stored earlier, which may contain this one.
        """
        if not value:
            return None
        raw = value.encode("utf-8", errors="replace")
        digest = hashlib.sha256(raw).digest()
        draft = EncodedText(value=value, digest=digest, num_bytes=len(raw))
        if digest in self._seen:
            return draft
        if len(self._seen) >= CACHE_SIZE:
            self._seen.clear()
        self._seen.add(digest)
        if self._is_plain:
            return replace(draft, body=raw.decode("utf-8"))
        part = find_part(raw, within)
        if part is not None:
            return replace(draft, part=part)
        raws.append(raw)
        return replace(draft, frame=len(raws) - 1)


def _token_bytes(
    prompt_ids: Sequence[int], ids: Sequence[int], logprobs: Sequence[float]
) -> list[bytes]:
    return [ids_to_bytes(prompt_ids), ids_to_bytes(ids), logprobs_to_bytes(logprobs)]


def _finish(
    texts: tuple[EncodedText | None, ...],
    first: int,
    frames: list[bytes],
    *,
    program: EncodedProgram | None,
) -> EncodedTurn:
    tokens = (frames[first], frames[first + 1], frames[first + 2])
    prompt, completion, code, feedback, detail = (
        text and text.with_frame(frames) for text in texts
    )
    return EncodedTurn(tokens, prompt, completion, code, feedback, detail, program)


def _program(body: bytes | None) -> EncodedProgram | None:
    return None if body is None else EncodedProgram(hashlib.sha256(body).digest(), body)


class HashedTable:
    """A table of run.db whose rows are found by the hash of their content, each stored once. For
    the writer's thread."""

    def __init__(self, run: sqlite3.Connection, *, table: str, key: str, columns: str) -> None:
        """
        Args:
            key: the column with a row's id.
            columns: the others, the first of which is the hash.
        """
        marks = ", ".join("?" for _ in columns.split(","))
        self._run = run
        self._insert = f"INSERT OR IGNORE INTO {table} ({columns}) VALUES ({marks})"
        self._find = f"SELECT {key} FROM {table} WHERE {columns.split(',')[0]} = ?"
        self._ids: dict[bytes, int] = {}

    def put(self, digest: bytes, rest: Callable[[], tuple[Any, ...]]) -> int:
        """The id of a row, inserted if it is new; a single statement then, the usual case.

        Args:
            rest: the columns after the hash, asked for if the row was not put recently.
        """
        known = self._ids.get(digest)
        if known is not None:
            return known
        cursor = self._run.execute(self._insert, (digest, *rest()))
        if cursor.rowcount and cursor.lastrowid is not None:
            found = cursor.lastrowid
        else:
            found = self._run.execute(self._find, (digest,)).fetchone()[0]
        if len(self._ids) >= CACHE_SIZE:
            self._ids.clear()
        self._ids[digest] = found
        return found


class TextTable:
    """The table `texts` of run.db, for the writer's thread."""

    def __init__(self, run: sqlite3.Connection, *, encoder: TurnEncoder) -> None:
        self._encoder = encoder
        self._table = HashedTable(
            run, table="texts", key="text_id", columns="sha256, num_bytes, body"
        )

    def put(self, text: EncodedText | None, *, within_id: int | None = None) -> int | None:
        """The text_id of a text, inserted if it is new; None for an empty one.

        Args:
            within_id: text_id of the text that this one was encoded beside.
        """
        if text is None:
            return None
        return self._table.put(text.digest, lambda: (text.num_bytes, self._body(text, within_id)))

    def _body(self, text: EncodedText, within_id: int | None) -> Body:
        if text.part is not None and within_id is not None:
            return text.part.body(within_id)
        return self._encoder.body(text.value) if text.body is None else text.body
