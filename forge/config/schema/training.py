"""`[model]` and `[[stage]]`: the model to train and serve, and the steps of a run in order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeGuard

from pydantic import Field

from forge.config.schema.base import PathValue, Positive, Share, Table
from forge.records import Split, split_step, stage_label


class TinyModel(Table):
    """`[model.tiny]`: sizes of the random Qwen3 model that `init = "tiny"` makes."""

    hidden_size: Annotated[int, Field(ge=32, le=4096)] = 128
    """Width of the residual stream."""
    num_layers: Annotated[int, Field(ge=1, le=64)] = 4
    """Number of transformer blocks."""
    num_heads: Annotated[int, Field(ge=1, le=64)] = 4
    """Number of attention heads."""
    num_kv_heads: Annotated[int, Field(ge=1, le=64)] = 2
    """Number of key-value heads; a divisor of num_heads."""
    head_dim: Annotated[int, Field(ge=8, le=256)] = 64
    """Width of an attention head. The llama engine is twice as fast with 64 as with 32."""
    initializer_range: Annotated[float, Field(gt=0, le=1)] = 0.06
    """Standard deviation of the random weights. With 0.06 a model of this size learns to copy in
    half the steps that 0.02 needs."""
    intermediate_size: Annotated[int, Field(ge=32)] = 384
    """Width of the MLP."""
    vocab_size: Annotated[int, Field(ge=300, le=65536)] = 1024
    """Size of the BPE vocabulary, trained on the run's own data; special tokens included."""
    max_context_tokens: Annotated[int, Field(ge=128)] = 4096
    """Number of positions that the model supports."""
    tie_word_embeddings: bool = True
    """Use the input embedding as the output layer."""


class LoraTable(Table):
    """`[model.lora]`: train an adapter instead of all weights."""

    r: Positive = 16
    """Rank of the adapter."""
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """Scale of the adapter: the update is alpha / r · B·A."""
    dropout: Share = 0.0
    """Dropout rate of the adapter's input, for modules; parameters are adapted without dropout, and
    a grpo stage has none, as the engine that plays its samples."""
    target_modules: list[str] | Literal["all-linear"] = "all-linear"
    """Names of the modules that get an adapter."""
    target_parameters: list[str] = Field(default_factory=list)
    """Names of parameters that get an adapter although they are not a module's weight, such as the
    fused experts of a mixture: ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]."""


class QuantizeTable(Table):
    """`[model.quantize]`: train an adapter on 4-bit weights (QLoRA), the fused experts of a mixture
    included. Their scales are quantized too; products are in bfloat16."""

    bits: Literal[4] = 4
    """Bits of a stored weight, in NF4."""


CHATML = "chatml"


def names_file(chat_template: object) -> TypeGuard[str]:
    """True for the path of a template, not for "chatml" or the text that a run records."""
    return isinstance(chat_template, str) and chat_template != CHATML and "{" not in chat_template


class ModelTable(Table):
    """`[model]`: the model to train and serve."""

    init: Literal["tiny"] | None = None
    """Make a random model, with the sizes of [model.tiny], instead of loading one."""
    path: Annotated[str, Field(min_length=1)] | None = Field(
        default=None,
        json_schema_extra={"allowed": "a directory, RUN or RUN:STEP, a GGUF file or a hub name"},
    )
    """Local directory, GGUF file or hub name of the model, or the directory of a run, "runs/x-1" or
    "runs/x-1:40": its newest weights or those of a step, with their adapter merged. Exactly one of
    init and path; neither with serve.url: the server is asked by messages, and forge needs no
    tokenizer."""
    revision: str | None = None
    """Hub revision of the model, or SHA-256 of a GGUF file; recorded with the run."""
    adapter: PathValue | None = None
    """Directory of a PEFT adapter to start from."""
    chat_template: str | None = None
    """Chat template in place of the model's own, for instance of a base model that has none:
    "chatml", a file, or its text. "chatml" ends each message with the model's end of sequence."""
    tiny: TinyModel = TinyModel()
    """Sizes for init = "tiny"."""
    lora: LoraTable | None = None
    """Adapter training; absent means that all weights are trained."""
    quantize: QuantizeTable | None = None
    """Weights in 4 bits; needs [model.lora] and a GPU."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the trainer's weights. auto: float32 if all weights are trained, bfloat16 under an
    adapter. All weights in bfloat16, with their moments, are rounded stochastically by "adamw";
    fsdp2 trains them in float32."""
    trust_remote_code: bool = False
    """Run Python code from the model's directory."""

    @property
    def is_absent(self) -> bool:
        """True if only a server has the model."""
        return self.init is None and self.path is None

    @property
    def run_and_step(self) -> tuple[str, str]:
        """`path` as the directory of a run and a step; the step is empty for the newest weights."""
        return split_step(self.path or "")

    @property
    def is_gguf(self) -> bool:
        """True if `path` is a GGUF file, which may be missing."""
        path = Path(self.path or "").expanduser()
        return path.suffix.lower() == ".gguf" and not path.is_dir()


