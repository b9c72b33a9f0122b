"""A stage's table as the arguments that SFTConfig and GRPOConfig share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from forge.train.trainer.child.settings import TrainerSettings

_OPTIMIZERS = {"adamw": "adamw_torch_fused", "adamw_8bit": "adamw_bnb_8bit"}


def trainer_arguments(settings: TrainerSettings, *, updates_per_step: int = 1) -> dict[str, Any]:
    """Arguments for SFTConfig and GRPOConfig. A step is logged only if a callback asks for it."""
    stage = settings.stage
    on_gpu = torch.cuda.is_available()
    checkpointing = stage["gradient_checkpointing"]
    recomputes = on_gpu if checkpointing is None else checkpointing
    shards = uses_fsdp(settings)
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
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": on_gpu,
        "bf16": on_gpu,
        "use_cpu": not on_gpu,
        "gradient_checkpointing": recomputes and not shards,
        "seed": settings.seed,
        "data_seed": settings.seed,
        **({"gradient_checkpointing_kwargs": {"use_reentrant": False}} if recomputes else {}),
        **({"fsdp": True, "fsdp_config": _fsdp(recomputes=recomputes)} if shards else {}),
        **({"ddp_find_unused_parameters": False} if settings.num_ranks > 1 else {}),
    }


def uses_fsdp(settings: TrainerSettings) -> bool:
    """True if the model is sharded over the ranks. On CPUs, where accelerate has no FSDP, each rank
    holds all of it; the placement has already replaced "auto"."""
    is_sharded = settings.stage["parallel"] == "fsdp2" and settings.num_ranks > 1
    return is_sharded and torch.cuda.is_available()


def _fsdp(*, recomputes: bool) -> dict[str, Any]:
    return {
        "version": 2,
        "reshard_after_forward": True,
        "state_dict_type": "FULL_STATE_DICT",
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "activation_checkpointing": recomputes,
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
