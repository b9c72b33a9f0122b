"""What a run is told: one frozen pydantic model a table. `forge keys` prints these docstrings; a
key without one fails a test.

Strict: `true` is no integer and `"8"` no number. Unknown keys are refused. Ranges stand in the
fields.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Table(BaseModel):
    """Base of every table."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        defer_build=True,  # tables are built once, as parts of Experiment
    )


PathValue = Annotated[Path, Field(strict=False)]
Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class TinyModel(Table):
    """`[model.tiny]`: sizes of the random Qwen3 model that `init = "tiny"` makes."""

    hidden_size: Annotated[int, Field(ge=32, le=4096)] = 128
    """Width of the residual stream."""
    num_layers: Annotated[int, Field(ge=1, le=64)] = 4
    """Transformer blocks."""
    num_heads: Annotated[int, Field(ge=1, le=64)] = 4
    """Attention heads."""
    num_kv_heads: Annotated[int, Field(ge=1, le=64)] = 2
    """Key-value heads; divides num_heads."""
    head_dim: Annotated[int, Field(ge=8, le=256)] = 64
    """Width of a head. The llama engine is twice as fast with 64 as with 32."""
    initializer_range: Annotated[float, Field(gt=0, le=1)] = 0.06
    """Standard deviation of the random weights; 0.06 learns to copy in half of the steps that 0.02
    takes at these sizes."""
    intermediate_size: Annotated[int, Field(ge=32)] = 384
    """Width of the MLP."""
    vocab_size: Annotated[int, Field(ge=300, le=65536)] = 1024
    """Entries of the BPE tokenizer, trained on the run's own data, special tokens included."""
    max_context_tokens: Annotated[int, Field(ge=128)] = 4096
    """Positions the model is made for."""
    tie_word_embeddings: bool = True
    """Share the input embedding with the output layer."""


class LoraTable(Table):
    """`[model.lora]`: train an adapter instead of all weights."""

    r: Positive = 16
    """Rank."""
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """Scaling numerator: the update is alpha / r · B·A."""
    dropout: Share = 0.0
    """Dropout on the adapter's input."""
    target_modules: list[str] | Literal["all-linear"] = "all-linear"
    """Module names that get an adapter."""


class ModelTable(Table):
    """`[model]`: what is trained and served."""

    init: Literal["tiny"] | None = None
    """Make a random model instead of loading one; sizes in [model.tiny]."""
    path: str | None = None
    """A local directory or a hub name. Exactly one of init and path."""
    revision: str | None = None
    """Hub revision; recorded with the run."""
    adapter: PathValue | None = None
    """Directory of a PEFT adapter to start from."""
    tiny: TinyModel = TinyModel()
    """Sizes for init = "tiny"."""
    lora: LoraTable | None = None
    """Adapter training; absent means all weights."""
    trust_remote_code: bool = False
    """Let the model directory run its own Python."""


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
    num_problems: Annotated[int, Field(ge=64)] = 3200
    """For source = "generated": distinct compositions, split into SFT, GRPO and held-out."""
    num_heldout: Positive = 64
    """Problems kept for evaluation. For source = "dir": the same files serve GRPO and evaluation
    when there are too few.
    """
    allow_flagged: bool = False
    """For source = "dir": let GRPO train on problems that "forge problems check" flags, instead of
    leaving them out."""
    sft_by_level: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] = [
        200,
        200,
        100,
        50,
    ]
    """For source = "generated": problems by chain length, from 1, whose answers SFT sees. GRPO
    plays the rest."""


class DataTable(Table):
    """`[data]`: SFT rows."""

    pairs_per_problem: Positive = 1
    """One-turn rows a problem."""
    static_share: Share = 0.0
    """Share of one-turn answers with sizes as numbers in the text, as torch.compile writes them,
    instead of asked from the tensors: honest as well, but the model has to multiply."""
    repair_share: Share = 0.2
    """Rows with one or two broken answers, the judge's words on each and the mended answer, as a
    share of the one-turn rows."""


class DevicesTable(Table):
    """`[devices]`: which GPU does what. Empty means CPU."""

    gpus: list[str] | Literal["auto"] | None = None
    """UUIDs or indices to use, `auto` for all visible, absent for none."""
    train: int = Field(default=0, ge=0)
    """GPUs of the trainer."""
    serve: int = Field(default=0, ge=0)
    """GPUs of the replicas, divided among them."""
    judge: int = Field(default=0, ge=0)
    """GPUs of the judges, one each."""