BUDGET = r"^(?:([1-9]\d*)|(\d+(?:\.\d+)?)([smh])|(\d+(?:\.\d+)?)([kM]?)-tokens)$"
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
TOKENS = {"": 1, "k": 1_000, "M": 1_000_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A budget of answers, of time or of generated tokens."""

    answers: int | None = None
    seconds: float | None = None
    tokens: int | None = None
    """Generated ones."""

    @classmethod
    def parse(cls, text: str) -> Budget:
        """`64` answers, `20m` or `2M-tokens`. Raises ValueError."""
        found = re.match(BUDGET, text)
        if found is None:
            raise ValueError(f"found {text}; 64 answers, a time as 20m, or 2M-tokens")
        if found[1]:
            return cls(answers=int(found[1]))
        if found[2]:
            return cls(seconds=float(found[2]) * SECONDS[found[3]])
        return cls(tokens=int(float(found[4]) * TOKENS[found[5]]))

    def is_spent(self, *, answers: int, seconds: float, tokens: int) -> bool:
        """True if nothing more may begin."""
        return (
            (self.answers is not None and answers >= self.answers)
            or (self.seconds is not None and seconds >= self.seconds)
            or (self.tokens is not None and tokens >= self.tokens)
        )


class StageTable(Table):
    """Keys that all kinds of stage have."""

    round: Positive | None = None
    """Number of the round that the stage belongs to, which its name has. Set for the stages of a
    [[round]]."""

    def label(self, index: int) -> str:
        """Its name: `grpo-3`, `grpo-3 (round 2)`."""
        return stage_label(self.model_dump(include={"kind"})["kind"], index, self.round)


class PlayStage(StageTable):
    """Keys that both kinds of stage without training have."""

    num_problems: Positive | None = None
    """Number of problems; absent means all."""


class EvalStage(PlayStage):
    """A `[[stage]]` that measures the current weights on the held-out problems."""

    kind: Literal["eval"]
    """Kind of the stage: evaluation."""
    samples: Positive | None = None
    """Replaces eval.samples in this stage."""
    greedy: bool | None = None
    """Replaces eval.greedy in this stage."""
    max_turns: Annotated[int, Field(ge=1, le=16)] | None = None
    """Replaces eval.max_turns in this stage."""


class SearchStage(PlayStage):
    """A `[[stage]]` that searches for fast kernels with the current weights."""

    kind: Literal["search"]
    """Kind of the stage: search."""
    budget: Annotated[
        str, Field(pattern=BUDGET, json_schema_extra={"allowed": '"64", "20m" or "2M-tokens"'})
    ]
    """Answers, time or generated tokens that the stage may spend. Problems share them by expected
    gain."""
    strategy: Literal["best-of-n", "refine", "evolve"] = "refine"
    """Earlier answers in a prompt. best-of-n: none. refine: those of a chain, each the parent of
    the next. evolve: a parent drawn from archives by speed and structure."""
    depth: Annotated[int, Field(ge=1, le=16)] = 8
    """Largest number of answers in a chain, and of repairs in a row."""
    patience: Positive = 32
    """Answers in a row without a gain that end the search on a solved problem."""
    roofline_share: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of the roofline that ends the search on a problem."""
    problems: Literal["heldout", "train"] = "heldout"
    """Problems that are searched: those of evaluations, or those of GRPO, whose answers an sft
    stage may train on."""


class TrainStage(StageTable):
    """Keys that both kinds of training stage have."""

    steps: Positive
    """Number of optimizer steps."""
    learning_rate: Annotated[float, Field(gt=0, lt=1)]
    """Peak learning rate of AdamW."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps of linear warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule of the learning rate after warm-up."""
    min_learning_rate: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Final learning rate of the linear and cosine schedules."""
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    """Optimizer. adamw_8bit stores each moment in one byte; needs bitsandbytes and a GPU."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight decay of AdamW."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay rate of AdamW's first moment."""
    adam_beta2: Annotated[float, Field(gt=0, lt=1)] = 0.999
    """Decay rate of AdamW's second moment; 0.95 suits short runs from random weights."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Maximum norm of the gradient; a larger one is scaled down."""
    threads: Positive = 1
    """CPU threads of the trainer."""
    parallel: Literal["auto", "ddp", "fsdp2"] = "auto"
    """Parallelism over several GPUs. ddp: a whole model on each. fsdp2: a shard on each. auto: ddp
    if the whole model fits."""
    packing: bool | Literal["auto"] = "auto"
    """Lay sequences end to end, each sees itself only, instead of padding them; and compute the
    common beginning of several (a prompt, earlier turns) once. auto: for tested models;
    "forge plan" prints why not."""
    gradient_checkpointing: bool | Positive | None = None
    """Recompute activations instead of keeping them: of all blocks, of none, or of so many. Absent:
    on GPUs of as many as the memory needs, as the plan says."""
    offload: bool = False
    """Keep weights, gradients and optimizer state in host memory, on a GPU one block at a time.
    Needs 2 or more GPUs, which share them (fsdp2)."""
    compile: bool = False
    """Compile the blocks with torch.compile, 20 s of the first step: fewer, larger kernels for
    small models."""
    save_every: Positive = 50
    """Steps between checkpoints; the last step always writes one."""
    save: Literal["all", "weights"] = "all"
    """Content of a checkpoint. weights: without the optimizer's moments, two thirds of the bytes; a
    stage that continues from it begins with moments of zero."""
    keep_checkpoints: Positive | Literal["all"] = 2
    """Number of newest checkpoints that are kept; the best one by evaluation is kept, too. all:
    none is removed."""
    restarts: Annotated[int, Field(ge=0)] = 1
    """Maximum restarts of a trainer that died, each from the last checkpoint."""
    step_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """Maximum silence of the trainer; after it, the trainer is stopped as stalled."""


class SftStage(TrainStage):
    """A `[[stage]]` of supervised fine-tuning on the rows of `[data]`, or on the run's own best
    answers."""

    kind: Literal["sft"]
    """Kind of the stage: supervised fine-tuning."""
    source: Literal["data", "search", "rollouts"] = "data"
    """Origin of the rows. data: [data]. search: correct answers of the run's searches so far: the
    best ones, and those that improve on the answer before. rollouts: the same of all its rollouts,
    GRPO's too (rejection sampling). No row is about a held-out problem."""
    best_per_problem: Positive = 4
    """Most rows of a problem that are best answers, and most that are improvements; the fastest are
    taken. For source = "search" and "rollouts", as the next one."""
    min_speedup: Annotated[float, Field(gt=0)] | None = None
    """Minimum speed-up of an answer that becomes a row; absent: none."""
    steps: Annotated[int, Field(ge=0)] = 0
    """Number of optimizer steps. Exactly one of steps and epochs."""
    epochs: Annotated[float, Field(gt=0)] | None = None
    """Number of passes over the rows. Exactly one of steps and epochs."""
    batch_size: Positive = 16
    """Rows per step."""
    micro_batch_tokens: Positive = 16384
    """Maximum tokens in one forward-backward pass. A step has as many passes as its rows need."""
    loss_turns: Literal["last", "all"] = "last"
    """Answers of a conversation that are trained. all: every assistant message, after the prompt of
    its turn; where the template drops earlier thinking, each turn is a row."""
    max_length: Annotated[int, Field(ge=64)] = 1024
    """Maximum length of a row; a longer one is dropped and counted."""


class GrpoStage(TrainStage):
    """A `[[stage]]` of multi-turn GRPO."""

    kind: Literal["grpo"]
    """Kind of the stage: multi-turn GRPO."""
    micro_batch_tokens: Positive = 4096
    """Maximum tokens in one forward-backward pass, with shared ones counted once. A step has as
    many passes as its samples need."""
    publish_every: Positive = 1
    """Steps between publishes of the weights; the last step always publishes."""
    updates_per_batch: Positive = 1
    """Passes over each batch of samples."""
    loss: Literal["dapo", "bnpo", "dr_grpo", "grpo", "cispo"] = "dapo"
    """Averaging of the token losses, by TRL's names: over all tokens of the batch (dapo, bnpo), the
    tokens that it may have (dr_grpo), samples (grpo). cispo: as dapo, of log-probabilities weighted
    by the ratio, which is cut at 1 + clip_high and clips no token."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """Ratio of a token: its own, or the geometric mean over its answer (GSPO)."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Lower clip range: the ratio is clipped below 1 - clip_low."""
    clip_high: Annotated[float, Field(gt=0)] = 0.28
    """Upper clip range: the ratio is clipped above 1 + clip_high."""
    delta: Annotated[float, Field(gt=1)] | None = None
    """Largest ratio that counts where the advantage is negative; above 1 + clip_high."""
    off_policy_mask_threshold: Annotated[float, Field(gt=0)] | None = None
    """Leave out answers with a negative advantage whose mean log-ratio, engine to trainer, is above
    this (DeepSeek-V3.2): those that the policy has left, or that engine and trainer disagree on."""
    logprob_gap_limit: Annotated[float, Field(gt=0)] | None = None
    """Leave out answers whose log-probabilities in engine and trainer are further apart than this,
    in the mean over their tokens, as train/logprob_gap/mean is."""
    beta: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the KL term; with 0 no reference model is loaded."""


def split_of(stage: EvalStage | SearchStage) -> Split:
    """Split of the problems that a stage plays."""
    is_trained = isinstance(stage, SearchStage) and stage.problems == "train"
    return Split.GRPO if is_trained else Split.HELDOUT


Stage = Annotated[EvalStage | SearchStage | SftStage | GrpoStage, Field(discriminator="kind")]


class RoundTable(Table):
    """A `[[round]]`: stages that are repeated, after those of `[[stage]]`."""

    repeat: Annotated[int, Field(ge=1, le=64)]
    """Number of rounds. Each begins with the weights that the one before ended with."""
    stage: list[Stage] = Field(
        min_length=1, json_schema_extra={"allowed": "one [[round.stage]] or more"}
    )
    """Stages of a round in order."""
