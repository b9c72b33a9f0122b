"""The forward pass of a micro-batch: the model's layers, then log-probabilities of the trained
tokens by TRL's chunked head, which never holds logits of all tokens.

The head is put on the model's own `forward`, so that DDP's and FSDP's wrappers and PEFT's adapters
work as with any other call; other calls are unchanged. Only positions that predict a trained token
are scored, and the host names them, so that no GPU is waited for.

Shapes: M trained tokens, V vocabulary.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func
from trl.kernels import ChunkedLogProbFunction

from forge.errors import ConfigError

if TYPE_CHECKING:
    from forge.train.trainer.packed.sequences import MicroBatch

VOCAB_CHUNK = 32_768
"""Columns of the head in one product, of 4,096 tokens: 268 MB in bf16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Scores of the trained tokens, in the micro-batch's order. [M]"""

    logps: torch.Tensor
    """Log-probability at the head's temperature."""
    entropy: torch.Tensor | None
    """Entropy of the distribution that it was drawn from; None without gradients."""
    is_top: torch.Tensor | None
    """True if no token is more likely; None without gradients."""
    router_loss: torch.Tensor | None
    """A mixture's load-balancing loss over the forwarded tokens, not weighted."""


def router_weight(model: Any) -> float:
    """The weight of the load-balancing loss in a mixture's config; 0 for other models."""
    text = model.config.get_text_config()
    has_router = hasattr(text, "output_router_logits")
    return getattr(text, "router_aux_loss_coef", 0.0) if has_router else 0.0


def add_head(model: Any, *, temperature: float = 1.0) -> None:
    """Make `score` work on the model, below any adapter."""
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    plain, text = base.forward, base.config.get_text_config()
    if hasattr(base.get_output_embeddings(), "base_layer"):  # PEFT's
        raise ConfigError("model.lora.target_modules: found the output layer; other layers")
    softcap, scale = getattr(text, "final_logit_softcapping", None), _logit_scale(text)

    def forward(self: Any, *args: Any, scored: torch.Tensor | None = None, **inputs: Any) -> Any:
        if scored is None:
            return plain(*args, **inputs)
        targets = inputs.pop("targets")
        inputs.pop("labels", None)  # PEFT's wrapper passes None
        found = self.base_model(*args, **inputs, use_cache=False)
        head = self.get_output_embeddings()  # looked up here: FSDP and PEFT replace it
        weight, bias = (
            each.full_tensor() if isinstance(each, DTensor) else each
            for each in (head.weight, head.bias)
        )
        hidden = found.last_hidden_state.flatten(0, 1).index_select(0, scored)
        extra = ("entropy", "is_top1") if torch.is_grad_enabled() else ()
        logps, entropy, _, _, is_top = ChunkedLogProbFunction.apply(
            hidden, weight, bias, targets, temperature, VOCAB_CHUNK, softcap, scale,
            ("log_probs", *extra),
        )  # fmt: skip
        router = None
        if inputs.get("output_router_logits"):
            router = load_balancing_loss_func(
                found.router_logits, text.num_experts, text.num_experts_per_tok
            )
        return {"logps": logps, "entropy": entropy, "is_top": is_top, "router_loss": router}

    base.forward = types.MethodType(forward, base)


def _logit_scale(text: Any) -> float:
    """Factor of the logits before softcap, by the names that architectures have for it."""
    for name in ("logit_scale", "lm_head_multiplier"):
        if (found := getattr(text, name, None)) is not None:
            return found
    divisor = getattr(text, "logits_scaling", None)
    return 1.0 if divisor is None else 1 / divisor


def score(model: Any, micro_batch: MicroBatch, *, router_weight: float = 0.0) -> Scores:
    """The forward pass of a micro-batch that is on the model's device."""
    router = {"output_router_logits": True} if router_weight else {}
    return Scores(**model(**micro_batch.inputs, **router))
