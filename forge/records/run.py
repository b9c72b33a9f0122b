"""Records of a run besides its rollouts: attempts, processes, events, metrics, evaluations, and
verdicts on its stored answers again, which never replace its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge.records.verdict import Verdict


MOST_DIGITS = 18
"""Maximum digits of a step; the store keeps it in 64 bits."""


def split_step(named: str) -> tuple[str, str]:
    """Run and step of `RUN:STEP`; the step is empty for `RUN`, whose newest weights are meant."""
    run, _, step = named.rpartition(":")
    is_step = run and len(step) <= MOST_DIGITS and step.isascii() and step.isdecimal()
    return (run, step) if is_step else (named, "")


def stage_label(kind: str, index: int, round_number: int | None = None) -> str:
    """`grpo-3`, as in events, commands and evaluations; in a round `grpo-3 (round 2)`."""
    return f"{kind}-{index}" + (f" (round {round_number})" if round_number else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of a run; each resume adds one."""

    attempt: int
    started_at: float
    """Unix seconds, UTC."""
    commit: str
    """Commit of the code, of its checkout or its wheel; empty if it is not known."""
    code_diff: str
    """Uncommitted changes of the code."""
    versions: Mapping[str, str]
    """Package versions."""
    machine: Mapping[str, Any]
    """Cores, memory, GPUs, kernel."""
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    attempt: int
    ended_at: float
    exit_code: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStart:
    attempt: int
    name: str
    """`serve-0`, `judge-1`, `trainer`, ..."""
    pid: int
    devices: str
    """GPU UUIDs that the process can see, or `cpu`; behind `NODE: ` on a node of `[cluster]`."""
    log_path: str
    started_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnd:
    attempt: int
    name: str
    pid: int
    ended_at: float
    reason: str
    """`exit 0`, `killed by signal 9 (often out of memory)`, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened once and is worth counting."""

    at: float
    kind: str
    """`stage_start`, `stage_end`, `no_signal`, `context_full`, `child_restart`, ..."""
    message: str
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind:
    """A stage continues after an earlier step: rows of earlier attempts past that step stay, and no
    longer count."""

    at: float
    stage: int
    step: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Numbers of one step."""

    stage: int
    step: int
    at: float
    values: Mapping[str, float]
    """Keys are `area/thing/stat`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One evaluation of one policy on a set of problems, computed from stored turns."""

    stage: str
    """Kind and index of the stage: `eval-0`, `eval-2`, ...; `grpo-3@5` for one after step 5 of a
    GRPO stage."""
    step: int
    policy_version: int
    at: float
    num_problems: int
    """All problems; one whose prompt does not fit the context counts as unsolved."""
    num_samples: int
    """Sampled rollouts per problem, without greedy ones."""
    max_turns: int
    pass_at_1: float
    """Share of correct sampled first turns."""
    ci_low: float
    """Lower end of the 95 % interval of pass_at_1, clustered by problem."""
    ci_high: float
    pass_at_k: Mapping[int, float]
    """Unbiased estimates by k, up to num_samples."""
    pass_at_1_greedy: float | None
    pass_at_1_multi: float
    """Share of rollouts with a correct turn within max_turns."""
    compile_rate: float
    """Share of first turns with a kernel that compiled and launched."""
    detail: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """`by_source`, `by_level`, `by_family`, `by_turn`: name → {num, pass_at_1, compile_rate};
    `sources`: problem to source, if there are several; `pass_at_k_ci`;
    `num_trained_problems`: problems that the run had trained on; `num_shared_problems`: those that
    it trains on sooner or later; `speed`: fast_p and geometric
    means by turn (`forge.views.statistics`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """The last reported numbers of the engines that are up, summed except for `kv_use`."""

    kv_use: float
    """Share of the KV memory in use, 0 to 1, of the engine with the largest share."""
    running: int
    """Samples in steps."""
    waiting: int
    """Samples without a slot."""
    slots: int
    """Samples that the engines decode together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """One pass over the answers of a run (`forge judge --run`)."""

    judging: int
    """Number in the run, from 1."""
    began_at: float
    """Unix seconds, UTC."""
    ended_at: float | None
    """None until every answer has a verdict."""
    protocol: str
    """`as served` if a pool behind a URL judges, as the next."""
    policy: str
    device: str
    """GPU names, `cpu`, or the URL of a pool."""
    settings: Mapping[str, Any]
    """All of `[judge]`, as the judges got it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedAgain:
    judging: int
    group_id: int
    rollout: int
    turn: int
    judged_at: float
    verdict: Verdict
