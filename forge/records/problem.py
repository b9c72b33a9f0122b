"""A problem: a reference PyTorch module with its inputs, in KernelBench's layout; and pairs that
answer problems."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Split(StrEnum):
    """Which part of a run may see a problem. Disjoint by composition."""

    SFT = "sft"
    """Its answer is in the SFT pairs."""
    GRPO = "grpo"
    """Rollouts are played on it."""
    HELDOUT = "heldout"
    """Evaluated only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceModule:
    """The part of a problem that a judge needs: the module that a kernel has to match."""

    problem_id: str
    """Unique in a run, stable over runs with the same seed: `softmax-0042`, `level1/19_ReLU`."""
    source: str
    """Python source with `Model`, `get_inputs()` and `get_init_inputs()`, module constants
    already overridden."""
    entry_point: str = "Model"
    """Name of the reference, a class or a function; a candidate defines `<entry_point>New`."""
    precision: str = "fp32"
    """Element type that determines the tolerance: fp32, bf16 or fp16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ReferenceModule):
    """A reference module, and its place in a run."""

    family: str
    """What it is made of: `elementwise`, `softmax`, ...; for a directory, the name of the file's
    folder."""
    level: int
    """Difficulty: chain length of a generated problem, KernelBench level of a file."""
    split: Split


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation."""

    role: str
    """system, user or assistant."""
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One SFT row: a conversation whose last message is the answer to train."""

    problem_id: str
    messages: tuple[Message, ...]
    """Ends with the assistant's answer. In two-turn form: user, broken answer, judge's words,
    mended answer."""
    num_turns: int
    """1, or 2 for a row that mends a broken answer."""
