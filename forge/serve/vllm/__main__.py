"""`python -m forge.serve.vllm CONFIG.json`: the process of a vLLM replica.

AsyncLLM must be made inside the event loop that uses it, and by the main thread: EngineCore ends
with the thread that started it. So the engine starts with the server, and /health answers once it
can serve.

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
from forge.serve.engine.endpoints import log_to_stderr, make_endpoints
from forge.serve.vllm.engine import (
    VllmEngine,
    VllmSettings,
    engine_arguments,
    open_vllm,
    read_settings,
)

logger = logging.getLogger(__name__)

STOP_S = 5.0
"""Time for EngineCore to end by itself when the server stops."""


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
