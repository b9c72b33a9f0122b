"""The judge's verdict on a candidate: correctness, and timing of a correct one on a GPU; the rules
of a verdict: a protocol, and the policy about torch's work in it.

An entry of `judge.also` is a protocol under its own policy (`kernelbench`) or, after a colon,
under the other one (`kernelbench:own`).
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from forge.records.reason import Status, policy_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge.records.problem import Problem
    from forge.records.reason import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Measured times of a correct candidate. Absent on a CPU."""

    speedup: float
    """baseline_us / candidate_us."""
    speedup_low: float
    """Lower end of the bootstrap interval of the speed-up; the reward uses this one."""
    candidate_us: float
    baseline_us: float
    candidate_spread_us: float
    """Interquartile range."""
    baseline_spread_us: float
    achieved_gbps: float | None = None
    achieved_tflops: float | None = None
    roofline_share: float | None = None
    """Achieved over peak rate, 0 to 1, of memory or compute: the one that bounds the problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeOptions:
    """Options of a request beyond correctness. On a CPU, nothing is timed."""

    timing: bool = True
    """Time the candidate if it is correct."""
    profile: bool = False
    """Return its launches, time samples and GPU time by kernel, too."""
    program: bool = False
    """Return the candidate's program, too, if it was captured."""
    outputs: bool = False
    """Look at one call instead of judging: inputs as the problem gives them, drawn for this request
    alone, and the figures of each output in the profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """One GPU kernel of a profiled forward call."""

    name: str
    num_calls: int
    total_us: float
    is_own: bool
    """True if compiled from the candidate's source; else it is torch's or a library's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFacts:
    """A kernel launch in the captured program of one forward call."""

    name: str
    grid: tuple[int, ...]
    num_warps: int
    num_stages: int
    num_bytes: int
    """Bytes of the tensors among its arguments, each once."""
    num_registers: int | None = None
    """Registers of a thread, as compiled for the judge's target. None if it was not compiled, as
    the next two."""
    num_spills: int | None = None
    shared_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFacts:
    """An output of one call beside the reference's. None for what has no finite element."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_nan: int
    num_inf: int
    low: float | None
    high: float | None
    mean: float | None
    expected_low: float | None
    expected_high: float | None
    expected_mean: float | None
    largest_error: float | None
    """Largest difference of two finite elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Details on request. Never stored with a run."""

    candidate_samples_us: tuple[float, ...] = ()
    """GPU time of each timed call, in order."""
    baseline_samples_us: tuple[float, ...] = ()
    kernels: tuple[KernelTime, ...] = ()
    launches: tuple[LaunchFacts, ...] = ()
    """Launches of a call; where a kernel has several configurations, those of the first."""
    outputs: tuple[OutputFacts, ...] = ()
    """Only for `JudgeOptions.outputs`."""
    needed_bytes: int = 0
    """Bytes of the inputs and outputs of one call."""
    flops: int = 0
    """FLOPs of the reference's matrix products, convolutions and attention."""
    moved_bytes: int | None = None
    """Bytes that the kernels of one call load and store; None where no call was counted, as on a
    GPU."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Profile:
        """Inverse of `asdict`. Raises KeyError or TypeError on another object."""
        return cls(
            **{name: data[name] for name in ("needed_bytes", "flops", "moved_bytes")},
            candidate_samples_us=tuple(data["candidate_samples_us"]),
            baseline_samples_us=tuple(data["baseline_samples_us"]),
            kernels=tuple(KernelTime(**kernel) for kernel in data["kernels"]),
            launches=tuple(
                replace(LaunchFacts(**launch), grid=tuple(launch["grid"]))
                for launch in data["launches"]
            ),
            outputs=tuple(
                replace(OutputFacts(**output), shape=tuple(output["shape"]))
                for output in data["outputs"]
            ),
        )


MAX_PROGRAM_BYTES = 64 << 10
"""Maximum size of a program in a verdict, compressed. A usual one has 1 to 5 kB; a larger one, with
constants in it, is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherVerdict:
    """Correctness of the same candidate under another protocol (`judge.also`)."""

    status: Status
    reason: str
    detail: str


