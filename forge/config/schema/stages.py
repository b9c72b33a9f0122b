"""`[[stage]]`: what a run does one after the other, one table a kind."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from forge.config.schema.base import Positive, Table


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
    min_learning_rate: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Where linear and cosine end."""
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    """adamw_8bit keeps both moments in a byte each; needs bitsandbytes and a GPU."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """AdamW."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of AdamW's first moment."""
    adam_beta2: Annotated[float, Field(gt=0, lt=1)] = 0.999
    """Decay of AdamW's second moment; 0.95 suits short runs from random weights."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Clip."""
    threads: Positive = 1
    """CPU threads of the trainer."""
    parallel: Literal["auto", "ddp", "fsdp2"] = "auto"
    """On several GPUs: a whole model on each (ddp), or its parts (fsdp2). auto: ddp where the whole
    fits."""
    context_parallel: Positive = 1
    """GPUs that one sequence is spread over: 1 in this version."""
    gradient_checkpointing: bool | None = None
    """Compute activations again instead of keeping them; absent means on GPUs only."""
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
    steps: Annotated[int, Field(ge=0)] = 0
    """Optimizer steps. Exactly one of steps and epochs."""
    epochs: Annotated[float, Field(gt=0)] | None = None
    """Passes over the rows, in place of steps."""
    batch_size: Positive = 16
    """Rows a step."""
    micro_batch_tokens: Positive | None = None
    """Tokens of one forward-backward; absent means the whole batch at once."""
    max_length: Annotated[int, Field(ge=64)] = 1024
    """Tokens of a row; a longer one is dropped and counted."""
    packing: bool = False
    """Fill rows with several conversations (needs flash attention to be fast)."""


class GrpoStage(TrainStage):
    """A `[[stage]]` of multi-turn GRPO."""

    kind: Literal["grpo"]
    """grpo"""
    share_prefixes: bool | Literal["auto"] = "auto"
    """Compute what samples begin with in common (a prompt, earlier turns) once for all of them.
    Models with full attention only. auto: on GPUs, for models that it was tried with; "forge plan"
    says why not."""
    micro_batch_tokens: Positive = 4096
    """Tokens of one forward-backward, shared ones once; a step has as many as its samples need."""
    publish_every: Positive = 1
    """Steps from one publish of the weights to the next; the last step's always are."""
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
