"""The data card of a harvest, README.md in its directory: counts, yields with reasons, licences,
lengths and examples, and how a run reads the files."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forge.data.build.output import length_facts, write_whole
from forge.data.harvest.harvested import STEPS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from forge.data.harvest.harvested import Harvested

CARD = "README.md"
MAX_REASONS = 12
NUM_EXAMPLES = 2
USE = """```toml
[prompt]
thinking = ""                         # the answers have none

[data]
source = "file"
path = "{folder}"                     # train.* alone

[[problems.sources]]
source = "file"
path = "{folder}/problems.jsonl"      # problems-large.jsonl: sizes that a card notices
format = "harvest"
use = "train"

[[problems.sources]]
source = "file"
path = "{folder}/problems-heldout.jsonl"
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
            self.pairs["without a size as a number"] += not result.literals
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
        SCORED if is_scored else USE.format(folder=folder.resolve().name),
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
