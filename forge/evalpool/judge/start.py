"""Starts a judge: `python -m forge.evalpool.judge.start CONFIG`.

Its zygotes come first: they import torch, which takes longer than all else, while this process
imports the judge.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.children.spawner import Spawner
from forge.process.lease import hold_lease
from forge.process.machine import use_one_heap

if TYPE_CHECKING:
    from collections.abc import Mapping


SWITCH_S = 0.0005
"""Time for which a thread keeps Python's lock: with a card there are 16 verdicts at work, most of
which wait for the card, and each call of torch gives the lock away."""


def main() -> None:
    """Runs until SIGTERM."""
    use_one_heap()
    config = hold_lease()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    spawner = _spawner(config)
    spawner.start()
    card_spawner = None
    if gpu := config.get("gpu"):
        sys.setswitchinterval(SWITCH_S)
        card_spawner = _spawner(config, is_gpu=True, gpu_minor=gpu["minor"])
        card_spawner.start()

    from forge.config.schema import JudgeTable
    from forge.evalpool.judge.app import Judge, make_app
    from forge.process.server.serving import serve

    judge = Judge(
        table=JudgeTable.model_validate(config["table"]),
        spawner=spawner,
        card_spawner=card_spawner,
        concurrency=config["concurrency"],
        gpu_uuid=gpu and gpu["uuid"],
    )
    serve(make_app(judge), Path(config["socket_path"]), network=config.get("network"))


def _spawner(
    config: Mapping[str, Any], *, is_gpu: bool = False, gpu_minor: int | None = None
) -> Spawner:
    """A spawner, with the card's files if `is_gpu`; without `gpu_minor`, the number of the card's
    device file, children see all such files."""
    table = config["table"]
    # In the run's private directory, removed with it.
    folder = Path(config["socket_path"]).with_suffix(".card" if is_gpu else ".root")
    return Spawner(
        isolation=table["isolation"],
        folder=folder,
        memory_bytes=table["memory_bytes"],
        cores=tuple(config["cores"]),
        num_children=config["concurrency"],
        is_gpu=is_gpu,
        gpu_minor=gpu_minor,
        site_packages=tuple(table["site_packages"]),
        harvests=config.get("harvests", ""),
    )


if __name__ == "__main__":
    main()
