"""`[model.lora]` as PEFT names it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peft import LoraConfig

    from forge.train.trainer.child.settings import TrainerSettings


def new_adapter(settings: TrainerSettings) -> LoraConfig | None:
    """None for full training, and where an adapter is trained further.

    `target_parameters` are the fused experts of a mixture, which are no modules.
    """
    lora = settings.model["lora"]
    if lora is None or settings.adapter is not None:
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=lora["r"],
        lora_alpha=lora["alpha"],
        lora_dropout=lora["dropout"],
        target_modules=lora["target_modules"],
        target_parameters=lora["target_parameters"] or None,
        task_type="CAUSAL_LM",
    )
