"""Results of a harvest's problems, of which its files are made, their counts, the conversations of
their rows, and the data card: README.md, with yields and reasons, licences, lengths and examples,
and how a run reads the files.

A result is a line of `.build/results.jsonl`, in any order; in memory is what is counted alone.

And the problems that stay: each once, and none like a held-out one. They come in the order of the
sources; of several alike the first stays. Two are the same if their normal forms are (names and
sizes are gone), and alike by the signatures of `build/near.py`. Alike problems, and those of one
file, are a family, which a split keeps together.

`fault_of` refuses a problem by its text: imports that no sandbox has, files, code from text. The
sandbox stops all of this, too; a text names it without a child, and a file written in a scratch
folder, which a sandbox allows, is refused here alone.
"""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import xxhash

from forge.config.schema.build import SplitTable
from forge.data.answers import parse
from forge.data.build.choice import HeldoutProblems, choose_heldout
from forge.data.build.near import Families, SignatureIndex, signature
from forge.data.build.output import LeftOutRow, describe_steps, length_facts, write_whole
from forge.data.harvest.closure import MAX_CHARS, TOO_DEEP, Import, is_allowed
from forge.data.harvest.kernelbench import NONE, marks, structure_of
from forge.data.harvest.records import Found
from forge.data.prompts.prompt_set import Exchange, PromptSet
from forge.data.sources.normal_form import normal_digest
from forge.records import Message, Problem, Split, Status, Verdict
from forge.records.reason import Reason

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
        return cls(**{**row, "words": (*row["words"],)})

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


CARD = "README.md"
MAX_REASONS = 12
NUM_EXAMPLES = 2
USE = """```toml
[prompt]
thinking = ""                         # the answers have none

[data]
source = "file"
path = "DIR"                          # this folder, of which train.* alone is read

[[problems.sources]]
source = "file"
path = "DIR/problems.jsonl"           # problems-large.jsonl: sizes that a card notices
format = "harvest"
use = "train"

[[problems.sources]]
source = "file"
path = "DIR/problems-heldout.jsonl"
format = "harvest"
use = "heldout"
```"""


SCORED = "Problems that are held out, as KernelBench's, are among them: train on none."


@dataclass(slots=True)
class Summary:
    """Counts of problems and rows."""

    problems: Counter[str] = field(default_factory=Counter[str])
    rows: Counter[str] = field(default_factory=Counter[str])
    licences: Counter[str] = field(default_factory=Counter[str])
    pairs: Counter[str] = field(default_factory=Counter[str])
    lengths: list[int] = field(default_factory=list[int])
    examples: list[Sequence[Mapping[str, str]]] = field(
        default_factory=list["Sequence[Mapping[str, str]]"]
    )

    def add_problem(self, result: Harvested, *, is_apart: bool) -> None:
        """Counts a problem; with an answer, as a pair too."""
        self.problems["heldout" if is_apart else "train"] += 1
        self.problems["with other sizes"] += bool(result.other)
        self.problems["with large sizes"] += bool(result.large)
        self.problems[f"level {result.level}"] += 1
        self.licences[result.licence or "unknown"] += 1
        if result.is_pair:
            self.pairs["correct"] += 1
            self.pairs[f"policy {result.policy}"] += 1
            self.pairs["with a product of its own"] += bool(result.products)
            self.pairs["right at two sizes"] += bool(result.other)
            if result.speedup is not None:
                self.pairs["timed"] += 1
                self.pairs["faster than the reference"] += result.speedup > 1

    def add_row(self, row: Mapping[str, Any], *, is_apart: bool) -> None:
        """Counts a row."""
        self.rows["heldout" if is_apart else "train"] += 1
        self.rows["repairs"] += row["num_turns"] > 1
        if row["num_tokens"] is not None:
            self.lengths.append(row["num_tokens"])
        if len(self.examples) < NUM_EXAMPLES and row["num_turns"] == 1:
            self.examples.append(row["messages"])

    def to_json(self) -> dict[str, Any]:
        """The counts, for the manifest; an example is in the card alone."""
        return {
            "problems": {"train": 0, "heldout": 0} | dict(self.problems),
            "pairs": {"correct": 0} | dict(self.pairs),
            "rows": {"train": 0, "heldout": 0} | dict(self.rows),
            "licences": dict(sorted(self.licences.items())),
            "tokens": length_facts(self.lengths),
        }


def write_card(
    folder: Path,
    summary: Summary,
    *,
    steps: Sequence[Mapping[str, Any]],
    kinds: Mapping[str, Mapping[str, int]],
    settings: Mapping[str, Any],
) -> None:
    """Writes the card."""
    found = summary.to_json()
    names = ", ".join(str(one["source"]) for one in settings["sources"])
    made = (
        f"Made by `forge data harvest` of forge {settings['forge']} with torch "
        f"{settings['versions']['torch']}: problems in KernelBench's layout, and answers in Triton "
        "by the compiler, each judged. "
    )
    is_scored = settings["settings"]["keeps_heldout"]
    made += SCORED if is_scored else "No problem is one of KernelBench's, or like one."
    examples = enumerate(summary.examples, 1)
    parts = [
        f"# Harvested from {names}",
        made,
        _table(
            ["", "number"],
            [
                [f"{group}: {name}", str(count)]
                for group in ("problems", "pairs", "rows", "licences", "tokens")
                for name, count in found[group].items()
            ],
        ),
        "## Use",
        SCORED if is_scored else USE,
        "## Yields",
        _table(
            ["candidates", "found", *STEPS],
            [[kind, *(str(count) for count in row.values())] for kind, row in kinds.items()],
        ),
        "\n".join(f"- {step}: {words}." for step, words in STEPS.items()),
        "## Reasons",
        _table(["step", "left out", "reason"], list(_reasons(steps))),
        *(f"## Example {number}\n\n{_shown(one)}" for number, one in examples),
    ]
    write_whole(folder / CARD, ("\n\n".join(parts) + "\n").encode())