TIMING_FIELDS = tuple(Timing.__dataclass_fields__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeVerdict:
    """Result of the same candidate at one of the problem's shapes."""

    name: str
    """Name of the shape: `N=4096, M=100`."""
    status: Status
    timing: Timing | None = None

    def to_json(self) -> dict[str, Any]:
        """A flat JSON object; the timing fields are null if nothing was timed."""
        return {"name": self.name, "status": str(self.status), **timing_json(self.timing)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ShapeVerdict:
        """Inverse of `to_json`. Raises KeyError, TypeError or ValueError on another object."""
        is_timed = data["speedup"] is not None
        timing = Timing(**{name: data[name] for name in TIMING_FIELDS}) if is_timed else None
        return cls(name=data["name"], status=Status(data["status"]), timing=timing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judge's answer for one candidate."""

    status: Status
    reason: str
    """Stable code: a `Reason`, or one of another version of the judge."""
    detail: str
    """Text that the model may read: trimmed traceback, first mismatch, error statistics; at most
    2 kB, no control characters."""
    is_compiled: bool = False
    """True if its own kernel compiled for the target, launched, and wrote its output slot."""
    num_launches: int = 0
    """Kernel launches in one forward call."""
    timing: Timing | None = None
    """None if nothing was timed: on a CPU, or for a candidate that is not correct."""
    torch_share: float | None = None
    """Share of the work that torch did, by bytes, 0 to 1; the rest is its kernels' (`own_share`).
    None if unknown."""
    isolation: str = "none"
    """Sandbox level of the candidate's process: `namespaces`, ..., `none`."""
    caps: str = "none"
    """Mechanism of the memory limit: rlimit, watch or none."""
    device: str = "cpu"
    phase_s: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds by phase: source, reference, capture, compile, correct, ..."""
    harness: str = ""
    """Hash of the judge's source and of the versions of torch and triton."""
    evidence: str = ""
    """Types of the comparison: `wide` for float64; `narrow: ` and why for the problem's own.
    Empty where nothing was compared, under another protocol, and on a GPU."""
    rules: str = ""
    """Protocol, and its policy where that is not the protocol's own: `kernelbench:own`."""
    profile: Profile | None = None
    """Only if requested."""
    program: bytes | None = None
    """The captured program, a zstd frame of what `judge.program.wire` reads; only if requested, and
    None for a source that was refused, or a program larger than `MAX_PROGRAM_BYTES`."""
    also: Mapping[str, OtherVerdict] = field(default_factory=dict[str, OtherVerdict])
    """Verdicts of further protocols, by name."""
    shapes: tuple[ShapeVerdict, ...] = ()
    """Results by shape, up to the first that is not correct; empty for a problem with one shape.
    `timing` has their geometric means; `profile` and `program` are of the first shape, or of the
    one that is not correct."""

    @property
    def is_correct(self) -> bool:
        return self.status is Status.CORRECT

    @property
    def own_share(self) -> float | None:
        """Share of the work that the candidate's kernels did; None if unknown."""
        return None if self.torch_share is None else 1.0 - self.torch_share

    @property
    def policy(self) -> Policy:
        return policy_of(self.status, self.reason)

    def to_json(self) -> dict[str, Any]:
        """A flat JSON object; `timing` is `none` or `measured`, and the timing fields are null if
        nothing was timed. A program is in base64. Without a profile, a program, other
        protocols or several shapes, there is no such key."""
        out = asdict(self)
        out["status"] = str(self.status)
        out["phase_s"] = dict(self.phase_s)
        timing = out.pop("timing")
        if out["profile"] is None:
            del out["profile"]
        program = out.pop("program")
        if program is not None:
            out["program"] = b64encode(program).decode()
        if not out["also"]:
            del out["also"]
        del out["shapes"]
        if self.shapes:
            out["shapes"] = [shape.to_json() for shape in self.shapes]
        out["timing"] = "none" if timing is None else "measured"
        return {**out, **timing_json(self.timing)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verdict:
        """Inverse of `to_json`; takes any reason. Raises KeyError, TypeError or ValueError if the
        object is no verdict."""
        rest = {k: v for k, v in data.items() if k not in (*TIMING_FIELDS, "timing", "status")}
        timing = None
        if data["timing"] != "none":
            timing = Timing(**{name: data[name] for name in TIMING_FIELDS})
        if "profile" in rest:
            rest["profile"] = Profile.from_json(rest["profile"])
        if "program" in rest:
            rest["program"] = _program(rest["program"])
        if "also" in rest:
            rest["also"] = {name: _other(value) for name, value in dict(rest["also"]).items()}
        if "shapes" in rest:
            rest["shapes"] = tuple(ShapeVerdict.from_json(shape) for shape in rest["shapes"])
        return cls(status=Status(data["status"]), timing=timing, **rest)


def timing_json(timing: Timing | None) -> dict[str, float | None]:
    """The timing fields, null if nothing was timed."""
    return {name: getattr(timing, name, None) for name in TIMING_FIELDS}


def _other(data: Any) -> OtherVerdict:
    """Raises TypeError or ValueError if it is no such verdict."""
    return OtherVerdict(**{**data, "status": Status(data["status"])})


def _program(text: Any) -> bytes:
    """Raises TypeError or ValueError if it is no program in base64 within its bound."""
    program = b64decode(text, validate=True)
    if len(program) > MAX_PROGRAM_BYTES:
        raise ValueError(f"a program of {len(program)} bytes; {MAX_PROGRAM_BYTES} are allowed")
    return program


class Judge(Protocol):
    """Judges one candidate: the port of everything that needs verdicts."""

    async def __call__(self, problem: Problem, code: str) -> Verdict:
        """The verdict, within the judge's own deadlines. Never raises for what a candidate does; an
        infrastructure fault is a verdict too (`infra_error`)."""
        ...


PolicyName = Literal["own", "hybrid"]
POLICIES: Mapping[str, PolicyName] = {"forge": "own", "kernelbench": "hybrid", "drkernel": "hybrid"}
"""The protocols' own policies: KernelBench and Dr.Kernel let torch do any part."""


def join_rules(protocol: str, policy: str) -> str:
    """Protocol and policy in one word."""
    return protocol if policy == POLICIES[protocol] else f"{protocol}:{policy}"


def split_rules(rules: str) -> tuple[str, PolicyName]:
    """Protocol and policy of such a word: the inverse of `join_rules`."""
    protocol, _, policy = rules.partition(":")
    return protocol, "own" if (policy or POLICIES.get(protocol)) == "own" else "hybrid"


def rules_in_words(rules: str) -> str:
    """Protocol and policy, with the protocol's own where that is another one."""
    protocol, policy = split_rules(rules)
    own = POLICIES.get(protocol, policy)
    more = "" if policy == own else f" (the protocol's own is {own})"
    return f"protocol {protocol}, policy {policy}{more}"
