"""Examination of a problem: can it be judged, and is it worth training on?

Made by the judge, printed by `forge problems check`; before GRPO, a run leaves out the problems
that it finds unusable or trivial.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Flag(StrEnum):
    """A fault of a problem."""

    DOES_NOT_RUN = "does_not_run"
    """Its file, its constructor, its inputs or its first forward raise."""
    CRASH = "crash"
    """Its process crashes."""
    SLOW = "slow"
    """Its reference alone takes longer than the judge's deadline."""
    OUT_OF_MEMORY = "out_of_memory"
    """It needs more memory than a judge grants."""
    UNSUPPORTED = "unsupported"
    """The judge does not support the type of its arguments or outputs."""
    NONDETERMINISTIC = "nondeterministic"
    """Two runs on the same inputs differ."""
    ILL_CONDITIONED = "ill_conditioned"
    """Eager's own rounding error exceeds the largest tolerance of a judge."""
    CONSTANT = "constant"
    """No input changes an output: one fixed answer is right for all."""
    IDENTITY = "identity"
    """The output is one of the inputs."""
    INPUT_INSENSITIVE = "input_insensitive"
    """No output depends on one of the inputs: an answer that ignores it is right."""
    PARAMETER_INSENSITIVE = "parameter_insensitive"
    """No output depends on one of the weights: an answer that ignores it is right."""
    VECTOR_INSENSITIVE = "vector_insensitive"
    """The same for a vector, mostly a bias before a normalisation. Leaving it out is an honest
    simplification that saves next to nothing, so it is reported and not refused."""
    NON_FINITE = "non_finite"
    """The reference gives NaN or infinity on its own inputs."""

    @property
    def is_unusable(self) -> bool:
        """True if no candidate can be judged on the problem."""
        return self in UNUSABLE

    @property
    def is_trivial(self) -> bool:
        """True if an answer that does less than the problem asks passes the judge."""
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
    problem_id: str
    outputs: tuple[str, ...] = ()
    """Type and shape of each, as in `float32[16, 64]`; empty if the problem did not run."""
    forward_s: float | None = None
    """Seconds of one eager forward pass on the judge's device."""
    flags: Mapping[Flag, str]
    """Faults, each with the facts in a few words."""
    num_unchecked: int = 0
    """Inputs and parameters that were not checked for lack of time."""
    shapes: tuple[str, ...] = ()
    """Names of the shapes on which it is judged; empty if there is one."""

    @property
    def is_usable(self) -> bool:
        """True if candidates can be judged on the problem."""
        return not any(flag.is_unusable for flag in self.flags)

    @property
    def is_trainable(self) -> bool:
        """True if a run may train on the problem."""
        return not any(flag.is_unusable or flag.is_trivial for flag in self.flags)

    def to_json(self) -> dict[str, Any]:
        """The fields, `is_usable` and `is_trainable`."""
        out = asdict(self)
        out["flags"] = {str(flag): words for flag, words in self.flags.items()}
        return {**out, "is_usable": self.is_usable, "is_trainable": self.is_trainable}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Examination:
        """Inverse of `to_json`. Raises KeyError, TypeError or ValueError on another object."""
        fields: dict[str, Any] = {name: data[name] for name in cls.__dataclass_fields__}
        fields["flags"] = {Flag(flag): str(facts) for flag, facts in data["flags"].items()}
        fields["outputs"] = tuple(data["outputs"])
        fields["shapes"] = tuple(str(name) for name in data["shapes"])
        return cls(**fields)
