"""What the SFT and the GRPO child have in common: the config they are given, the arguments TRL is
given, the model."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

_SCHEDULES = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A trainer child's config, as `forge.train.handle` writes it."""

    stage: Mapping[str, Any]
    """The stage's table."""
    model: Mapping[str, Any]
    """`[model]`."""
    rollout: Mapping[str, Any]
    """`[rollout]`: temperature and max_completion_tokens enter the loss."""
    model_dir: Path
    """The checkpoint to start from."""
    adapter: Path | None = None
    """Put on it, and trained further."""
    rows_path: Path | None
    work_dir: Path
    weights_dir: Path
    control_socket: Path
    seed: int

    @classmethod
    def load(cls, config: Mapping[str, Any]) -> Settings:
        """From the JSON that `hold_lease` returns."""
        rows, adapter = config["rows_path"], config["adapter"]
        return cls(
            stage=config["stage"],
            model=config["model"],
            rollout=config["rollout"],
            model_dir=Path(config["model_dir"]),
            adapter=None if adapter is None else Path(adapter),
            rows_path=None if rows is None else Path(rows),
            work_dir=Path(config["work_dir"]),
            weights_dir=Path(config["weights_dir"]),
            control_socket=Path(config["control_socket"]),
            seed=config["seed"],
        )


def start_logging() -> None:
    """To stderr, which is the child's log file."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(name)s %(levelname)s %(message)s",
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logger.info("imports took %.1f CPU seconds", time.process_time())


def trainer_arguments(settings: Settings, *, updates_per_step: int = 1) -> dict[str, Any]:
    """Arguments that SFTConfig and GRPOConfig share. Nothing is logged by the step unless a
    callback asks."""
    stage = settings.stage
    on_gpu = torch.cuda.is_available()
    return {
        "output_dir": str(settings.work_dir),
        "max_steps": stage["steps"] * updates_per_step,
        "learning_rate": stage["learning_rate"],
        "lr_scheduler_type": _SCHEDULES[stage["schedule"]],
        "warmup_steps": stage["warmup_steps"] * updates_per_step,
        "weight_decay": stage["weight_decay"],
        "adam_beta2": stage["adam_beta2"],
        "max_grad_norm": stage["max_grad_norm"],
        "optim": "adamw_torch_fused",
        "save_strategy": "steps",
        "save_steps": stage["save_every"] * updates_per_step,
        "logging_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": on_gpu,
        "bf16": on_gpu,
        "use_cpu": not on_gpu,
        "gradient_checkpointing": on_gpu,
        "seed": settings.seed,
        "data_seed": settings.seed,
    }


def load_model(settings: Settings) -> PreTrainedModel | PeftModel:
    """The checkpoint, with the adapter on it where one is given.

    In f32, also on a GPU (where autocast computes in bf16): bf16 weights would round small updates
    away. A base under an adapter is not updated, so there it may be bf16.
    """
    import transformers
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(
        settings.model_dir, trust_remote_code=settings.model["trust_remote_code"]
    )
    names = config.architectures or ()
    architecture = getattr(transformers, names[0], None) if names else None
    is_frozen = settings.adapter is not None or settings.model["lora"] is not None
    model = (architecture or transformers.AutoModelForCausalLM).from_pretrained(
        settings.model_dir,
        dtype=torch.bfloat16 if is_frozen and torch.cuda.is_available() else torch.float32,
        trust_remote_code=settings.model["trust_remote_code"],
    )
    if settings.adapter is None:
        return model
    from peft import PeftModel

    return PeftModel.from_pretrained(model, str(settings.adapter), is_trainable=True)


def new_adapter(settings: Settings) -> LoraConfig | None:
    """`[model.lora]` as PEFT names it; None for full training, and where an adapter is trained
    further."""
    lora = settings.model["lora"]
    if lora is None or settings.adapter is not None:
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=lora["r"],
        lora_alpha=lora["alpha"],
        lora_dropout=lora["dropout"],
        target_modules=lora["target_modules"],
        task_type="CAUSAL_LM",
    )


def load_tokenizer(settings: Settings) -> PreTrainedTokenizerBase:
    """For TRL, which wants pad and eos ids; the ids that are trained come from the host."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(
        settings.model_dir, trust_remote_code=settings.model["trust_remote_code"]
    )
