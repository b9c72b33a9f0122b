"""Gradients of a model whose output layer FSDP2 shards over the ranks of this environment, on CPUs.

`python -m tests.train.sharded OUT PRECISION`: rank 0 writes them. With `bf16` the shards are
trained as on GPUs, under accelerate's policy with our sums.
"""

import sys
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from forge.train.trainer.child.trainer import with_exact_sums
from forge.train.trainer.packed.head import add_head, score
from forge.train.trainer.packed.sequences import RowLayout, Sequence, cut_batch


def untied_model() -> Any:
    """A random Qwen3 of one layer, always the same."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, tie_word_embeddings=False,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    add_head(model)
    return model


def gradients(model: Any, *, rank: int = 0, num_ranks: int = 1) -> dict[str, torch.Tensor]:
    """Whole gradients of a batch in several micro-batches, of which each rank has its share."""
    draw = np.random.default_rng(0)
    batch = [
        Sequence(ids=draw.integers(0, 64, n), trained=np.arange(2, n), values={"weight": 1 / 60})
        for n in (9, 14, 17, 20)
    ]
    layout = RowLayout.PADDED
    for m in cut_batch(batch, max_tokens=20, layout=layout, rank=rank, num_ranks=num_ranks):
        loss = -(score(model, m).logps * m.values["weight"]).sum()
        (loss * num_ranks).backward()
    grads: dict[str, Any] = {name: p.grad for name, p in model.named_parameters()}
    return {n: g.full_tensor() if hasattr(g, "full_tensor") else g for n, g in grads.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    model = untied_model()
    mesh = init_device_mesh("cpu", (num_ranks,))
    policy = MixedPrecisionPolicy()
    if sys.argv[2] == "bf16":
        half = torch.bfloat16
        policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=half, output_dtype=half)
        policy = with_exact_sums(policy)
    for unit in (model.lm_head, model):
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    found = gradients(model, rank=rank, num_ranks=num_ranks)
    if rank == 0:
        torch.save(found, sys.argv[1])
    dist.destroy_process_group()
