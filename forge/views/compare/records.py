"""Records of a comparison. All differences are b minus a."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forge.statistics.passk import Estimate


class By(StrEnum):
    """Quantity that both runs get the same amount of."""

    STEP = "step"
    """Training steps: of GRPO if either run has them, else of SFT."""
    TOKENS = "tokens"
    """Completion tokens generated for training."""
    TIME = "time"
    """Seconds of training steps, without evaluations and without the time between attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two runs."""

    name: str
    state: str
    spent: float | None
    """Total of the compared quantity; None if it was not counted."""
    devices: tuple[str, ...]
    """Judging devices of that evaluation: `cpu`, or a GPU's name."""
    evaluation: str | None
    """The evaluation whose problems are compared: `eval-4 at step 20`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A setting that differs."""

    key: str
    """`rollout.group_size`; `stages`, and `stage.grpo.steps` or `stage.grpo[1].steps` for the
    second of a kind; `code.commit`, `versions.torch`, `machine.cores` for the code and machine of a
    run."""
    a: Any
    """None if a has no such key; the same for b."""
    b: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Both runs at the same x: means of the last steps up to it (`curves.WINDOW`)."""

    x: float
    a: float | None
    b: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePair:
    """One metric of both runs over the compared quantity."""

    name: str
    """A column of v_steps, or a metric: `reward`, `train/kl_behaviour/mean`."""
    a: tuple[tuple[float, float], ...]
    """(x, value) of every step that has one."""
    b: tuple[tuple[float, float], ...]
    at: tuple[CurvePoint, ...]
    """At equal x; the last is the end of the shorter run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """pass@1 of both on the problems that both evaluated."""

    a: float
    b: float
    difference: Estimate
    """Paired by problem, with the 95 % interval of resampled problems."""
    num_won: int
    """Problems that b solves more often than a."""
    num_lost: int
    num_even: int

    @property
    def is_certain(self) -> bool:
        """True if the interval of the difference excludes 0."""
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
    """Difference of the shares of correct first turns."""
    low: float
    """95 % interval of this problem's samples alone: wide, since they are few."""
    high: float
    speedup_a: float | None
    """Best of the evaluation's correct answers."""
    speedup_b: float | None

    @property
    def outcome(self) -> str:
        """`won` if b is better, `lost`, `even`."""
        return "won" if self.difference > 0 else "lost" if self.difference < 0 else "even"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePart:
    """The score of one level, or of one device's verdicts."""

    name: str
    score: Score
    speed: Estimate | None
    """log2 of b's best speedup over a's, for problems that both have timed: 1 is twice as fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Result of a comparison. A note explains each empty part."""

    by: By
    budget: float | None
    """Common amount of `by`: the smaller of the two totals."""
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
    """Parts that could not be compared, each with the reason."""

    def to_json(self) -> dict[str, Any]:
        """The object that `forge compare --json` prints."""
        out = asdict(self)
        for row, problem in zip(out["problems"], self.problems, strict=True):
            row["outcome"] = problem.outcome
        return out
