"""Results of a harvest's problems, of which its files are made, their counts, and the conversations
of their rows.

A result is a line of `.build/results.jsonl`, in any order; in memory is what is counted alone.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import xxhash

from forge.data.build.output import LeftOutRow, describe_steps
from forge.data.prompts.prompt_set import Exchange
from forge.records import Message, Problem, Split, Status, Verdict
from forge.records.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from forge.data.harvest.records import Found
    from forge.data.prompts.prompt_set import PromptSet


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

    @classmethod
    def of(cls, row: Mapping[str, Any] | None) -> Harvested | None:
        """A result as the log has it."""
        if row is None:
            return None
        return cls(**{**row, "literals": tuple(row["literals"]), "words": (*row["words"],)})

    @property
    def is_problem(self) -> bool:
        """True if it may be trained on."""
        return self.step not in ("runs", "examined")

    @property
    def is_pair(self) -> bool:
        """True if it has a correct answer."""
        return not self.step and bool(self.code)


def key_of(found: Found, origin: str) -> str:
    """The hash of all that decides a problem's result."""
    return xxhash.xxh3_128_hexdigest(json.dumps([origin, asdict(found)]).encode())


@dataclass(slots=True)
class HarvestCounts:
    """Candidates by kind, and those that were left out."""

    found: Counter[str] = field(default_factory=Counter[str])
    dropped: list[LeftOutRow] = field(default_factory=list[LeftOutRow])

    def drop(self, one: LeftOutRow) -> None:
        """Counts a candidate that is left out."""
        self.found[one.kind] += 1
        self.dropped.append(one)

    def add(self, result: Harvested) -> None:
        """Counts a problem that was run."""
        if not result.step:
            self.found[result.kind] += 1
            return
        self.drop(
            LeftOutRow(
                origin=result.origin, kind=result.kind, step=result.step, reason=result.reason,
                detail=result.detail,
            )
        )  # fmt: skip

    def steps(self) -> list[dict[str, Any]]:
        """Candidates in and out of each step, with reasons, those of all kinds together."""
        return describe_steps(self.dropped, STEPS, num=self.found.total())

    def by_kind(self) -> dict[str, dict[str, int]]:
        """Candidates that passed each step, by kind."""
        left_out = Counter((one.kind, one.step) for one in self.dropped)
        listed: dict[str, dict[str, int]] = {}
        for kind, num in sorted(self.found.items()):
            listed[kind] = {"found": num}
            for step in STEPS:
                num -= left_out[kind, step]
                listed[kind][step] = num
        return listed


def problem_row(result: Harvested, *, id: str, text: str) -> Mapping[str, Any]:
    """A row of a file of problems, which `[problems] format = "harvest"` reads."""
    return {
        "id": id, "code": text, "level": result.level, "kind": result.kind,
        "name": result.name, "origin": result.origin, "licence": result.licence,
        "answered": result.is_pair,
    }  # fmt: skip


def conversations(result: Harvested, id: str, prompts: PromptSet) -> Iterator[tuple[Message, ...]]:
    """The rows of a problem with a correct answer."""
    problem = Problem(
        problem_id=id, source=result.text, family=result.kind, level=result.level, split=Split.SFT
    )
    answer = Message(role="assistant", content=_fenced(result.code))
    yield (*prompts.first_messages(problem), answer)
    if result.broken:
        status, reason, detail = result.words
        verdict = Verdict(status=Status(status), reason=Reason(reason), detail=detail)
        tried = Exchange(completion_text=_fenced(result.broken), verdict=verdict)
        yield (*prompts.conversation(problem, [tried]), answer)


def _fenced(code: str) -> str:
    return f"```python\n{code.strip()}\n```"
