"""The `main` of an engine child, after its engine is made: logging, serving until SIGTERM.

Called by the `app` modules of llama, hf and vllm.
"""

# pyright: strict

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.errors import ForgeError
from forge.process.server.serving import serve
from forge.serve.engine.app import Endpoints
from forge.serve.engine.card import card_turns
from forge.serve.engine.chat import Texts
from forge.serve.engine.worker import StepEngine, Worker

if TYPE_CHECKING:
    from forge.serve.port import EnginePort

logger = logging.getLogger(__name__)


def log_to_stderr() -> None:
    """Log to stderr, which the supervisor writes into the child's log file."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )


def make_endpoints(engine: EnginePort, config: Mapping[str, Any]) -> Endpoints:
    """The endpoints of an engine, with the supervisor's config."""
    return Endpoints(
        engine,
        texts=Texts(Path(config["model_dir"])),
        stop=config.get("stop_token_ids", ()),
        context_tokens=config["context_tokens"],
    )


def serve_engine(engine: EnginePort, config: Mapping[str, Any]) -> None:
    """Serve on the config's socket until SIGTERM."""
    # Objects made at start live until the end: the collector need not visit them at every pass.
    gc.freeze()
    app = make_endpoints(engine, config).app()
    serve(app, Path(config["socket_path"]), network=config.get("network"))


def serve_stepped(
    make_engine: Callable[[], StepEngine], config: Mapping[str, Any], *, name: str
) -> int:
    """Serve an engine that a Worker steps, until SIGTERM. Returns the process's exit code."""
    worker = Worker(make_engine, name=name, turns=card_turns(config.get("shared_gpus", ())))
    try:
        worker.start()
    except ForgeError as error:
        logger.error("%s", error)
        return error.exit_code
    serve_engine(worker, config)
    worker.stop()
    return 0
