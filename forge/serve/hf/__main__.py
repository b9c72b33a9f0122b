"""`python -m forge.serve.hf CONFIG.json`: the process of a transformers replica.

Started by `forge.serve.replicas`. It serves on the first visible GPU, or else on the CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forge.process.lease import collector_paused, hold_lease
from forge.serve.engine.endpoints import log_to_stderr, serve_stepped

with collector_paused():
    import torch

    from forge.serve.hf.engine import HfEngine, HfSettings


def settings_from(config: Mapping[str, Any], *, has_gpu: bool) -> HfSettings:
    """Read the supervisor's config."""
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
    return serve_stepped(lambda: HfEngine(settings), config, name="hf")


if __name__ == "__main__":
    sys.exit(main())
