"""Arguments for vLLM: the supervisor's config as engine arguments, a request as sampling
parameters. Pure, and does not import vLLM. Names are those of `AsyncEngineArgs` and
`SamplingParams` in vLLM 0.24.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge.errors import ConfigError
from forge.serve.checkpoint_files import read_json
from forge.serve.engine.rows import sample_seed
from forge.serve.port import Request

LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM has kernels for; 1 is left out, since 8 costs no more."""
MAX_LORAS = 4
"""Adapters served at once: the newest, and those of unfinished samples. One of rank 64 on an 8B
model takes 340 MB."""
BATCH_TOKENS = 8192
"""Tokens of one step: enough for prompts to use the GPU, few enough for decoding never to wait
long."""

QUIET = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # It cannot return the log probabilities that we need, and it looks for a compiler.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    # Ranks of a replica meet on this host.
    "VLLM_HOST_IP": "127.0.0.1",
}
"""Environment of the child; the experiment's `serve.env` replaces entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    model_dir: Path
    context_tokens: int
    slots: int
    is_exact: bool
    memory_share: float
    tensor_parallel: int
    is_eager: bool
    max_lora_rank: int
    """Maximum rank of adapters; 0 if none will be served."""
    shared_gpus: tuple[str, ...]
    """UUIDs of GPUs on which other processes time kernels or train."""
    seed: int
    version: int
    max_positions: int | None
    """Longest sequence of the model; None if its config does not say."""

    @property
    def can_sleep(self) -> bool:
        """True on a shared GPU. Elsewhere it is not worth its cost: vLLM must keep weights
        movable."""
        return bool(self.shared_gpus)


def read_settings(config: Mapping[str, Any]) -> VllmSettings:
    """Read the supervisor's config. Raises ConfigError for a context that is longer than the
    model's, and for several ranks on shared GPUs: a rank that waits for its turn would block the
    other, which waits for it in turn."""
    model_dir = Path(config["model_dir"])
    found = read_json(model_dir / "config.json")
    text = found.get("text_config") or found
    max_positions = text.get("max_position_embeddings")
    context_tokens = config["context_tokens"]
    if max_positions is not None and context_tokens > max_positions:
        raise ConfigError(
            f"serve.context_tokens = {context_tokens}: {model_dir} knows {max_positions} positions"
        )
    if config.get("tensor_parallel", 1) > 1 and config.get("shared_gpus"):
        raise ConfigError("serve.tensor_parallel above 1 needs GPUs that are not shared")
    return VllmSettings(
        model_dir=model_dir,
        context_tokens=context_tokens,
        slots=config["slots"],
        is_exact=config["precision"] == "exact",
        memory_share=config.get("memory_share", 0.85),
        tensor_parallel=config.get("tensor_parallel", 1),
        is_eager=config.get("eager", False),
        max_lora_rank=config.get("max_lora_rank", 0),
        shared_gpus=tuple(config.get("shared_gpus", ())),
        seed=config.get("seed", 0),
        version=config.get("version", 0),
        max_positions=max_positions,
    )


def environment(settings: VllmSettings) -> dict[str, str]:
    """Variables to set before vLLM is imported, unless they are set already."""
    long = settings.max_positions is not None and _model_len(settings) > settings.max_positions
    # The extra position is never evaluated: it is room for the token that a score generates.
    return QUIET | ({"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"} if long else {})


def engine_arguments(settings: VllmSettings) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "model": str(settings.model_dir),
        "dtype": "float32" if settings.is_exact else "bfloat16",
        "seed": settings.seed,
        "max_model_len": _model_len(settings),
        "max_num_seqs": settings.slots,
        "max_num_batched_tokens": max(BATCH_TOKENS, settings.slots),
        "gpu_memory_utilization": settings.memory_share,
        "tensor_parallel_size": settings.tensor_parallel,
        "enforce_eager": settings.is_eager,
        "enable_prefix_caching": True,
        # Token ids in and out: texts are ours.
        "skip_tokenizer_init": True,
        # Of the sampled distribution, as in every engine of ours.
        "logprobs_mode": "processed_logprobs",
        # A checkpoint's own sampling defaults are not ours.
        "generation_config": "vllm",
        "worker_extension_cls": "forge.serve.vllm.extension.ForgeWorker",
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "enable_sleep_mode": settings.can_sleep,
    }
    if settings.max_lora_rank:
        arguments |= {
            "enable_lora": True,
            "max_lora_rank": lora_rank(settings.max_lora_rank),
            "max_loras": MAX_LORAS,
            "max_cpu_loras": MAX_LORAS,
        }
    if settings.shared_gpus:
        # Each step must be done with the GPU when it ends, so none is queued in advance.
        arguments["async_scheduling"] = False
    return arguments


def _model_len(settings: VllmSettings) -> int:
    """A score generates one token after the last, and vLLM needs room for it."""
    return settings.context_tokens + 1


def lora_rank(rank: int) -> int:
    """The smallest rank of vLLM that holds `rank`. Raises ConfigError above the largest."""
    if rank > LORA_RANKS[-1]:
        raise ConfigError(f"model.lora.r = {rank}: vllm serves up to {LORA_RANKS[-1]}")
    return next(size for size in LORA_RANKS if size >= rank)


def sampling_arguments(request: Request, index: int) -> dict[str, Any]:
    """Keywords of `SamplingParams` for one sample of a request."""
    return {
        "n": 1,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "seed": sample_seed(request.seed, index),
        "max_tokens": request.max_tokens,
        "stop_token_ids": list(request.stop_token_ids),
        # Only the request's stop tokens end a completion.
        "ignore_eos": True,
        # Only the sampled token's log probability.
        "logprobs": 0,
        "flat_logprobs": True,
        "detokenize": False,
        "skip_clone": True,
    }


def scoring_arguments() -> dict[str, Any]:
    """Keywords of `SamplingParams` for the log probabilities of a prompt's own tokens."""
    return {
        "n": 1,
        "temperature": 0.0,
        "max_tokens": 1,
        "ignore_eos": True,
        "prompt_logprobs": 0,
        "detokenize": False,
    }
