"""TRL's AsyncGRPOTrainer on given samples, for `bench/trainers.py`.

It packs a batch into one row that forwards a prefix once for all samples that share it. Flash
attention is torch's own kernel; worker and weight transfer are its own protocols.
"""

from __future__ import annotations

import argparse
import queue
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from trainers import Clock

    from forge.records import Sample

SPARE_BATCHES = 3
"""A row is closed by the first sample of the next, and rows are taken ahead."""


def run_async(
    batches: list[list[Sample]], *, model_dir: Path, at: Path, clock: Clock
) -> tuple[list[float], float, float]:
    """TRL's, fed from a queue, each batch one row. The last batches only feed its prefetching."""
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl.experimental.async_grpo import async_grpo_trainer as module
    from trl.experimental.async_grpo import packing
    from trl.experimental.async_grpo.async_grpo_config import AsyncGRPOConfig
    from trl.experimental.async_grpo.async_grpo_trainer import AsyncGRPOTrainer

    patched: Any = module
    patched.VLLMClient = lambda *args: None
    patched.get_peak_flops_per_device = lambda *args: None
    packing._flash_attn = lambda: argparse.Namespace(flash_attn_varlen_func=_attend)

    class Tick(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            clock.tick()

        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.append(dict(kwargs["logs"]))

    class Samples:
        """TRL's worker protocol: everything is there from the start."""

        def __init__(self) -> None:
            self.rollout_buffer, self.metrics_queue = queue.Queue(), queue.Queue()
            for sample in (each for samples in batches for each in rollout_samples(samples)):
                self.rollout_buffer.put(sample)

        def start(self) -> None: ...

        def stop(self) -> None: ...

        def update_model_version(self, version: int) -> None: ...

        def check_health(self, stale_after_s: float) -> None: ...

    class NoTransfer:
        def init_weight_transfer(self) -> None: ...

        pause = resume = destroy = init_weight_transfer

        def send_weights(self, iterator: Any) -> None: ...

    on_gpu = torch.cuda.is_available()
    arguments = AsyncGRPOConfig(
        output_dir=str(at / "async"), max_steps=len(batches) - SPARE_BATCHES,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=1, token_budget=unique_tokens(batches[0]), learning_rate=1e-6,
        max_staleness=10**6, weight_sync_steps=10**6, epsilon=0.2, epsilon_high=0.28,
        temperature=1.0, logging_steps=1, save_strategy="no", bf16=on_gpu, use_cpu=not on_gpu,
        gradient_checkpointing=on_gpu, report_to=[], disable_tqdm=True, seed=0,
        optim="adamw_torch_fused", max_grad_norm=1.0,
    )  # fmt: skip
    seen: list[dict[str, float]] = []
    worker: Any = Samples()
    trainer = AsyncGRPOTrainer(
        model=str(model_dir), args=arguments, train_dataset=Dataset.from_dict({"prompt": ["x"]}),
        processing_class=AutoTokenizer.from_pretrained(model_dir), rollout_worker=worker,
        weight_transfer=NoTransfer(), callbacks=[Tick()],
    )  # fmt: skip
    clock.start()
    trainer.train()
    logs = [each for each in seen if "loss" in each]
    forwarded = [each["batch/forwarded_tokens_per_step"] for each in logs]
    return [each["loss"] for each in logs], logs[0]["grad_norm"], statistics.median(forwarded)


def _attend(
    q: Any, k: Any, v: Any, ends_q: Any, ends_k: Any, max_q: int, max_k: int, **options: Any
) -> Any:
    """flash-attn's varlen function, as far as TRL uses it for models without windows."""
    from forge.train.trainer.varlen import attend_to_own_keys

    return attend_to_own_keys(
        q, k, v, ends_q=ends_q, ends_k=ends_k, max_q=int(max_q), max_k=int(max_k),
        scale=options["softmax_scale"],
    )  # fmt: skip


def unique_tokens(samples: list[Sample]) -> int:
    """Of a batch whose prefixes are shared: as a row's budget it holds exactly that batch, since a
    sample of the next one has tokens of its own."""
    from trl.experimental.async_grpo.packing import TreeRow

    row = TreeRow()
    for sample in rollout_dicts(samples):
        row.add(sample)
    return len(row.tokens)


def rollout_dicts(samples: list[Sample]) -> list[dict[str, Any]]:
    """As TRL's rows take them."""
    return [
        {
            "input_ids": np.array([*s.prompt_ids, *s.completion_ids]),
            "completion_mask": np.array([0] * len(s.prompt_ids) + [1] * len(s.completion_ids)),
            "old_log_probs": np.array([0.0] * len(s.prompt_ids) + list(s.logprobs), np.float32),
            "advantage": s.advantage,
            "group_id": s.group_id,
        }
        for s in samples
    ]


def rollout_samples(samples: list[Sample]) -> list[Any]:
    """As TRL's queue takes them."""
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

    return [
        RolloutSample(
            prompt=[], completion=[], model_version=1, metrics={"reward": 0.0},
            enqueued_at=time.time(), **each,
        )
        for each in rollout_dicts(samples)
    ]  # fmt: skip
