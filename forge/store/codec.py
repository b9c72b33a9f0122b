"""How texts and token arrays lie in the databases. Called by the writer's thread and by every
reader.

Texts are TEXT (plain), a zstd frame in a BLOB, or a BLOB that names a part of another text of the
same run: a candidate's source is nearly always a piece of the completion that it was taken from,
and takes no room twice. The value itself tells which. Token ids are little-endian u32 and log
probabilities little-endian f32, each in a zstd frame: f32 and not f16, so that a batch is rebuilt
exactly.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import zstandard

ZSTD_LEVEL = 3
"""On code 3.3 times smaller at 250 MB/s a core; level 9 gives 3.5 times at a fifth of the speed."""

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

MULTI = "multi_compress_to_buffer"
PART_MAGIC = b"fpt1"
_PART = struct.Struct("<4sqIII")
"""Magic, text_id of the whole, first byte and number of bytes in its UTF-8, CRC-32 of the part."""
LEAST_PART_BYTES = 64
"""Shorter texts are not worth a look-up of their whole."""

Body = str | bytes
Lookup = Callable[[int], "Body | None"]
"""From a text_id to the body that the run stores."""


class Encoder:
    """Compresses on one thread; a zstd context must not be shared between threads."""

    def __init__(self, *, texts: str) -> None:
        self._is_plain = texts == "plain"
        self._zstd = zstandard.ZstdCompressor(level=ZSTD_LEVEL)

    def text(self, value: str) -> Body:
        """`plain`: the text itself. `zstd`: its frame. A lone surrogate, which UTF-8 cannot hold,
        becomes `?`.
        """
        raw = value.encode("utf-8", errors="replace")
        return raw.decode("utf-8") if self._is_plain else self._zstd.compress(raw)

    def compress(self, raws: Sequence[bytes]) -> list[bytes]:
        """The frame of each, all made in one call without Python's lock: a thread that takes and
        lets go of it for each text slows down the others more than it computes.
        """
        if MULTI not in zstandard.backend_features or not all(raws) or not raws:
            return [self._zstd.compress(raw) for raw in raws]
        return [frame.tobytes() for frame in self._zstd.multi_compress_to_buffer(list(raws))]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    """Which bytes of another text's UTF-8 a text is."""

    first: int
    num_bytes: int
    checksum: int
    """CRC-32: what is read for another run's text is found out."""

    def body(self, text_id: int) -> bytes:
        """As it is stored, with the text_id of the whole."""
        return _PART.pack(PART_MAGIC, text_id, self.first, self.num_bytes, self.checksum)


def find_part(raw: bytes, whole: str) -> TextPart | None:
    """Where a text is in another one; None where it is not, or too short to be worth it."""
    if len(raw) < LEAST_PART_BYTES or len(whole) < LEAST_PART_BYTES // 4:
        return None
    first = whole.encode("utf-8", errors="replace").find(raw)
    if first < 0:
        return None
    return TextPart(first=first, num_bytes=len(raw), checksum=zlib.crc32(raw))


def decode_text(body: Body | None, lookup: Lookup | None = None) -> str | None:
    """The text of a stored body. A BLOB that is none of ours is shown as UTF-8.

    Args:
        lookup: of the run that stores the body; without it, or with another run's, a part of
            another text cannot be read and None comes back.
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
    return tuple(_from_bytes("I", body))


def decode_logprobs(body: bytes) -> tuple[float, ...]:
    return tuple(_from_bytes("f", body))


def ids_to_bytes(values: Sequence[int]) -> bytes:
    return _to_bytes(array("I", values))


def logprobs_to_bytes(values: Sequence[float]) -> bytes:
    return _to_bytes(array("f", values))


def _to_bytes(values: array) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def _from_bytes(typecode: str, body: bytes) -> array:
    values = array(typecode)
    values.frombytes(zstandard.ZstdDecompressor().decompress(body))
    if sys.byteorder == "big":
        values.byteswap()
    return values
