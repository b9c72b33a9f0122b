"""Held-out problems of a build: no training row may be similar to one, or ask for its code.

A row is compared in two ways: by the signature of its module (`shingles.py`), and by the normal
forms of the code in its messages, as a run compares its rows (`forge/data/sources/normal_form.py`).
So a run does not refuse a row that a build with the same held-out problems has kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forge.data.build.near import SignatureIndex
from forge.data.build.normalise import normalise_text
from forge.data.build.quality import parse
from forge.data.build.shingles import signature
from forge.data.pairs.files import SUFFIXES
from forge.data.sources.mixed import read_mixed
from forge.data.sources.normal_form import normal_digest
from forge.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

KEY = "heldout.paths"


class HeldoutProblems:
    """Modules that no training row may be similar to."""

    def __init__(self, paths: Sequence[str], *, threshold: float) -> None:
        """Reads them. Raises ConfigError for a path without problems, or a row without code."""
        self._index = SignatureIndex(threshold)
        self._names: list[str] = []
        self._digests: dict[str, str] = {}
        """Names of problems by the digests of their normal forms."""
        self.sources: list[str] = []
        """The source of every problem, in order."""
        for path in paths:
            before = len(self.sources)
            for one in read_mixed(Path(path), key=KEY):
                self._add(one.problem_id, normalise_text(one.source), one.entry_point)
            if len(self.sources) == before:
                raise ConfigError(f"{KEY}: {path}: no problem in it; *.py, *{', *'.join(SUFFIXES)}")

    def match(self, module: np.ndarray, digests: Iterable[str] = ()) -> str | None:
        """Name of the problem whose code a row asks for, or name and similarity of the most similar
        one; None if none is similar.

        Args:
            module: signature of the row's module.
            digests: of the code in the row's messages.
        """
        same = min((self._digests[one] for one in digests if one in self._digests), default=None)
        if same is not None:
            return f"{same} (the same)"
        found = self._index.similar(module)
        if not found:
            return None
        index, share = max(found, key=lambda each: (each[1], -each[0]))
        return f"{self._names[index]} ({share:.2f})"

    def _add(self, name: str, source: str, entry_point: str) -> None:
        self.sources.append(source)
        if self._index.add(signature(source, parse(source))) == len(self._names):
            self._names.append(name)
        if digest := normal_digest(source, entry_point=entry_point):
            self._digests.setdefault(digest, name)
