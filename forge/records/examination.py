"""What an examination says of a problem: whether it can be judged, and is worth training on.

Made by the judge (`evalpool/judge/examiner.py`), told by `forge problems check`, obeyed by a run
before GRPO (design, section 6, row 8).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class Flag(StrEnum):
    """What is wrong with a problem."""

    DOES_NOT_RUN = "does_not_run"
    """Its file, its constructor, its inputs or its first forward raise."""
    CRASH = "crash"
    """It ended its process."""
    SLOW = "slow"
    """Its reference alone takes longer than a judge waits."""
    OUT_OF_MEMORY = "out_of_memory"
    """It needs more memory than a judge gives."""
    UNSUPPORTED = "unsupported"
    """Its arguments or outputs are of a kind that is not judged."""
    NONDETERMINISTIC = "nondeterministic"
    """Two runs on the same inputs differ."""
    ILL_CONDITIONED = "ill_conditioned"
    """Eager's own rounding error is larger than what a judge can forgive."""
    CONSTANT = "constant"
    """One fixed answer is within tolerance for all inputs."""
    IDENTITY = "identity"
    """The output is one of the inputs."""
    INPUT_INSENSITIVE = "input_insensitive"
    """An input does not matter: an answer that ignores it is within tolerance."""
    PARAMETER_INSENSITIVE = "parameter_insensitive"
    """A weight does not matter: an answer that ignores it is within tolerance."""
    VECTOR_INSENSITIVE = "vector_insensitive"
    """The same of a vector only, mostly a bias before a normalisation. To leave it out is an honest
    simplification that saves next to nothing, so it is told and not refused."""
    NON_FINITE = "non_finite"
    """The reference gives NaN or infinity on its own inputs."""

    @property
    def is_unusable(self) -> bool:
        """Whether no candidate can be judged on it."""
        return self in UNUSABLE

    @property
    def is_trivial(self) -> bool:
        """Whether an answer that does less than the problem asks passes the judge."""
        return self in TRIVIAL


UNUSABLE = frozenset(
    {
        Flag.DOES_NOT_RUN, Flag.CRASH, Flag.SLOW, Flag.OUT_OF_MEMORY, Flag.UNSUPPORTED,
        Flag.NONDETERMINISTIC, Flag.ILL_CONDITIONED,
    }
)  # fmt: skip
TRIVIAL = frozenset(
    {Flag.CONSTANT, Flag.IDENTITY, Flag.INPUT_INSENSITIVE, Flag.PARAMETER_INSENSITIVE}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Of one problem."""

    problem_id: str
    outputs: tuple[str, ...] = ()
    """`float32[16, 64]` each; empty where it did not run."""
    forward_s: float | None = None
    """Of one eager forward pass, on the judge's device."""
    variation: float | None = None
    """Half the range of the outputs over draws of inputs, relative to their rms. 0 is constant."""
    flags: Mapping[Flag, str]
    """What is wrong, each with the facts in a few words."""
    num_unchecked: int = 0
    """Inputs and parameters that there was no time to check."""

    @property
    def is_usable(self) -> bool:
        return not any(flag.is_unusable for flag in self.flags)

    @property
    def is_trainable(self) -> bool:
        """Whether a run may train on it."""
        return not any(flag.is_unusable or flag.is_trivial for flag in self.flags)

    def to_json(self) -> dict[str, Any]:
        """The fields, and what they come to."""
        out = asdict(self)
        out["flags"] = {str(flag): words for flag, words in self.flags.items()}
        return {**out, "is_usable": self.is_usable, "is_trainable": self.is_trainable}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Examination:
        """Inverse of `to_json`. Raises KeyError, TypeError or ValueError on another object."""
        fields = {name: data[name] for name in cls.__dataclass_fields__}
        flags = {Flag(flag): str(words) for flag, words in data["flags"].items()}
        return cls(**{**fields, "flags": flags, "outputs": tuple(data["outputs"])})