class ServeTable(Table):
    """`[serve]`: the model answering."""

    engine: Literal["llama"] = "llama"
    """Inference engine."""
    replicas: Positive = 1
    """Engine processes."""
    threads: Positive = 1
    """CPU threads a replica."""
    slots: Annotated[int, Field(ge=1, le=256)] = 32
    """Sequences decoded together in a replica."""
    context_tokens: Annotated[int, Field(ge=64)] = 1280
    """Prompt and completion of one sequence together."""
    precision: Literal["exact", "fast"] = "exact"
    """exact: f32 weights and KV, no flash attention, equal to transformers. fast: bf16 weights, f16
    KV.
    """
    python: PathValue | None = None
    """Interpreter of the engine's child; absent means ours."""
    env: dict[str, str] = Field(default_factory=dict)
    """Added to the child's environment."""
    start_timeout_s: Annotated[float, Field(gt=0)] = 120.0
    """Until /health must answer."""
    request_timeout_s: Annotated[float, Field(gt=0)] = 300.0
    """For one completion request."""


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
    num_inputs: Annotated[int, Field(ge=1, le=16)] = 2
    """Independent random inputs that a candidate must get right."""
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


class StoreTable(Table):
    """`[store]`: what is kept, and where."""

    dir: PathValue = Path("runs")
    """Parent of run directories, relative to the working directory."""
    texts: Literal["plain", "zstd"] = "zstd"
    """How texts are stored; plain lets stock sqlite3 read them."""
    keep_tokens: Annotated[
        str,
        Field(
            pattern=r"^(all|untrained|last:[1-9]\d*)$",
            json_schema_extra={"allowed": '"all", "untrained" or "last:N"'},
        ),
    ] = "all"
    """Token ids and logprobs in tokens.db: all, untrained, or last:N steps."""
    min_free_bytes: Annotated[int, Field(ge=0)] = 500_000_000
    """A run stops cleanly when the disk has less."""


class LimitsTable(Table):
    """`[limits]`: when an attempt stops, as by a first Ctrl-C. `forge resume` has them afresh."""

    hours: Annotated[float, Field(gt=0)] | None = None
    """Wall-clock hours of an attempt."""
    tokens: Positive | None = None
    """Generated tokens of an attempt."""


class EvalStage(Table):
    """A `[[stage]]` that measures the current weights on the held-out problems."""

    kind: Literal["eval"]
    """eval"""
    num_problems: Positive | None = None
    """Held-out problems used; absent means all."""
    samples: Positive | None = None
    """Overrides eval.samples."""
    greedy: bool | None = None
    """Overrides eval.greedy."""
    max_turns: Annotated[int, Field(ge=1, le=16)] | None = None
    """Overrides eval.max_turns."""


class TrainStage(Table):
    """What both training stages share."""

    steps: Positive
    """Optimizer steps."""
    learning_rate: Annotated[float, Field(gt=0, lt=1)]
    """Peak learning rate of AdamW."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Linear warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Of the learning rate after warm-up."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """AdamW."""
    adam_beta2: Annotated[float, Field(gt=0, lt=1)] = 0.999
    """Decay of AdamW's second moment; 0.95 suits short runs from random weights."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Clip."""
    threads: Positive = 1
    """CPU threads of the trainer."""
    save_every: Positive = 50
    """Steps between checkpoints; one is always written at the end."""
    restarts: Annotated[int, Field(ge=0)] = 1
    """Times a dead trainer is restarted from its last checkpoint."""
    step_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """A trainer silent for this long is named and ended."""


class SftStage(TrainStage):
    """A `[[stage]]` of supervised fine-tuning on the pairs."""

    kind: Literal["sft"]
    """sft"""
    batch_size: Positive = 16
    """Rows a step."""
    max_length: Annotated[int, Field(ge=64)] = 1024
    """Tokens of a row; a longer one is dropped and counted."""
    packing: bool = False
    """Fill rows with several conversations (needs flash attention to be fast)."""


class GrpoStage(TrainStage):
    """A `[[stage]]` of multi-turn GRPO."""

    kind: Literal["grpo"]
    """grpo"""
    micro_batch_tokens: Positive = 4096
    """Tokens of one forward-backward; a step has as many as its samples need."""
    updates_per_batch: Positive = 1
    """Passes over each batch of samples."""
    loss: Literal["dapo", "bnpo", "dr_grpo", "grpo"] = "dapo"
    """How token losses are averaged (TRL's names)."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Ratio is clipped below 1 - clip_low."""
    clip_high: Annotated[float, Field(gt=0)] = 0.28
    """Ratio is clipped above 1 + clip_high."""
    beta: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the KL term; 0 loads no reference model."""


Stage = Annotated[EvalStage | SftStage | GrpoStage, Field(discriminator="kind")]


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
    stage: Annotated[list[Stage], Field(min_length=1)]
    """Stages in order."""
