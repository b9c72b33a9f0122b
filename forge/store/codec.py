"""Encoding of stored texts and token arrays. Used by the writer's threads and by all readers.

A text is stored as TEXT (plain), as a zstd frame in a BLOB, or as a BLOB that refers to part of
another text of the same run: a candidate's source is almost always part of the completion it was
taken from, and need not be stored twice. The first bytes say which. Token ids are little-endian
u32 and log-probabilities little-endian f32, each in a zstd frame; f16 would not rebuild a batch
exactly.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import zstandard

ZSTD_LEVEL = 3
"""Shrinks code 3.3-fold at 250 MB/s per core; level 9 reaches 3.5-fold at a fifth of the speed."""

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

MULTI = "multi_compress_to_buffer"
"""Feature of the C backend of zstandard."""
PART_MAGIC = b"fpt1"
_PART = struct.Struct("<4sqIII")
"""Magic, text_id of the whole, offset and length in its UTF-8 in bytes, CRC-32 of the part."""
LEAST_PART_BYTES = 64
"""Shorter texts are not worth looking up the whole."""

Body = str | bytes
Lookup = Callable[[int], "Body | None"]
"""Maps a text_id to the body stored by the run."""


class Encoder:
    """Compressor for one thread: a zstd context must not be shared between threads."""

    def __init__(self, *, texts: str) -> None:
        self._is_plain = texts == "plain"
        self._zstd = zstandard.ZstdCompressor(level=ZSTD_LEVEL)

    def text(self, value: str) -> Body:
        """The body of a text; a lone surrogate, which UTF-8 cannot encode, becomes `?`."""
        raw = value.encode("utf-8", errors="replace")
        return raw.decode("utf-8") if self._is_plain else self._zstd.compress(raw)

    def compress(self, raws: Sequence[bytes]) -> list[bytes]:
        """One zstd frame each, in a single call without Python's lock.

        Taking and releasing the lock for each text costs the other threads more than compressing.
        """
        if MULTI not in zstandard.backend_features or not all(raws) or not raws:
            return [self._zstd.compress(raw) for raw in raws]
        return [frame.tobytes() for frame in self._zstd.multi_compress_to_buffer(list(raws))]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    """A text as a range of bytes in another text's UTF-8."""

    first: int
    num_bytes: int
    checksum: int
    """CRC-32, which reveals a lookup in the wrong run."""

    def body(self, text_id: int) -> bytes:
        """The stored form; text_id is that of the whole."""
        return _PART.pack(PART_MAGIC, text_id, self.first, self.num_bytes, self.checksum)


def find_part(raw: bytes, whole: str) -> TextPart | None:
    """Finds a text in another one; None if it is absent or too short."""
    if len(raw) < LEAST_PART_BYTES or len(whole) < LEAST_PART_BYTES // 4:
        return None
    first = whole.encode("utf-8", errors="replace").find(raw)
    if first < 0:
        return None
    return TextPart(first=first, num_bytes=len(raw), checksum=zlib.crc32(raw))


def decode_text(body: Body | None, lookup: Lookup | None = None) -> str | None:
    """Decodes a stored body; a BLOB in none of our formats is read as UTF-8.

    Args:
        lookup: finds texts of the run that stores the body. Without it, or with another run's, a
            body that refers to another text decodes to None.
    """
    if body is None or isinstance(body, str):
        return body
    raw = _decode(body, lookup)
    return None if raw is None else raw.decode("utf-8", errors="replace")


def _decode(body: Body | None, lookup: Lookup | None) -> bytes | None:
    if isinstance(body, str):
        return body.encode("utf-8", errors="replace")
    if body is None:
        return None
    if body[:4] == ZSTD_MAGIC:
        return zstandard.ZstdDecompressor().decompress(body)
    if body[:4] != PART_MAGIC or len(body) != _PART.size:
        return body
    _, text_id, first, num_bytes, checksum = _PART.unpack(body)
    whole = _decode(lookup(text_id), lookup) if lookup is not None else None
    if whole is None:
        return None
    part = whole[first : first + num_bytes]
    return part if zlib.crc32(part) == checksum else None


def decode_ids(body: bytes) -> tuple[int, ...]:
    """Token ids of a stored array."""
    values: array[int] = array("I")
    return tuple(_read(values, body))


def decode_logprobs(body: bytes) -> tuple[float, ...]:
    """Log-probabilities of a stored array."""
    values: array[float] = array("f")
    return tuple(_read(values, body))


def ids_to_bytes(values: Sequence[int]) -> bytes:
    """Token ids as little-endian u32, not yet compressed."""
    return _to_bytes(array("I", values))


def logprobs_to_bytes(values: Sequence[float]) -> bytes:
    """Log-probabilities as little-endian f32, not yet compressed."""
    return _to_bytes(array("f", values))


def _to_bytes(values: array[Any]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def _read(values: array[Any], body: bytes) -> array[Any]:
    values.frombytes(zstandard.ZstdDecompressor().decompress(body))
    if sys.byteorder == "big":
        values.byteswap()
    return values
