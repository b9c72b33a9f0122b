"""Similar signatures without comparing all pairs: locality-sensitive hashing in bands.

Two codes with a similarity of 0.8 share one band of `ROWS` places with a probability of 99.8 %, two
with 0.5 with 28 %; then their whole signatures decide. (Leskovec, Rajaraman, Ullman, "Mining of
Massive Datasets", 3.4.)
"""

from __future__ import annotations

import numpy as np

from forge.data.build.shingles import PERMUTATIONS, similarity

ROWS = 6
"""Places of a band."""
BANDS = PERMUTATIONS // ROWS
MAX_BUCKET = 256
"""Entries of a bucket that are compared: a form that thousands of modules share would make the time
quadratic. Later ones are still found through other bands."""


class SignatureIndex:
    """Signatures in the order in which they were added."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._buckets: dict[tuple[int, bytes], list[int]] = {}
        self._signatures = np.empty((1024, PERMUTATIONS), dtype=np.uint32)
        self._size = 0
        self._same: dict[bytes, int] = {}

    def add(self, signature: np.ndarray) -> int:
        """Adds a signature and returns its index; an equal one has it already."""
        key = signature.tobytes()
        found = self._same.setdefault(key, self._size)
        if found < self._size:
            return found
        if self._size == len(self._signatures):
            self._signatures = np.concatenate([self._signatures, np.empty_like(self._signatures)])
        self._signatures[self._size] = signature
        for band in _bands(signature):
            bucket = self._buckets.setdefault(band, [])
            if len(bucket) < MAX_BUCKET:
                bucket.append(self._size)
        self._size += 1
        return found

    def similar(self, signature: np.ndarray) -> list[tuple[int, float]]:
        """Index and similarity of each signature that is similar, in the order of their indices."""
        same = self._same.get(signature.tobytes())
        candidates = set[int]() if same is None else {same}
        for band in _bands(signature):
            candidates.update(self._buckets.get(band, ()))
        if not candidates:
            return []
        indices = np.array(sorted(candidates))
        shares = similarity(signature, self._signatures[indices])
        return [
            (int(index), float(share))
            for index, share in zip(indices, shares, strict=True)
            if share >= self._threshold
        ]


def _bands(signature: np.ndarray) -> list[tuple[int, bytes]]:
    data = signature.tobytes()
    size = ROWS * signature.itemsize
    return [(band, data[band * size : (band + 1) * size]) for band in range(BANDS)]


class Families:
    """Numbers in families: union-find whose representative is the smallest number."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}

    def join(self, one: int, other: int) -> None:
        """Makes two numbers, and all of their families, one family."""
        first, second = sorted((self.of(one), self.of(other)))
        self._parents[second] = first

    def of(self, number: int) -> int:
        """The representative of a number's family."""
        while (parent := self._parents.get(number, number)) != number:
            self._parents[number] = self._parents.get(parent, parent)
            number = parent
        return number
