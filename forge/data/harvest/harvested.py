"""Results of a harvest's problems on disk: what survives a killed process, and what the files are
made of.

    .build/results.jsonl   a line for each problem that went through all steps, in any order

A line is complete or cut by a kill, and then ignored. In memory is a problem's line number and what
is counted; texts and answers stay on disk.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import xxhash

from forge.errors import MachineError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from forge.data.harvest.records import Found

STEPS = {
    "self-contained": "its text has all that it needs, and nothing that a sandbox refuses",
    "apart": "it is not like a held-out problem",
    "distinct": "no problem before it is the same or alike",
    "runs": "it runs in a sandbox, on tensors, and returns some",
    "examined": "it repeats, and the rules of `forge problems check` hold",
    "answered": "the compiler made kernels of it",
    "judged": "the answer is right at the traced sizes and at others",
}
"""The steps in their order, and what holds after each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Harvested:
    """A problem after all steps, or up to the one that it did not pass."""

    origin: str
    kind: str
    level: int
    licence: str
    name: str
    text: str
    step: str = ""
    """The step that it did not pass; empty if it passed all."""
    reason: str = ""
    detail: str = ""
    other: str = ""
    large: str = ""
    code: str = ""
    policy: str = ""
    products: int = 0
    kernels: int = 0
    literals: tuple[str, ...] = ()
    broken: str = ""
    """A variant of the code that is not correct."""
    words: tuple[str, str, str] = ("", "", "")
    """Status, reason and detail of the judge about it."""
    device: str = ""
    speedup: float | None = None

    @property
    def is_problem(self) -> bool:
        """True if it may be trained on."""
        return self.step not in ("runs", "examined")

    @property
    def is_pair(self) -> bool:
        """True if it has a correct answer."""
        return not self.step and bool(self.code)


class HarvestLog:
    """The file of results, by the hash of what was found."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[str, int] = {}
        if path.is_file():
            self._read()
        self._file = self._open()

    def _open(self) -> BinaryIO:
        return self._path.open("ab")

    def _read(self) -> None:
        whole = 0
        with self._path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._places[json.loads(line)["key"]] = whole
                whole += len(line)
        with self._path.open("r+b") as file:
            file.truncate(whole)

    def get(self, key: str) -> Harvested | None:
        """The result of a key."""
        place = self._places.get(key)
        if place is None:
            return None
        with self._path.open("rb") as file:
            file.seek(place)
            row = json.loads(file.readline())
        row.pop("key")
        return Harvested(**{**row, "literals": tuple(row["literals"]), "words": (*row["words"],)})

    def add(self, key: str, result: Harvested) -> None:
        """Keeps a result. Raises MachineError where it cannot be written."""
        try:
            place = self._file.seek(0, os.SEEK_END)
            self._file.write(json.dumps({"key": key, **asdict(result)}).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise MachineError(f"{self._path}: cannot be written: {error.strerror}") from error
        self._places[key] = place

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def key_of(found: Found, origin: str) -> str:
    """The hash of all that decides a problem's result."""
    return xxhash.xxh3_128_hexdigest(json.dumps([origin, asdict(found)]).encode())


@dataclass(slots=True)
class HarvestCounts:
    """Candidates by kind, and those that each step left out, with reasons."""

    found: Counter[str]
    left_out: Counter[tuple[str, str, str]]
    """By kind, step and reason."""
    first: dict[tuple[str, str], tuple[str, str]]
    """Origin and detail of the first, by step and reason."""

    @classmethod
    def empty(cls) -> HarvestCounts:
        """Nothing counted."""
        return cls(Counter(), Counter(), {})

    def add(self, kind: str, origin: str, step: str, reason: str, detail: str) -> None:
        """Counts a candidate; with a step, as left out."""
        self.found[kind] += 1
        if step:
            self.left_out[kind, step, reason] += 1
            self.first.setdefault((step, reason), (origin, detail))

    def steps(self) -> list[dict[str, Any]]:
        """Candidates in and out of each step, with reasons, those of all kinds together."""
        num = self.found.total()
        listed: list[dict[str, Any]] = []
        for step in STEPS:
            reasons = Counter[str]()
            for (_, at, reason), count in self.left_out.items():
                if at == step:
                    reasons[reason] += count
            ordered = dict(sorted(reasons.items(), key=lambda each: (-each[1], each[0])))
            examples = [
                {"row": origin, "reason": reason, "detail": detail, "rows": count}
                for reason, count in ordered.items()
                for origin, detail in [self.first[step, reason]]
            ]
            listed.append({
                "step": step, "in": num, "out": num - reasons.total(), "reasons": ordered,
                "examples": examples,
            })  # fmt: skip
            num -= reasons.total()
        return listed

    def by_kind(self) -> dict[str, dict[str, int]]:
        """Candidates that passed each step, by kind."""
        return {kind: dict(self._passed(kind)) for kind in sorted(self.found)}

    def _passed(self, kind: str) -> Iterator[tuple[str, int]]:
        num = self.found[kind]
        yield "found", num
        for step in STEPS:
            num -= sum(
                count for (of, at, _), count in self.left_out.items() if (of, at) == (kind, step)
            )
            yield step, num


def problem_row(result: Harvested, *, id: str, text: str) -> Mapping[str, Any]:
    """A row of a file of problems, which `[problems] format = "harvest"` reads."""
    return {
        "id": id, "code": text, "level": result.level, "kind": result.kind,
        "name": result.name, "origin": result.origin, "licence": result.licence,
        "answered": result.is_pair,
    }  # fmt: skip
