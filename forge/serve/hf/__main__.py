"""`python -m forge.serve.hf CONFIG.json`: a transformers replica, on the first GPU or the CPU."""

from __future__ import annotations

from pathlib import Path

from forge.process.lease import collector_paused, end_process, hold_lease
from forge.serve.engine.endpoints import log_to_stderr, serve_stepped

with collector_paused():
    import torch

    from forge.serve.hf.engine import HfEngine, HfSettings


def main() -> int:
    config = hold_lease()
    log_to_stderr()
    torch.set_num_threads(config["threads"])
    settings = HfSettings(
        model_dir=Path(config["model_dir"]),
        context_tokens=config["context_tokens"],
        num_slots=config["slots"],
        is_exact=config["precision"] == "exact",
        device="cuda" if torch.cuda.is_available() else "cpu",
        version=config.get("version", 0),
    )
    return serve_stepped(lambda: HfEngine(settings), config, name="hf")


if __name__ == "__main__":
    end_process(main())