def _reasons(steps: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    rows: list[list[str]] = []
    for step in steps:
        listed = list(step["reasons"].items())
        rows += [[step["step"], str(count), why] for why, count in listed[:MAX_REASONS]]
        if rest := listed[MAX_REASONS:]:
            rows.append([step["step"], str(sum(count for _, count in rest)), "other reasons"])
    return rows


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(one.replace('|', '/') for one in line)} |" for line in lines)


def _shown(messages: Sequence[Mapping[str, str]]) -> str:
    return "\n\n".join(f"**{one['role']}**\n\n{one['content']}" for one in messages)


FILES = frozenset({"open", "input"})
CODE = frozenset({"exec", "eval", "compile", "__import__", "breakpoint"})
METHODS = frozenset({"tofile", "fromfile", "savetxt", "loadtxt", "savez", "memmap", "from_file",
                     "FileHandler"})  # fmt: skip
PROCESSES = frozenset({"torch.multiprocessing", "torch.utils.cpp_extension"})
OF_FILES = frozenset({
    f"{owner}.{name}" for owner in ("torch", "np", "numpy") for name in ("save", "load")
})  # fmt: skip


def fault_of(text: str) -> tuple[str, str] | None:
    """Reason and detail against a problem's text; None for one that may be run."""
    if len(text) > MAX_CHARS:
        return f"more than {MAX_CHARS} characters", f"{len(text)}"
    tree = parse(text)
    if tree is None:
        return "no Python", ""
    names = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    if missing := [one for one in ("Model", "get_inputs", "get_init_inputs") if one not in names]:
        return f"no {missing[0]}", ""
    try:
        ast.unparse(tree)  # as later steps do with parts of it
        for node in ast.walk(tree):
            if (found := _fault(node)) is not None:
                return found, f"line {getattr(node, 'lineno', 0)}"
    except RecursionError:
        return TOO_DEEP, ""
    return None


def _fault(node: ast.AST) -> str | None:
    match node:
        case ast.Import(names=names):
            reasons = [is_allowed(Import(one.name, "")) for one in names]
            return next((one for one in reasons if one), None)
        case ast.ImportFrom(module=module, names=names, level=level):
            if level:
                return "imports its own package"
            reasons = [is_allowed(Import(module or "", one.name)) for one in names]
            return next((one for one in reasons if one), None)
        case ast.Call(func=ast.Name(id=name)) if name in FILES:
            return "reads or writes files"
        case ast.Call(func=ast.Name(id=name)) if name in CODE:
            return "runs code from text"
        case ast.Attribute(attr=name) if name in METHODS or ast.unparse(node) in OF_FILES:
            return "reads or writes files"
        case ast.Attribute() if ast.unparse(node) in PROCESSES:
            return "starts processes"
        case _:
            return None


HELDOUT_SIMILARITY = 0.8
"""As `forge data build` compares with held-out problems by default."""


@dataclass(slots=True, kw_only=True)
class Sieve:
    """The problems seen so far."""

    heldout: HeldoutProblems
    similarity: float
    keeps_heldout: bool = False
    """Held-out problems stay, and each of those alike: for the share of them that is answered."""
    _first: dict[str, str] = field(default_factory=dict[str, str])
    """Origins by the digests of normal forms."""
    _names: list[str] = field(default_factory=list[str])
    _index: SignatureIndex = field(init=False)
    _families: Families = field(default_factory=Families)
    _files: dict[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        self._index = SignatureIndex(self.similarity)

    def refuse(self, found: Found, *, origin: str, number: int) -> LeftOutRow | None:
        """The reason against a problem; None if it stays. `number` is its number among all that
        stay."""
        left_out = partial(LeftOutRow, origin=origin, kind=found.kind)
        if (fault := fault_of(found.text)) is not None:
            return left_out(step="self-contained", reason=fault[0], detail=fault[1])
        digest = normal_digest(found.text)
        tree = parse(found.text)
        signed = signature(found.text, tree)
        if not self.keeps_heldout:
            digests = () if digest is None else (digest,)
            match = marks().match(found.text, tree, signed, threshold=HELDOUT_SIMILARITY)
            match = match or self.heldout.match(signed, digests)
            if match is not None:
                return left_out(step="apart", reason="similar to a held-out problem", detail=match)
            structure = structure_of(tree)
            first = self._first.setdefault(f"{digest or origin} {structure}", origin)
            if first != origin:
                return left_out(step="distinct", reason="the same again", detail=first)
            if structure == NONE and (alike := self._index.similar(signed)):
                index, share = max(alike, key=lambda each: (each[1], -each[0]))
                said = f"{self._names[index]} ({share:.2f})"
                return left_out(
                    step="distinct", reason="similar to an earlier problem", detail=said
                )
        self._index.add(signed)
        self._names.append(origin)
        file = origin.rpartition(":")[0] or origin
        self._families.join(number, self._files.setdefault(file, number))
        return None

    def set_apart(self, numbers: Iterable[int], split: SplitTable) -> frozenset[int]:
        """Numbers of the problems for measuring: whole files, while they fit the share."""
        return choose_heldout({number: self._families.of(number) for number in numbers}, split)
