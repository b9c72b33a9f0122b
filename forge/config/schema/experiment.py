"""What a run is told: one frozen pydantic model a table. `forge keys` prints these docstrings; a
key without one fails a test. Ranges stand in the fields.

The larger tables have files of their own beside this one; all are imported from here.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field

from forge.config.schema.base import PathValue, Positive, Share, Table
from forge.config.schema.keeping import LimitsTable, StoreTable
from forge.config.schema.model import ModelTable
from forge.config.schema.outlets import NotifyTable, SinksTable
from forge.config.schema.serving import ServeTable
from forge.config.schema.stages import Stage


class ProblemsTable(Table):
    """`[problems]`: what is solved."""

    source: Literal["generated", "dir"] = "generated"
    """The built-in generator, or a directory in KernelBench's layout."""
    path: PathValue | None = None
    """For source = "dir": searched recursively for *.py."""
    overrides: dict[str, int | float | bool | str] = Field(default_factory=dict)
    """For source = "dir": values for module constants, e.g. { batch_size = 16, dim = 256 }."""
    include: list[str] = Field(default_factory=list)
    """For source = "dir": glob patterns relative to path; empty means all files."""
    sizes: Literal["small", "gpu"] = "small"
    """For source = "generated": tensors for the CPU's interpreter, or so large that a GPU takes
    100 µs and more."""
    num_problems: Annotated[int, Field(ge=64)] = 3200
    """For source = "generated": distinct compositions, split into SFT, GRPO and held-out."""
    num_heldout: Positive = 64
    """Problems kept for evaluation. For source = "dir": the same files serve GRPO and evaluation
    when there are too few.
    """
    allow_flagged: bool = False
    """For source = "dir": let GRPO train on problems that "forge problems check" flags, instead of
    leaving them out."""
    sft_by_level: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] = Field(
        default_factory=lambda: [200, 200, 100, 50]
    )
    """For source = "generated": problems by chain length, from 1, whose answers SFT sees. GRPO
    plays the rest."""


class DataTable(Table):
    """`[data]`: SFT rows."""

    source: Literal["generated", "file"] = "generated"
    """The generator's own answers, or rows of a file."""
    path: PathValue | None = None
    """For source = "file": JSON, JSON lines or Parquet; a directory is searched for them."""
    format: Literal["messages", "kernelbook", "trinity"] = "messages"
    """For source = "file": what a row has. messages: a list of role and content; the others: the
    columns of these data sets."""
    pairs_per_problem: Positive = 1
    """One-turn rows a problem."""
    static_share: Share = 0.0
    """Share of first answers, also of broken ones, with sizes as numbers in the text, as
    torch.compile writes them, instead of asked from the tensors: honest as well, but the model has
    to multiply."""
    repair_share: Share = 0.2
    """Rows with one or two broken answers, the judge's words on each and the mended answer, as a
    share of the one-turn rows; no more turns than a rollout has."""


NumGpus = Annotated[int, Field(ge=0)] | Literal["auto"]


class DevicesTable(Table):
    """`[devices]`: which GPU does what. Empty means CPU."""

    gpus: list[str] | Literal["auto"] | None = None
    """UUIDs or indices to use, `auto` for all visible, absent for none."""
    train: NumGpus = 0
    """GPUs of the trainer; `auto` leaves it to the plan, which says why."""
    serve: NumGpus = 0
    """GPUs of the replicas, divided among them; `auto` as in train."""
    judge: NumGpus = 0
    """GPUs of the judges, one each; `auto` as in train."""
    share: Literal["never", "auto", "always"] = "never"
    """Whether roles may be on the same card. auto: where there are fewer cards than roles, if the
    memory allows it."""
    wait_s: Annotated[float, Field(ge=0)] = 0.0
    """How long to wait for cards that another run uses, instead of refusing at once."""


JUDGE_URL = re.compile(r"https?://[^/\s]+|unix:/\S+")


class JudgeTable(Table):
    """`[judge]`: running candidates."""

    workers: Positive = 2
    """Judges on a CPU machine; on GPUs there is one a GPU."""
    url: list[str] = Field(default_factory=list)
    """Pools of "forge judge --serve" that judge instead of workers of this machine: http://HOST:PORT
    or unix:/PATH. A token is read from FORGE_JUDGE_TOKEN. Their own settings hold there."""
    isolation: Literal["auto", "namespaces", "namespaces-noproc", "landlock", "none"] = "auto"
    """Sandbox level; auto takes the strongest that works and refuses to run without one;
    namespaces-noproc and landlock are for machines (and tests) that give no more."""
    compile: Literal["ttir", "binary"] = "ttir"
    """How far each kernel is compiled without a GPU: to Triton IR (5 ms) or to a binary (1 s cold).
    """
    num_inputs: Annotated[int, Field(ge=2, le=16)] = 2
    """Independent random inputs that a candidate must get right; with one, an answer that the first
    call kept would do."""
    compile_timeout_s: Annotated[float, Field(gt=0)] = 10.0
    """Import of the candidate, first call and compilation."""
    correct_timeout_s: Annotated[float, Field(gt=0)] = 10.0
    """All checked calls together."""
    memory_bytes: Annotated[int, Field(ge=1 << 20)] = 4 << 30
    """Cap on a runner's memory."""
    torch_share: Annotated[float, Field(ge=0)] = 0.1
    """Bytes and FLOPs of torch operations in a candidate's forward, as a share of the reference's
    own; above it the candidate is rejected."""
    allow_ops: list[str] = Field(default_factory=list)
    """Torch operations that do not count in that share, as `mm` or `convolution`."""
    tf32: bool = True
    """Let baseline and candidate alike use TF32 for fp32 matrix products on GPUs; the tolerance of
    such problems widens to what eager loses by it."""
    timing: bool = True
    """Time correct candidates where there is a GPU."""
    baseline: Literal["eager", "compile"] = "eager"
    """What they are compared with: Model as it is, or under torch.compile, which takes up to a
    minute a problem, once."""
    timing_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """Warm-up and all timed calls together."""
    min_us: Annotated[float, Field(ge=0)] = 100.0
    """Below this the wall clock's resolution enters the interval of a speed-up."""
    env: dict[str, str] = Field(default_factory=dict)
    """Added to the judges' environment."""


