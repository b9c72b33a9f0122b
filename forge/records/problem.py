"""Problems, messages, and SFT pairs of a conversation and its answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Split(StrEnum):
    """The part of a run that a problem belongs to. Splits share no composition."""

    SFT = "sft"
    """SFT pairs contain its answer."""
    GRPO = "grpo"
    """Rollouts are played on it."""
    HELDOUT = "heldout"
    """Only for evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceModule:
    """The part of a problem that a judge needs: the module that a kernel has to match."""

    problem_id: str
    """Unique in a run, the same in all runs with the same seed: `softmax-softmax-relu`,
    `level1/19_ReLU`."""
    source: str
    """Python source with `Model`, `get_inputs()` and `get_init_inputs()`, after overrides of module
    constants."""
    entry_point: str = "Model"
    """Name of the reference class or function; a candidate defines `<entry_point>New`."""
    precision: str = "fp32"
    """Element type that determines the tolerance: fp32, bf16 or fp16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ReferenceModule):
    """A reference module, and its place in a run."""

    family: str
    """Kind of a generated problem: `elementwise`, `softmax`, ...; for a file, the name of its
    folder."""
    level: int
    """Difficulty: chain length of a generated problem, or KernelBench level of a file."""
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
    """Ends with the assistant's answer. A repair also has broken answers, each followed by the
    judge's feedback, before it."""
    num_turns: int
    """Number of answers: 1, or more for a repair."""
