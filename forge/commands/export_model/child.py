"""A child process that does one job and leaves its result in a file."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio

from forge.process.child import ChildSpec, open_child
from forge.process.environment import child_env

TIMEOUT_S = 7200.0
"""Maximum duration of a job: a large model is read, merged and written on the CPU."""
QUIET = {"TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"}


async def run_child(module: str, job: dict[str, Any]) -> dict[str, Any]:
    """Run `python -m MODULE` with a config; returns the JSON of its result file.

    Raises:
        ChildDied: it ended without a result; the message has the last lines of its log.
        Stalled: it took longer than two hours.
    """
    name = module.rpartition(".")[2]
    threads = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="forge-export-") as folder:
        result = Path(folder, "result.json")
        spec = ChildSpec(
            name=name,
            argv=(sys.executable, "-m", module),
            log_path=Path(folder, f"{name}.log"),
            env=child_env(threads=threads, extra=QUIET),
            socket_path=None,
            config={**job, "threads": threads, "result_path": str(result)},
        )
        async with open_child(spec) as child:
            with anyio.move_on_after(TIMEOUT_S) as scope:
                await child.wait()
            if scope.cancelled_caught:
                raise child.stalled(asked="an exported model", silent_s=TIMEOUT_S)
            if not result.is_file():
                raise child.died(doing="exporting the model")
        return json.loads(result.read_text())
