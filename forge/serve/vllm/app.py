"""`python -m forge.serve.vllm.app CONFIG.json`: the process of a vLLM replica.

Started by `forge.serve.replicas`. AsyncLLM must be made inside the event loop that uses it, and by
the main thread: EngineCore ends with the thread that started it. So the engine starts with the
server, and /health answers once it can serve.

    this process: HTTP, AsyncLLM ── zmq ──▶ EngineCore: scheduler, GPU ──▶ more ranks, if configured
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Mount

from forge.errors import ConfigError, MachineError
from forge.process.lease import hold_lease
from forge.process.server.serving import serve
from forge.serve.engine.card import card_turns
from forge.serve.engine.main import log_to_stderr, make_endpoints
from forge.serve.vllm.engine import VllmEngine
from forge.serve.vllm.flight import Counters, Vllm
from forge.serve.vllm.settings import VllmSettings, engine_arguments, environment, read_settings

logger = logging.getLogger(__name__)

STOP_S = 5.0
"""Time for EngineCore to end by itself when the server stops."""


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
    """Keep the numbers of a step: vLLM's SchedulerStats, or None."""
    if scheduled is not None:
        counters.running = scheduled.num_running_reqs
        counters.kv_use = scheduled.kv_cache_usage


def make_app(config: Mapping[str, Any], settings: VllmSettings) -> Starlette:
    """The application; its endpoints exist once the engine can serve."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            vllm = open_vllm(settings)
        except Exception as error:  # any class; vLLM's own log lines above give the cause
            logger.error("vLLM did not start: %s", " ".join(str(error).split())[:500])
            # Immediately: the server's traceback would displace vLLM's from the last lines shown.
            os._exit(MachineError.exit_code)
        try:
            engine = VllmEngine(vllm, settings)
            await engine.start()
            app.router.routes.append(Mount("/", make_endpoints(engine, config).app()))
            gc.freeze()
            yield
        finally:
            vllm.llm.shutdown(timeout=STOP_S)

    return Starlette(lifespan=lifespan)


def main() -> int:
    """Serve until SIGTERM."""
    config = hold_lease()
    log_to_stderr()
    try:
        settings = read_settings(config)
        engine_arguments(settings)
    except ConfigError as error:
        logger.error("%s", error)
        return error.exit_code
    app = make_app(config, settings)
    serve(app, Path(config["socket_path"]), network=config.get("network"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
