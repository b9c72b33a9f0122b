# pyright: strict
"""An estimated time of a candidate, on a card that the judge does not have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEstimate:
    """Estimated time of one kernel launch or torch operation of a forward call."""

    name: str
    line: int
    """Line of the candidate's source; 0 where unknown."""
    us: float
    bound: str
    """`memory`, `arithmetic`, or `launch` where these take less than a launch."""
    num_bytes: int
    """Bytes of its tensors, each read or written once."""
    flops: float

    def describe(self) -> str:
        """The time, the bound and the work."""
        place = f" (line {self.line})" if self.line else ""
        work = f"{self.num_bytes / 1e6:.3g} MB, {self.flops / 1e6:.3g} MFLOP"
        return f"{self.name}{place}: {self.us:.1f} us, bound by {self.bound}: {work}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeEstimate:
    """Times by roofline (`judge.model_card`): no measurement, and never stored as one."""

    card: str
    candidate_us: float
    baseline_us: float
    """Time of the reference in eager mode."""
    nodes: tuple[NodeEstimate, ...] = ()
    """The slowest nodes of the candidate, in the order of the program; empty for several shapes."""

    @property
    def speedup(self) -> float:
        """baseline_us / candidate_us."""
        return self.baseline_us / self.candidate_us

    def lines(self) -> list[str]:
        """The times in words, then its slowest nodes with what bounds them."""
        said = (
            f"estimated for {self.card} by roofline, not measured: {self.candidate_us:.1f} us, "
            f"baseline {self.baseline_us:.1f} us: {self.speedup:.2f}x"
        )
        return [said, *(node.describe() for node in self.nodes)]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TimeEstimate:
        """Inverse of `asdict`. Raises KeyError, TypeError or ValueError on another object."""
        times = {name: float(data[name]) for name in ("candidate_us", "baseline_us")}
        if not all(0 < value < float("inf") for value in times.values()):
            raise ValueError(f"times of an estimate: {times}")
        nodes = tuple(NodeEstimate(**one) for one in data["nodes"])
        return cls(card=str(data["card"]), nodes=nodes, **times)
