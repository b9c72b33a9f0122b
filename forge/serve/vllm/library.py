"""The parts of vLLM 0.24 that the engine uses, and starting it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from forge.process.gpu_locks import card_turns
from forge.serve.vllm.settings import VllmSettings, engine_arguments, environment


@dataclass(slots=True)
class Counters:
    """Numbers of vLLM's scheduler after a step; updated by its listener."""

    running: int = 0
    kv_use: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Vllm:
    """The parts of the library that forge uses: an engine, and constructors of its arguments."""

    llm: Any
    make_sampling: Callable[..., Any]
    """SamplingParams, with its output_kind by name."""
    make_lora: Callable[..., Any]
    make_prompt: Callable[[list[int]], Any]
    dead_error: type[Exception]
    num_vocab: int
    counters: Counters = field(default_factory=Counters)


def open_vllm(settings: VllmSettings) -> Vllm:
    """Start EngineCore: a minute with CUDA graphs, less without. Raises vLLM's errors."""
    for name, value in environment(settings).items():
        os.environ.setdefault(name, value)
    from vllm.engine.arg_utils import AsyncEngineArgs  # pyright: ignore[reportMissingImports]
    from vllm.inputs.engine import tokens_input  # pyright: ignore[reportMissingImports]
    from vllm.lora.request import LoRARequest  # pyright: ignore[reportMissingImports]
    from vllm.sampling_params import (  # pyright: ignore[reportMissingImports]
        RequestOutputKind,
        SamplingParams,
    )
    from vllm.v1.engine.async_llm import AsyncLLM  # pyright: ignore[reportMissingImports]
    from vllm.v1.engine.exceptions import (  # pyright: ignore[reportMissingImports]
        EngineDeadError,
    )

    def make_sampling(*, output_kind: str, **arguments: Any) -> Any:
        return SamplingParams(output_kind=RequestOutputKind[output_kind], **arguments)

    counters = Counters()
    # Timing waits until the weights are loaded and the graphs are captured.
    with card_turns(settings.shared_gpus)():
        llm = AsyncLLM.from_engine_args(
            AsyncEngineArgs(**engine_arguments(settings)), stat_loggers=[_listener(counters)]
        )
    count_no_tokens(llm)
    return Vllm(
        llm=llm,
        make_sampling=make_sampling,
        make_lora=LoRARequest,
        make_prompt=tokens_input,
        dead_error=EngineDeadError,
        num_vocab=llm.model_config.get_vocab_size(),
        counters=counters,
    )


def count_no_tokens(llm: Any) -> None:
    """Keep vLLM's scheduler statistics and disable those of each token: with log probabilities,
    Python code for each token in this process limits the tokens per second.

    AsyncLLM starts its output handler again with the first request, and then reads `log_stats`."""
    llm.output_handler.cancel()
    llm.output_handler = None
    llm.log_stats = llm.output_processor.log_stats = False
    llm.output_processor.lora_states.log_stats = False


def _listener(counters: Counters) -> type:
    """A class that vLLM instantiates and calls after each step. It derives from the Prometheus
    logger, which vLLM would add otherwise and which costs more than the rest of a step's
    bookkeeping."""
    from vllm.v1.metrics.loggers import (  # pyright: ignore[reportMissingImports]
        PrometheusStatLogger,
    )

    class Listener(PrometheusStatLogger):
        def __init__(self, vllm_config: Any, engine_indexes: list[int] | None = None) -> None:
            del vllm_config, engine_indexes

        def record(
            self,
            scheduler_stats: Any,
            iteration_stats: Any,
            mm_cache_stats: Any = None,
            engine_idx: int = 0,
        ) -> None:
            del iteration_stats, mm_cache_stats, engine_idx
            note_step(counters, scheduler_stats)

        def log_engine_initialized(self) -> None:
            return

        def log(self) -> None:
            return

        def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None:
            del sleep, level

    return Listener


def note_step(counters: Counters, scheduled: Any) -> None:
    if scheduled is not None:
        counters.running = scheduled.num_running_reqs
        counters.kv_use = scheduled.kv_cache_usage
