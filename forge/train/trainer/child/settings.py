"""The trainer child's config, the arguments of transformers' Trainer, logging."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig

from forge.train.checkpoints import is_kept
from forge.train.refusals import is_mixture
from forge.train.trainer.packed.sequences import RowLayout

logger = logging.getLogger(__name__)

_OPTIMIZERS = {"adamw": "adamw_torch_fused", "adamw_8bit": "adamw_bnb_8bit"}
_PATHS = (
    "model_dir", "adapter", "rows_path", "work_dir", "checkpoint", "weights_dir", "control_socket",
)  # fmt: skip
_DTYPES = {None: None, "float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """A trainer child's config, as `forge.train.handle.TrainerJob` describes it."""

    stage: Mapping[str, Any]
    model: Mapping[str, Any]
    rollout: Mapping[str, Any]
    model_dir: Path
    adapter: Path | None = None
    rows_path: Path | None
    work_dir: Path
    checkpoint: Path | None = None
    weights_dir: Path
    control_socket: Path
    seed: int
    num_ranks: int = 1
    is_elsewhere: bool = False
    """True on a machine without the supervisor, whose ranks report nothing."""
    micro_batch_scale: float = 1.0
    publish_dtype: torch.dtype | None = None
    shares_weights: bool = False
    shared_card: str | None = None
    """UUID of this rank's GPU if other processes use it too."""
    eval_every: int = 0
    publish_timeout_s: float = 600.0
    publishes: bool = True

    @property
    def micro_batch_tokens(self) -> int:
        """Maximum tokens of one forward-backward, a restart's scale included."""
        budget = int(self.stage["micro_batch_tokens"] * self.micro_batch_scale)
        return max(1, budget // self.beside)

    @property
    def beside(self) -> int:
        """Micro-batches that are trained at the same time, by a thread each. Threads that share one
        operation of a small model wait longer for each other than it takes."""
        is_plain = self.num_ranks == 1 and not (torch.cuda.is_available() or self.stage["compile"])
        return self.stage["threads"] if is_plain else 1

    @property
    def is_packed(self) -> bool:
        """True for packed sequences. The placement has replaced "auto"; without one it counts as
        off."""
        return self.stage["packing"] is True

    @property
    def layout(self) -> RowLayout:
        """Order of a micro-batch's tokens. A mixture shares no prefixes: its router's loss would
        average over different tokens."""
        if not self.is_packed:
            return RowLayout.PADDED
        return RowLayout.PACKED if is_mixture(self.model_dir) else RowLayout.SHARED

    @property
    def recomputes(self) -> bool | int:
        """Blocks whose activations are recomputed in the backward pass; by default all on GPUs."""
        chosen = self.stage["gradient_checkpointing"]
        return torch.cuda.is_available() if chosen is None else chosen

    @property
    def temperature(self) -> float:
        """Temperature of the trained distribution: for grpo that of the samples."""
        return self.rollout["temperature"] if self.stage["kind"] == "grpo" else 1.0

    def is_published(self, step: int) -> bool:
        """True if the weights of a grpo step are published: every n-th step, evaluated steps, the
        last step."""
        if not self.publishes:
            return False
        if step == self.stage["steps"] or self._is_evaluated(step):
            return True
        return step % self.stage["publish_every"] == 0

    def is_kept(self, step: int) -> bool:
        return is_kept(step, steps=self.stage["steps"], save_every=self.stage["save_every"])

    def is_published_in_background(self, step: int) -> bool:
        """True if the next step may begin before the weights of this one are served: samples may be
        a step old, and no evaluation stops the trainer at this step."""
        return self.rollout["max_staleness"] > 0 and not self._is_evaluated(step)

    def _is_evaluated(self, step: int) -> bool:
        return bool(self.eval_every) and step % self.eval_every == 0

    @classmethod
    def load(cls, config: Mapping[str, Any]) -> TrainerSettings:
        card = config["gpus"] and config["gpus"][int(os.environ.get("LOCAL_RANK", "0"))]
        own = {
            "is_elsewhere": bool(config["meeting"] and config["meeting"]["first"]),
            "publish_dtype": _DTYPES[config["publish_dtype"]],
            "shared_card": card if card in config["shared_gpus"] else None,
        }
        paths = {name: config[name] and Path(config[name]) for name in _PATHS}
        given = {each.name for each in fields(cls)} - own.keys() - paths.keys()
        return cls(**{name: config[name] for name in given}, **paths, **own)


def start_logging() -> None:
    rank = f"rank {os.environ['RANK']} " if "RANK" in os.environ else ""  # in one log with others
    form = f"%(asctime)s {rank}%(name)s %(levelname)s %(message)s"
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=form)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logger.info("imports took %.1f CPU seconds", time.process_time())


