"""A transformers replica's process: `python -m forge.serve.hf.app CONFIG.json`, one engine thread
behind the endpoints of `forge.serve.engine.app`.

Started by `forge.serve.replicas`. It serves on the first GPU that it can see, else on the CPU.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from forge.errors import ForgeError
from forge.process.lease import hold_lease
from forge.serve.engine.app import log_to_stderr, serve_engine
from forge.serve.engine.card import card_turns
from forge.serve.engine.worker import Worker
from forge.serve.hf.engine import HfEngine, HfSettings

logger = logging.getLogger(__name__)


def settings_from(config: Mapping[str, Any], *, has_gpu: bool) -> HfSettings:
    """What the supervisor's config asks of this engine."""
    return HfSettings(
        model_dir=Path(config["model_dir"]),
        context_tokens=config["context_tokens"],
        num_slots=config["slots"],
        is_exact=config["precision"] == "exact",
        device="cuda" if has_gpu else "cpu",
        version=config.get("version", 0),
    )


def main() -> int:
    """Serve until SIGTERM."""
    config = hold_lease()
    log_to_stderr()
    torch.set_num_threads(config["threads"])
    settings = settings_from(config, has_gpu=torch.cuda.is_available())
    worker = Worker(
        lambda: HfEngine(settings), name="hf", turns=card_turns(config.get("shared_gpus", ()))
    )
    try:
        worker.start()
    except ForgeError as error:
        logger.error("%s", error)
        return error.exit_code
    serve_engine(worker, config)
    worker.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
