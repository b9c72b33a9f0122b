"""Drawing one token for each row of logits, on the logits' device.

Called by `engine`. Promises: the distribution and the random numbers equal those of
`forge.serve.llama.sampler`, so equal logits give equal tokens; R numbers leave the device, not
R × V. Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch

from forge.serve.engine.draws import Draw, Knobs


def draw(logits: torch.Tensor, knobs: Knobs, uniform: np.ndarray) -> Draw:
    """Draw one token for each row. `logits` [R, V] have any element type; `uniform` is [R]."""
    logits_RV = logits.float()
    is_greedy = knobs.temperature == 0.0
    temperature = np.where(is_greedy, 1.0, knobs.temperature)
    plain_RV = torch.log_softmax(logits_RV, dim=-1)
    sampled_RV = plain_RV
    if (temperature != 1.0).any():
        scaled_RV = logits_RV / _on(temperature, logits_RV)[:, None].float()
        sampled_RV = torch.log_softmax(scaled_RV, dim=-1)
    is_cut = ((knobs.top_k > 0) | (knobs.top_p < 1.0)) & ~is_greedy
    if is_cut.any():
        rows = _on(np.flatnonzero(is_cut), logits_RV)
        sampled_RV = sampled_RV.clone()
        sampled_RV[rows] = _truncated(sampled_RV[rows], knobs[np.flatnonzero(is_cut)])
    drawn_R = _inverted(sampled_RV.exp(), _on(uniform, logits_RV))
    token_R = torch.where(_on(is_greedy, logits_RV), logits_RV.argmax(dim=-1), drawn_R)
    chosen_R1 = token_R[:, None]
    return Draw(
        token=token_R.cpu().numpy(),
        logprob=sampled_RV.gather(1, chosen_R1)[:, 0].cpu().numpy(),
        is_finite=torch.isfinite(plain_RV.amax(dim=-1)).cpu().numpy(),
    )


def _inverted(probs_RV: torch.Tensor, uniform_R: torch.Tensor) -> torch.Tensor:
    """First index whose cumulative probability exceeds uniform · total; never one with probability
    0. [R]"""
    cumulative_RV = probs_RV.cumsum(dim=-1, dtype=torch.float64)
    total_R = cumulative_RV[:, -1]
    below_total_R = torch.nextafter(total_R, torch.zeros_like(total_R))
    target_R = torch.minimum(uniform_R * total_R, below_total_R)
    token_R1 = torch.searchsorted(cumulative_RV, target_R[:, None], right=True)
    return token_R1[:, 0].clamp(max=probs_RV.shape[1] - 1)


def _truncated(logprobs_RV: torch.Tensor, knobs: Knobs) -> torch.Tensor:
    """Log probabilities renormalised after top-k and then top-p; -inf for the others. [R, V]"""
    num_vocab = logprobs_RV.shape[1]
    order_RV = logprobs_RV.argsort(dim=-1, descending=True, stable=True)
    probs_RV = logprobs_RV.gather(1, order_RV).exp().double()
    keep_R = np.where(knobs.top_k > 0, np.minimum(knobs.top_k, num_vocab), num_vocab)
    rank_V = torch.arange(num_vocab, device=logprobs_RV.device)
    probs_RV = torch.where(rank_V < _on(keep_R, logprobs_RV)[:, None], probs_RV, 0.0)
    mass_RV = probs_RV.cumsum(dim=-1)
    limit_R1 = _on(knobs.top_p, logprobs_RV)[:, None] * mass_RV[:, -1:]
    # A token stays if the mass before it is below the limit; at top_p 1 all that top-k left stay.
    is_kept_RV = (mass_RV - probs_RV < limit_R1) & (probs_RV > 0)
    kept_RV = torch.zeros_like(is_kept_RV).scatter(1, order_RV, is_kept_RV)
    return torch.log_softmax(logprobs_RV.masked_fill(~kept_RV, -torch.inf), dim=-1)


def _on(array: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(like.device)