def model_class(model_dir: Path, *, trust_remote_code: bool) -> Any:
    from transformers import AutoConfig

    return class_of(AutoConfig.from_pretrained(model_dir, trust_remote_code=trust_remote_code))


def class_of(config: PreTrainedConfig) -> Any:
    """The class that a config names, which keeps the names of its tensors and a model of several
    parts whole; otherwise transformers' choice."""
    import transformers

    name = next(iter(config.architectures or ()), "")
    generates = name.endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel"))
    found = getattr(transformers, name, None) if generates else None
    return found or transformers.AutoModelForCausalLM


def trainer_arguments(settings: TrainerSettings, *, updates_per_step: int = 1) -> dict[str, Any]:
    """Arguments of transformers' Trainer. A step is logged only if a callback asks for it."""
    stage = settings.stage
    on_gpu = torch.cuda.is_available()
    return {
        "output_dir": str(settings.work_dir),
        "max_steps": stage["steps"] * updates_per_step,
        "learning_rate": stage["learning_rate"],
        **_schedule(settings),
        "warmup_steps": stage["warmup_steps"] * updates_per_step,
        "weight_decay": stage["weight_decay"],
        "adam_beta1": stage["adam_beta1"],
        "adam_beta2": stage["adam_beta2"],
        "max_grad_norm": stage["max_grad_norm"],
        "optim": _OPTIMIZERS[stage["optimizer"]],
        "save_strategy": "steps",
        "save_steps": stage["save_every"] * updates_per_step,
        "logging_strategy": "no",
        "logging_nan_inf_filter": False,  # it would wait for the GPU in every step
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": on_gpu,
        "bf16": on_gpu,
        "use_cpu": not on_gpu,
        "seed": settings.seed,
        "data_seed": settings.seed,
        **({"fsdp": True, "fsdp_config": _fsdp(settings)} if uses_fsdp(settings) else {}),
        **({"ddp_find_unused_parameters": False} if settings.num_ranks > 1 else {}),
    }


def uses_fsdp(settings: TrainerSettings) -> bool:
    """True if the model is sharded over the ranks. On CPUs, where accelerate has no FSDP, each rank
    holds all of it; the placement has already replaced "auto"."""
    is_asked = settings.stage["parallel"] == "fsdp2" or settings.stage["offload"]
    return is_asked and settings.num_ranks > 1 and torch.cuda.is_available()


def _fsdp(settings: TrainerSettings) -> dict[str, Any]:
    return {
        "version": 2,
        "reshard_after_forward": True,
        "state_dict_type": "FULL_STATE_DICT",
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "offload_params": settings.stage["offload"],
        "activation_checkpointing": settings.recomputes is True,
    }


def _schedule(settings: TrainerSettings) -> dict[str, Any]:
    """The learning rate's schedule, from its peak down to `min_learning_rate`."""
    kind, lowest = settings.stage["schedule"], settings.stage["min_learning_rate"]
    if kind == "constant":
        return {"lr_scheduler_type": "constant_with_warmup"}
    if not lowest:
        return {"lr_scheduler_type": kind}
    if kind == "linear":
        ends = {"lr_end": lowest, "power": 1.0}
        return {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": ends}
    return {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": lowest}}
