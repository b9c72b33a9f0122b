"""The verdict and the reward that users of the API get: flat, typed, and the same over HTTP.

Made by `answering.py` from the judge's own record; `forge.client` reads it from JSON. Uses the
standard library only. `time` fields are in microseconds (`_us`) or seconds (`_s`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

PYDANTIC = {"use_attribute_docstrings": True, "extra": "forbid"}
"""How pydantic describes these classes in `/openapi.json`."""
UNSCORED = ("unjudgeable", "infra_error")
"""Statuses that say nothing about the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolResult:
    """Correctness of an answer under one protocol."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = PYDANTIC

    status: str
    """As of a verdict, under this protocol; so are the next ones."""
    reason: str
    """Stable code of why it ended."""
    detail: str
    """Text about the reason."""

    @property
    def correct(self) -> bool:
        """True if it passed every check of this protocol."""
        return self.status == "correct"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeResult:
    """Result of an answer at one of the problem's shapes."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = PYDANTIC

    name: str
    """Constants of the shape: `N=4096, M=100`."""
    status: str
    """As of a verdict, at this shape."""
    speedup: float | None = None
    """baseline_us / candidate_us; None if it was not timed, as the next ones."""
    speedup_low: float | None = None
    """Lower end of the speed-up's 95 % bootstrap interval."""
    candidate_us: float | None = None
    """GPU time of one call of the answer, in microseconds: the median."""
    baseline_us: float | None = None
    """GPU time of one call of the reference, in microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """Reward of a verdict."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = PYDANTIC

    value: float | None
    """Sum of the terms; None for a verdict that says nothing about the answer."""
    terms: Mapping[str, float] = field(default_factory=dict[str, float])
    """Terms by name: compiled, correct, speedup, ..."""

    def to_json(self) -> dict[str, Any]:
        """A JSON object with both fields."""
        return {"value": self.value, "terms": dict(self.terms)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Reward:
        """Inverse of `to_json`. Raises KeyError or TypeError on another object."""
        return cls(value=data["value"], terms=dict(data["terms"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judge's verdict on one answer."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = PYDANTIC

    status: str
    """correct, wrong, compile_error, runtime_error, timeout, rejected, unjudgeable (the problem
    cannot be judged) or infra_error (the machine prevented a verdict)."""
    reason: str
    """Stable code: ok, mismatch, out_of_bounds, decoy_kernel, ... A parameter follows a colon."""
    detail: str
    """Text about the reason: compiler message, first wrong element, ... At most 2 kB."""
    feedback: str
    """Message for the next turn of the model that wrote the answer."""
    compiled: bool
    """True if a kernel of the answer compiled, was launched, and wrote the output."""
    correct: bool
    """True if it passed every check."""
    infra: bool = False
    """True if the machine prevented a verdict. It says nothing about the answer: judge it again."""
    problem_id: str = ""
    """Name of the problem, or a hash of its source."""
    code: str = ""
    """Source that was judged; empty if the answer has none."""
    protocol: str = "forge"
    """Protocol of this verdict."""
    policy: str = "own"
    """Rule for torch's work in this verdict: own or hybrid."""
    by_protocol: Mapping[str, ProtocolResult] = field(default_factory=dict[str, ProtocolResult])
    """Results by protocol, this one included; more with the setting `also`. A name ends in the
    policy where that is not the protocol's own: `kernelbench:own`."""
    by_shape: tuple[ShapeResult, ...] = ()
    """Results by shape, up to the first that is not correct; empty for a problem with one shape."""
    speedup: float | None = None
    """baseline_us / candidate_us. None without a GPU, or if the answer is not correct, as all
    fields up to `roofline_share`."""
    speedup_low: float | None = None
    """Lower end of the speed-up's 95 % bootstrap interval, which the reward uses."""
    candidate_us: float | None = None
    """GPU time of one call of the answer, in microseconds: the median."""
    baseline_us: float | None = None
    """GPU time of one call of the reference, in microseconds."""
    candidate_spread_us: float | None = None
    """Interquartile range, in microseconds."""
    baseline_spread_us: float | None = None
    """Interquartile range, in microseconds."""
    achieved_gbps: float | None = None
    """Memory rate in 1e9 bytes a second."""
    achieved_tflops: float | None = None
    """1e12 FLOPs a second."""
    roofline_share: float | None = None
    """Achieved over peak rate, 0 to 1, of memory or compute: the one that bounds the problem."""
    num_launches: int = 0
    """Kernel launches in one call."""
    torch_share: float | None = None
    """Share of the work that torch did, by bytes, 0 to 1; None if unknown."""
    own_share: float | None = None
    """Share of the work that the answer's kernels did: the rest."""
    device: str = "cpu"
    """Device that it was judged on."""
    isolation: str = "none"
    """Sandbox of the answer's process; `not run` for a source that was refused before it ran."""
    evidence: str = ""
    """Types of the comparison: `wide` for float64; `narrow: ` and why for the problem's own.
    Empty where nothing was compared, under another protocol, and on a GPU."""
    harness: str = ""
    """Hash of the judge's source and of the versions of torch and triton."""
    phase_s: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds by phase: source, reference, capture, compile, correct, ..."""

    @property
    def scored(self) -> bool:
        """True if it says something about the answer, so that it may be rewarded."""
        return self.status not in UNSCORED

    def to_json(self) -> dict[str, Any]:
        """A JSON object with all fields."""
        found = {name: getattr(self, name) for name in _NAMES}  # asdict copies: 0.2 ms a verdict
        found["by_protocol"] = {
            name: {"status": one.status, "reason": one.reason, "detail": one.detail}
            for name, one in self.by_protocol.items()
        }
        found["by_shape"] = [asdict(each) for each in self.by_shape]
        found["phase_s"] = dict(self.phase_s)
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verdict:
        """Inverse of `to_json`; ignores fields of later versions. Raises KeyError or TypeError on
        another object."""
        known: dict[str, Any] = {name: data[name] for name in _NAMES if name in data}
        by_protocol = {name: ProtocolResult(**one) for name, one in data["by_protocol"].items()}
        by_shape = tuple(ShapeResult(**one) for one in data["by_shape"])
        known["by_protocol"], known["by_shape"] = by_protocol, by_shape
        return cls(**known)


_NAMES = tuple(each.name for each in fields(Verdict))
