"""`python -m forge.serve.llama CONFIG.json`: the process of a llama.cpp replica."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forge.process.lease import hold_lease
from forge.serve.engine.endpoints import log_to_stderr, serve_stepped
from forge.serve.llama.checkpoint import Precision
from forge.serve.llama.engine import MAX_SLOTS, LlamaEngine
from forge.serve.llama.model import ModelSettings

logger = logging.getLogger(__name__)


def _make_engine(config: Mapping[str, Any]) -> LlamaEngine:
    if config["slots"] > MAX_SLOTS:
        logger.warning("%d slots asked, %d served: one is for scoring", config["slots"], MAX_SLOTS)
    settings = ModelSettings(
        model_dir=Path(config["model_dir"]),
        work_dir=Path(config["work_dir"]),
        context_tokens=config["context_tokens"],
        precision=Precision(config["precision"]),
        threads=config["threads"],
        gpu_layers=config.get("gpu_layers", 0),
    )
    return LlamaEngine(
        settings, num_slots=min(config["slots"], MAX_SLOTS), version=config.get("version", 0)
    )


def main() -> int:
    config = hold_lease()
    log_to_stderr()
    logging.getLogger("gguf").setLevel(logging.WARNING)
    return serve_stepped(lambda: _make_engine(config), config, name="llama")


if __name__ == "__main__":
    sys.exit(main())
