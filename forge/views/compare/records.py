"""What a comparison holds. All differences are b minus a."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forge.statistics.passk import Difference


class By(StrEnum):
    """What both runs are given the same amount of."""

    STEP = "step"
    """Steps of training; of GRPO where either run has it, else of SFT."""
    TOKENS = "tokens"
    """Completion tokens generated for training."""
    TIME = "time"
    """Seconds in steps of training: neither evaluations nor the time between attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two runs."""

    name: str
    state: str
    spent: float | None
    """All that it has of what is compared by; None where it was not counted."""
    devices: tuple[str, ...]
    """What judged that evaluation; `cpu`, or a GPU's name."""
    evaluation: str | None
    """The evaluation whose problems are compared: `eval-4 at step 20`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A setting that differs."""

    key: str
    """`rollout.group_size`; `stages`, and `stage.grpo.steps` or `stage.grpo[1].steps` for the
    second of a kind; `code.commit`, `versions.torch`, `machine.cores` for what a run was made
    with."""
    a: Any
    """None where a has no such key; so b."""
    b: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Both runs at the same x: means of the last steps up to it (`curves.WINDOW`)."""

    x: float
    a: float | None
    b: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePair:
    """One metric of both runs over what they are compared by."""

    name: str
    """A column of v_steps, or a metric: `reward`, `train/kl_behaviour/mean`."""
    a: tuple[tuple[float, float], ...]
    """(x, value) of every step that has one."""
    b: tuple[tuple[float, float], ...]
    at: tuple[CurvePoint, ...]
    """At equal x; the last is where the shorter run ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """pass@1 of both on the problems that both evaluated."""

    a: float
    b: float
    difference: Difference
    """Paired by problem, problems resampled: 95 %."""
    num_won: int
    """Problems that b solves more often than a."""
    num_lost: int
    num_even: int

    @property
    def is_certain(self) -> bool:
        """Whether the interval of the difference leaves 0 out."""
        return self.difference.low > 0 or self.difference.high < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemChange:
    """One problem that both evaluated."""

    problem_id: str
    family: str
    level: int
    num_a: int
    correct_a: int
    num_b: int
    correct_b: int
    difference: float
    """Of the shares of correct first turns."""
    low: float
    """95 %, of this problem's samples alone: wide, since they are few."""
    high: float
    speedup_a: float | None
    """Best of the evaluation's correct answers."""
    speedup_b: float | None

    @property
    def outcome(self) -> str:
        """`won` where b is better, `lost`, `even`."""
        return "won" if self.difference > 0 else "lost" if self.difference < 0 else "even"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePart:
    """The score of one level, or of one device's verdicts."""

    name: str
    score: Score
    speed: Difference | None
    """log2 of b's best speedup over a's, problems that both have timed: 1 is twice as fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All of it. Empty parts are explained by a note."""

    by: By
    budget: float | None
    """The most of `by` that both have."""
    a: Side
    b: Side
    config: tuple[Change, ...]
    curves: tuple[CurvePair, ...]
    score: Score | None
    problems: tuple[ProblemChange, ...]
    """Largest loss first, largest gain last."""
    by_level: tuple[ScorePart, ...]
    by_device: tuple[ScorePart, ...]
    notes: tuple[str, ...]
    """What could not be compared and why, a line each."""

    def to_json(self) -> dict[str, Any]:
        """What `forge compare --json` prints."""
        out = asdict(self)
        for row, problem in zip(out["problems"], self.problems, strict=True):
            row["outcome"] = problem.outcome
        return out
