"""What the judge says of a candidate. Two parts: correctness at once, timing possibly later
(design, section 6)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from forge.records.policy import policy_of
from forge.records.reason import Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge.records.policy import Policy
    from forge.records.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Measured times of a correct candidate. Absent on CPU."""

    speedup: float
    """baseline_us / candidate_us."""
    speedup_low: float
    """Lower end of the bootstrap interval of the speed-up; what the reward uses."""
    candidate_us: float
    baseline_us: float
    candidate_spread_us: float
    """Interquartile range."""
    baseline_spread_us: float
    achieved_gbps: float | None = None
    achieved_tflops: float | None = None
    roofline_share: float | None = None
    """Achieved over peak of whichever of memory and compute bounds the problem, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeOptions:
    """What a request asks for beyond correctness. Without effect on a CPU."""

    timing: bool = True
    """Time it, if it is correct."""
    profile: bool = False
    """Send samples and GPU time by kernel along."""
    smoke: bool = False
    """A process that others have used will do, since nothing depends on the answer: a predecessor
    may have changed it. Never for a reward, an evaluation or a best kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """One GPU kernel of a profiled forward call."""

    name: str
    num_calls: int
    total_us: float
    is_own: bool
    """Compiled from the candidate's own source; else it is torch's or a library's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a request that asks for it gets beside the verdict. Never stored with a run."""

    candidate_samples_us: tuple[float, ...] = ()
    """GPU time of each timed call, in order."""
    baseline_samples_us: tuple[float, ...] = ()
    kernels: tuple[KernelTime, ...] = ()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Profile:
        """Inverse of `asdict`."""
        return cls(
            candidate_samples_us=tuple(data["candidate_samples_us"]),
            baseline_samples_us=tuple(data["baseline_samples_us"]),
            kernels=tuple(KernelTime(**kernel) for kernel in data["kernels"]),
        )


TIMING_FIELDS = tuple(Timing.__dataclass_fields__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judge's answer for one candidate."""

    status: Status
    reason: str
    """Stable code: a `Reason`, or one of another version of the judge."""
    detail: str
    """What the model may read: trimmed traceback, first mismatch, error statistics; ≤ 2 kB, no
    control characters."""
    is_compiled: bool = False
    """Its own kernel launched, compiled for the target without a GPU, and wrote its output slot."""
    num_launches: int = 0
    """Kernel launches in one forward call."""
    timing: Timing | None = None
    """None where nothing was timed: on a CPU, or when it was not correct."""
    torch_share: float | None = None
    isolation: str = "none"
    """Sandbox level of the runner: `namespaces`, ..., `none`."""
    caps: str = "none"
    """How memory was capped: cgroup, rlimit, watch or none."""
    device: str = "cpu"
    phase_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds by phase: extract, screen, compile, correct, ..."""
    harness: str = ""
    """Hash of judge and runner source, torch and triton versions."""
    profile: Profile | None = None
    """Only where the request asked for it."""

    @property
    def is_correct(self) -> bool:
        return self.status is Status.CORRECT

    @property
    def policy(self) -> Policy:
        """What follows from it for the candidate and for its judge."""
        return policy_of(self.status, self.reason)

    def to_json(self) -> dict[str, Any]:
        """Flat JSON object with the fields as the design names them; timing fields null where
        nothing was timed."""
        out = asdict(self)
        out["status"] = str(self.status)
        out["phase_s"] = dict(self.phase_s)
        timing = out.pop("timing")
        if out["profile"] is None:
            del out["profile"]
        out["timing"] = "none" if timing is None else "measured"
        for name in TIMING_FIELDS:
            out[name] = None if timing is None else timing[name]
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verdict:
        """Inverse of `to_json`. Raises KeyError or TypeError on an object that is no verdict."""
        rest = {k: v for k, v in data.items() if k not in TIMING_FIELDS and k != "timing"}
        timing = None
        if data["timing"] != "none":
            timing = Timing(**{name: data[name] for name in TIMING_FIELDS})
        if "profile" in rest:
            rest["profile"] = Profile.from_json(rest["profile"])
        return cls(**{**rest, "status": Status(data["status"]), "timing": timing})


class Judge(Protocol):
    """Judges one candidate: the port of everything that needs verdicts."""

    async def __call__(self, problem: Problem, code: str) -> Verdict:
        """The verdict, within the judge's own deadlines. Never raises for what a candidate does; an
        infrastructure fault is a verdict too (`infra_error`)."""
        ...
