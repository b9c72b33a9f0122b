"""The steps over all rows: duplicates, contamination, split. Reads facts only, never texts.

Exact duplicates and contaminated rows go before the judge, which is expensive; near-duplicates
after it, so that a wrong answer never displaces a correct one. Of several duplicates the first row
stays. About 1 KB of memory a row.

No training row may be similar to a held-out problem, or ask for its code. A row is compared in two
ways: by the signature of its module (`near.py`), and by the normal forms of the code in its
messages, as a run compares its rows (`forge/data/sources/normal_form.py`). So a run does not refuse
a row that a build with the same held-out problems has kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash

from forge.config.schema.build import DuplicatesTable, SplitTable
from forge.data.answers import parse
from forge.data.build.near import Families, SignatureIndex, signature, similarity
from forge.data.build.output import LeftOutRow
from forge.data.build.steps import Prepared, Step, normalise_text
from forge.data.pairs.rows import SUFFIXES
from forge.data.sources.loading import read_mixed
from forge.data.sources.normal_form import normal_digest
from forge.errors import ConfigError

KEY = "heldout.paths"


class HeldoutProblems:
    """Modules that no training row may be similar to."""

    def __init__(self, paths: Sequence[str], *, threshold: float, key: str = KEY) -> None:
        """Reads them; messages name `key`. Raises ConfigError for a path without problems, or a
        row without code."""
        self._index = SignatureIndex(threshold)
        self._names: list[str] = []
        self._digests: dict[str, str] = {}
        """Names of problems by the digests of their normal forms."""
        self.sources: list[str] = []
        """The source of every problem, in order."""
        for path in paths:
            before = len(self.sources)
            if not Path(path).exists():
                raise ConfigError(f"{key}: {path}: no such file or directory")
            for one in read_mixed(Path(path), key=key):
                self._add(one.problem_id, normalise_text(one.source), one.entry_point)
            if len(self.sources) == before:
                raise ConfigError(f"{key}: {path}: no problem in it; *.py, *{', *'.join(SUFFIXES)}")

    def match(self, module: np.ndarray, digests: Iterable[str] = ()) -> str | None:
        """Name of the problem whose code a row asks for, by digests of the code in its messages; or
        name and similarity of the one most similar to its module's signature; None if none is."""
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


@dataclass(frozen=True, slots=True)
class _Compared:
    """Facts of a row by which it is compared."""

    origin: str
    module: np.ndarray
    answer: np.ndarray
    digests: tuple[str, ...]


@dataclass(slots=True)
class Choice:
    """The rows that are still in, and those left out by these steps."""

    dropped: list[LeftOutRow] = field(default_factory=list[LeftOutRow])
    kept: list[int] = field(default_factory=list[int])
    """Numbers of the rows that are still in, ascending."""
    heldout: frozenset[int] = frozenset()
    """Numbers of the rows set apart for measuring."""
    _rows: list[_Compared] = field(default_factory=list[_Compared])
    _first: dict[int, str] = field(default_factory=dict[int, str])
    """Origins by the hash of the conversation."""

    def add(self, row: Prepared) -> bool:
        """Takes the next row, whose number is that of rows before it; False if its conversation
        occurred before."""
        first = self._first.setdefault(row.exact, row.origin)
        if first != row.origin:
            made = LeftOutRow(
                origin=row.origin, step=Step.EXACT, reason="the same again", detail=first
            )
            self.dropped.append(made)
            return False
        self.kept.append(len(self._rows))
        self._rows.append(_Compared(row.origin, row.module, row.answer, row.digests))
        return True

    def drop_contaminated(self, problems: HeldoutProblems) -> None:
        """Leaves out rows whose module is similar to a held-out problem, or that ask for its
        code."""
        known: dict[tuple[bytes, ...], str | None] = {}
        gone: set[int] = set()
        for number in self.kept:
            module, digests = self._rows[number].module, self._rows[number].digests
            key = (module.tobytes(), *(one.encode() for one in digests))
            if key not in known:
                known[key] = problems.match(module, digests)
            if (match := known[key]) is not None:
                gone.add(number)
                self._drop(number, Step.CONTAMINATION, "similar to a held-out problem", match)
        self._remove(gone)

    def drop_judged(self, reasons: dict[int, str]) -> None:
        for number, reason in sorted(reasons.items()):
            self._drop(number, Step.JUDGED, reason)
        self._remove(reasons.keys())

    def drop_near_and_split(self, duplicates: DuplicatesTable, split: SplitTable) -> None:
        """Leaves out near-duplicates; then sets whole families of modules apart."""
        index = SignatureIndex(duplicates.similarity)
        families = Families()
        members: defaultdict[int, list[int]] = defaultdict(list)
        gone: set[int] = set()
        modules: dict[int, int] = {}
        for number in self.kept:
            signed = self._rows[number].module
            module = index.add(signed)
            similar = [each for each, _ in index.similar(signed)]
            for each in similar:
                families.join(module, each)
            first = self._first_similar(number, similar, members, duplicates)
            if first is not None:
                gone.add(number)
                detail = self._rows[first].origin
                self._drop(number, Step.NEAR, "similar to an earlier row", detail)
            else:
                modules[number] = module
                members[module].append(number)
        self._remove(gone)
        self.heldout = choose_heldout({n: families.of(m) for n, m in modules.items()}, split)

    def _first_similar(
        self,
        number: int,
        similar: Sequence[int],
        members: dict[int, list[int]],
        duplicates: DuplicatesTable,
    ) -> int | None:
        """The first kept row with a similar module and a similar answer."""
        others = sorted(other for module in similar for other in members.get(module, ()))
        if not duplicates.near or not others:
            return None
        answers = np.stack([self._rows[other].answer for other in others])
        shares = similarity(self._rows[number].answer, answers)
        found = np.flatnonzero(shares >= duplicates.similarity)
        return others[int(found[0])] if len(found) else None

    def _remove(self, numbers: Collection[int]) -> None:
        self.kept = [number for number in self.kept if number not in numbers]

    def _drop(self, number: int, step: Step, reason: str, detail: str = "") -> None:
        origin = self._rows[number].origin
        self.dropped.append(LeftOutRow(origin=origin, step=step, reason=reason, detail=detail))


def choose_heldout(families: dict[int, int], split: SplitTable) -> frozenset[int]:
    """Whole families in an order drawn by the seed, while they fit the share."""
    room = round(split.heldout_share * len(families))
    rows: defaultdict[int, list[int]] = defaultdict(list)
    for number, family in families.items():
        rows[family].append(number)

    def draw(numbers: Sequence[int]) -> int:
        return xxhash.xxh3_64_intdigest(numbers[0].to_bytes(8, "little"), seed=split.seed)

    chosen: set[int] = set()
    for numbers in sorted(rows.values(), key=draw):
        if len(chosen) + len(numbers) <= room:
            chosen.update(numbers)
    return frozenset(chosen)
