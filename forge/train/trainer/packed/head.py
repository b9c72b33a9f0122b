"""The forward pass of a micro-batch: the model's layers, then log-probabilities of the trained
tokens by TRL's chunked head, which never holds logits of all tokens.

The head is put on the model's own `forward` and on that of its output layer, so that DDP's and
FSDP's wrappers and PEFT's adapters work as with any other call: FSDP gathers the layer's weights,
and averages their gradients over the ranks, around a call of the layer. Other calls are unchanged.
Only positions that predict a trained token are scored, and the host names them, so that no GPU is
waited for.

Shapes: M trained tokens, V vocabulary.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func
from trl.kernels import ChunkedLogProbFunction

from forge.errors import ConfigError
from forge.train.trainer.packed.sequences import MicroBatch

VOCAB_CHUNK = 32_768
"""Columns of the head in one product, of 4,096 tokens: 268 MB in bf16."""

SMALL = 1 << 24
"""Logits that a CPU holds whole (67 MB): with a backward pass the chunked head computes them twice.
Without one it scores, also the try of a model: it is what larger micro-batches get."""

LOGIT_SIZE = 50.0
"""Standard deviation of the logits that a model is tried on; caps are 15 to 50."""
MAX_DIFFERENCE = 0.05
"""Share of a log-probability; bf16 rounds it by 0.004."""


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
    """Make `score` work on the model, below any adapter. Raises ConfigError for a model whose
    logits are something else than its output layer's, of the last hidden state."""
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    plain, text, head = base.forward, base.config.get_text_config(), base.get_output_embeddings()
    if hasattr(head, "base_layer"):  # PEFT's
        raise ConfigError("model.lora.target_modules: found the output layer; other layers")
    softcap, scale = getattr(text, "final_logit_softcapping", None), _logit_scale(text)
    if head is not None:
        head.forward = _scoring(head, temperature, softcap, scale)

    def forward(self: Any, *args: Any, scored: torch.Tensor | None = None, **inputs: Any) -> Any:
        if scored is None:
            return plain(*args, **inputs)
        targets = inputs.pop("targets")
        inputs.pop("labels", None)  # PEFT's wrapper passes None
        found = self.base_model(*args, **inputs, use_cache=False)
        hidden = found.last_hidden_state.flatten(0, 1).index_select(0, scored)
        logps, entropy, _, _, is_top = self.get_output_embeddings()(hidden, targets=targets)
        router = None
        if inputs.get("output_router_logits"):
            router = load_balancing_loss_func(
                found.router_logits, text.num_experts, text.num_experts_per_tok
            )
        return {"logps": logps, "entropy": entropy, "is_top": is_top, "router_loss": router}

    if why := _difference(base, types.MethodType(forward, base), temperature):
        raise ConfigError(
            f"model.path: found {type(base).__name__}, which cannot be trained: {why}; a model "
            "whose logits are the output layer of its last hidden state, scaled or capped by a key "
            "of the config that is known here (docs/how-to/models.md)"
        )
    base.forward = types.MethodType(forward, base)


def _scoring(
    head: Any, temperature: float, softcap: float | None, scale: float
) -> Callable[..., Any]:
    """The forward of an output layer, which scores `targets` if there are any."""
    plain, is_plain = head.forward, softcap is None

    def forward(hidden: torch.Tensor, *, targets: torch.Tensor | None = None) -> Any:
        if targets is None:
            return plain(hidden)
        has_backward = torch.is_grad_enabled()
        is_small = hidden.is_cpu and len(hidden) * len(head.weight) <= SMALL
        if has_backward and is_plain and is_small:
            return _of_logits(plain(hidden).float().mul_(scale / temperature), targets)
        extra = ("entropy", "is_top1") if has_backward else ()
        return ChunkedLogProbFunction.apply(
            hidden, head.weight, head.bias, targets, temperature, VOCAB_CHUNK, softcap, scale,
            ("log_probs", *extra),
        )  # fmt: skip

    return forward


def _of_logits(logits: torch.Tensor, targets: torch.Tensor) -> tuple[Any, ...]:
    """The outputs of `ChunkedLogProbFunction`, from all logits. [M, V]"""
    logps = logits.log_softmax(-1)
    with torch.no_grad():
        entropy, is_top = -(logps.exp() * logps).sum(-1), logps.argmax(-1) == targets
    return logps.gather(-1, targets[:, None])[:, 0], entropy, None, None, is_top


class _Given(BaseModelOutputWithPast):
    """A base model's output with no more than a hidden state."""

    def __getattr__(self, name: str) -> None:
        return None


@torch.no_grad()
def _difference(model: Any, scored: Callable[..., Any], temperature: float) -> str:
    """Gives what differs between the model's own logits and the head of `scored`; empty if equal.
    The layers do not run: two hidden states are given, with logits so large that a cap is seen."""
    base, head = model.base_model, model.get_output_embeddings()
    if base is model or head is None:
        return f"it has no {model.base_model_prefix} apart from an output layer"
    weight = head.weight
    hidden = torch.linspace(-3, 3, 2 * weight.size(1)).sin().view(1, 2, -1).to(weight)
    hidden *= LOGIT_SIZE / (hidden @ weight.T).float().std()
    ids = torch.zeros(1, 2, dtype=torch.long, device=weight.device)
    given, calls = _Given(last_hidden_state=hidden), list[Any]()

    def give(*args: Any, **inputs: Any) -> _Given:
        calls.append(inputs)
        return given

    replaced = patch.object(base, "forward", give)
    try:
        with replaced:
            logits = model(input_ids=ids, use_cache=False).logits[0].float()
        targets = logits.argmin(-1)
        with replaced if calls else nullcontext():  # OPT calls the layers themselves
            found = scored(input_ids=ids, scored=torch.arange(2).to(ids), targets=targets)["logps"]
    except (AttributeError, RuntimeError, TypeError) as error:
        return f"its output layer failed: {str(error).partition(chr(10))[0]}"
    want = (logits / temperature).log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    if torch.allclose(found, want, rtol=MAX_DIFFERENCE):
        return ""
    return f"its log-probability is {want[0]:.1f} where the output layer alone has {found[0]:.1f}"


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
