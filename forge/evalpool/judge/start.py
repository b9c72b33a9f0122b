"""Starts a judge: `python -m forge.evalpool.judge.start CONFIG`.

Its zygotes come first: they import torch, which takes longer than all else, while this process
imports the judge.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

from forge.evalpool.judge.children.spawner import Spawner
from forge.process.lease import collector_paused, end_process, hold_lease
from forge.process.machine import use_one_heap

SWITCH_S = 0.0005
"""Time for which a thread keeps Python's lock: with a card there are 16 verdicts at work, most of
which wait for the card, and each call of torch gives the lock away."""


def main() -> None:
    """Runs until SIGTERM."""
    use_one_heap()
    config = hold_lease()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    table, at = config["table"], Path(config["socket_path"])
    common: Any = {
        **{name: table[name] for name in ("isolation", "memory_bytes")},
        "cores": tuple(config["cores"]), "num_children": config["concurrency"],
        "site_packages": tuple(table["site_packages"]), "harvests": config.get("harvests", ""),
    }  # fmt: skip
    # Their folders are in the run's private directory, removed with it.
    spawner = Spawner(folder=at.with_suffix(".root"), **common)
    spawner.start()
    card_spawner = None
    if gpu := config.get("gpu"):
        sys.setswitchinterval(SWITCH_S)
        folder, minor = at.with_suffix(".card"), gpu["minor"]
        card_spawner = Spawner(folder=folder, is_gpu=True, gpu_minor=minor, **common)
        card_spawner.start()

    with collector_paused():
        from forge.config.schema import JudgeTable
        from forge.evalpool.judge.app import Judge, make_app
        from forge.process.server.serving import serve

    judge = Judge(
        table=JudgeTable.model_validate(table),
        spawner=spawner,
        card_spawner=card_spawner,
        concurrency=config["concurrency"],
        gpu_uuid=gpu and gpu["uuid"],
    )
    serve(make_app(judge), at, network=config.get("network"))
    end_process()


if __name__ == "__main__":
    main()
