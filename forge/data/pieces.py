"""Texts to token ids, piece by piece: what texts share is encoded once.

Used by `ChatTemplate`: the next turn's prompt begins with the last one's.
"""

from __future__ import annotations

import re
from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

MAX_CHARACTERS = 8_000_000
"""Characters of the pieces that are remembered: 16 MB with their ids."""
_SAMPLES = ("a b", " a\n", "\n\n a", "A'b ", "1", " ", "▁a")
"""Pieces that a tokenizer would encode otherwise at the start of a text or after whitespace."""


class PieceEncoder:
    """Encodes texts and remembers the ids of their pieces. Not thread-safe."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added: dict[str, int] = {}
        """Ids of the tokens that separate pieces."""
        self._pattern: re.Pattern[str] | None = None
        """Splits a text at them and keeps them, the longest first; None without separate pieces."""
        self._known: OrderedDict[str, array[int]] = OrderedDict()
        """Ids of pieces, the least recently used first."""
        self._num_characters = 0
        self._separate_pieces()

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        if self._pattern is None:
            return self._encode_whole(text)
        ids: list[int] = []
        for index, piece in enumerate(self._pattern.split(text)):
            if index % 2:
                ids.append(self._added[piece])
            elif piece:
                ids += self._known_ids(piece)
        return ids

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens whatever it contains."""
        self._tokenizer.encode_special_tokens = True
        try:
            return self._encode_whole(text)
        finally:
            self._tokenizer.encode_special_tokens = False

    def _encode_whole(self, text: str) -> list[int]:
        """Token ids of a text, in four fifths of `Tokenizer.encode`'s time: without the tokens'
        positions."""
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def _known_ids(self, piece: str) -> array[int]:
        found = self._known.get(piece)
        if found is not None:
            self._known.move_to_end(piece)
            return found
        found = self._known[piece] = array("I", self._encode_whole(piece))
        self._num_characters += len(piece)
        while self._num_characters > MAX_CHARACTERS:
            dropped, _ = self._known.popitem(last=False)
            self._num_characters -= len(dropped)
        return found

    def _separate_pieces(self) -> None:
        """Find the tokens that separate pieces, unless pieces depend on each other."""
        tokenizer = self._tokenizer
        added = tokenizer.get_added_tokens_decoder()
        ids = {token.content: number for number, token in added.items() if not token.normalized}
        if not ids or tokenizer.truncation or tokenizer.padding:
            return
        if any(map(_takes_neighbours, added.values())):
            return
        names = sorted(ids, key=len, reverse=True)
        self._added = ids
        self._pattern = re.compile("(" + "|".join(map(re.escape, names)) + ")")
        text = names[0].join(_SAMPLES)
        if self.encode(text) != self._encode_whole(text):
            self._pattern = None


def _takes_neighbours(token: AddedToken) -> bool:
    """True if the token's occurrence depends on the characters around it, or includes them."""
    return token.lstrip or token.rstrip or token.single_word