class RewardTable(Table):
    """`[reward]`: verdict to number, each term stored."""

    compiled: float = 0.3
    """Its own kernel compiled, launched and wrote its output."""
    correct: float = 0.5
    """All checked outputs agree."""
    speedup: float = 0.2
    """Weight of ln(min(speedup_low, speedup_cap)) for correct kernels; nothing where nothing was
    timed.
    """
    speedup_cap: Annotated[float, Field(gt=1)] = 10.0
    """Speed-ups above count as this."""
    slower_penalty: bool = False
    """Let the speed-up term go below 0."""
    rejected: Annotated[float, Field(le=0)] = 0.0
    """Added for status rejected."""
    compile_error: Annotated[float, Field(le=0)] = 0.0
    """Added for status compile_error."""
    stop_at_speedup: Annotated[float, Field(gt=0)] = 2.0
    """A correct kernel this fast ends its rollout; where nothing is timed, correct does."""


class RolloutTable(Table):
    """`[rollout]`: playing problems for GRPO."""

    group_size: Annotated[int, Field(ge=2)] = 8
    """Sibling rollouts of one problem."""
    groups_per_step: Positive = 8
    """Groups with signal that make a batch."""
    max_turns: Annotated[int, Field(ge=1, le=16)] = 3
    """Attempts a rollout has."""
    gamma: Share = 0.4
    """Discount of later turns' rewards: return_t = Σ_j γ^j r_(t+j), the last reward repeated."""
    credit: Literal["turn", "trajectory"] = "turn"
    """turn: each turn has its own return (Kevin). trajectory: all turns get the first one's
    (TritonForge).
    """
    scale: Literal["group", "none"] = "group"
    """Divide advantages by the group's standard deviation, or not (Dr. GRPO)."""
    temperature: Annotated[float, Field(gt=0, le=2)] = 1.0
    """Sampling temperature; top-p and top-k are off, since truncation biases every ratio."""
    max_completion_tokens: Annotated[int, Field(ge=8)] = 384
    """Of one answer."""
    max_staleness: Annotated[int, Field(ge=0, le=8)] = 1
    """0: synchronous and on-policy. 1: the next batch is generated while the trainer steps."""
    sampler: Literal["uniform", "curriculum", "priority"] = "uniform"
    """How problems are drawn: each as often; by level, easy ones first; by the variance of their
    recent rewards."""
    replay: Positive = 1
    """Times a finished group may be trained, max_staleness respected."""
    groups_in_flight: Positive | Literal["auto"] = "auto"
    """Groups played at once. auto: as many as engines and judges can take."""
    in_flight: Literal["turn", "keep"] = "turn"
    """New weights wait for the end of running turns, or enter in the middle of them."""
    max_replacements: Annotated[float, Field(ge=0)] = 1.0
    """Groups admitted to replace flat ones, at most this many times the batch, a step."""
    train_truncated: bool = True
    """Train completions that ran into max_completion_tokens, or mask them."""


class EvalTable(Table):
    """`[eval]`: how held-out problems are measured."""

    samples: Positive = 4
    """Rollouts a problem at temperature 1."""
    greedy: bool = True
    """One more at temperature 0."""
    max_turns: Annotated[int, Field(ge=1, le=16)] = 3
    """Attempts; pass@1 counts the first, pass@1 multi any."""
    every: Annotated[int, Field(ge=0)] = 0
    """In a grpo stage: evaluate each so many steps; 0 for never."""
    num_problems: Positive = 16
    """The fixed part of the held-out problems that evaluations in between use."""


class Experiment(Table):
    """A whole experiment file."""

    name: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
            json_schema_extra={"allowed": "1 to 64 letters, digits, ., _ and -, no mark first"},
        ),
    ]
    """Names the run directory: <name>-<n>."""
    seed: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    """Of everything that is drawn, but for the judge's inputs."""
    model: ModelTable
    """What is trained and served."""
    problems: ProblemsTable = ProblemsTable()
    """What is solved."""
    data: DataTable = DataTable()
    """SFT rows."""
    devices: DevicesTable = DevicesTable()
    """Which GPU does what."""
    serve: ServeTable = ServeTable()
    """The model answering."""
    judge: JudgeTable = JudgeTable()
    """Running candidates."""
    reward: RewardTable = RewardTable()
    """Verdict to number."""
    rollout: RolloutTable = RolloutTable()
    """Playing problems."""
    eval: EvalTable = EvalTable()
    """Measuring held-out problems."""
    store: StoreTable = StoreTable()
    """What is kept."""
    limits: LimitsTable = LimitsTable()
    """When a run must end."""
    notify: NotifyTable = NotifyTable()
    """Telling a person."""
    sinks: SinksTable = SinksTable()
    """Other places for the numbers."""
    stage: Annotated[list[Stage], Field(min_length=1)]
    """Stages in order."""
