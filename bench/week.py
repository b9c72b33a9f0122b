"""A week of a run in minutes: everything that the supervisor does at each step, without a model.

    .venv/bin/python bench/week.py --steps 200000 [--folder /dev/shm] [--out week.json]

Each step has a group of 2 rollouts, one turn each; every 100 steps an evaluation. Printed by tenth
of the steps: milliseconds a step (wall, and processor time of all threads), resident memory and its
parts (Python's objects, SQLite), sizes of the databases. At the end: the time of `forge show` and
`forge status --json`.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import anyio
import psutil
from week_canned import PROMPTS, CannedPool, CannedPrompter, CannedReplicas, problems, train

from forge.config.load import dump_experiment, load_experiment
from forge.rollout.batches import count_from
from forge.runner import run as run_module
from forge.runner.attempt import keep_counters
from forge.runner.live.progress import Console
from forge.runner.outlets import summary
from forge.runner.past import EarlierAttempts
from forge.runner.plan.placement import Placement
from forge.runner.stages import grpo
from forge.runner.stages.desk import TrainerDesk
from forge.runner.stages.run_context import RunContext
from forge.runner.weights.resume import StartingWeights
from forge.runner.weights.sync import TurnGate, WeightSync
from forge.runner.work import Work
from forge.serve.weights import Weights
from forge.store.layout import RunPaths, create_run, write_file

PARTS = 10
EXPERIMENT = """\
name = "week"
[prompt]
preset = "tiny"
[model]
path = "{model}"
[rollout]
group_size = 2
groups_per_step = 1
max_turns = 1
sampler = "priority"
[eval]
every = 100
num_problems = 4
[store]
keep_tokens = "last:20"
[[stage]]
kind = "grpo"
steps = {steps}
learning_rate = 1e-6
save_every = {save_every}
"""
SAVE_EVERY = 100


async def simulate(
    store_dir: Path, *, steps: int, on_step: Callable[[int, RunContext], None]
) -> RunPaths:
    """Supervises a new run in `store_dir` whose work is one GRPO stage; `on_step` is called after
    each step."""
    text = EXPERIMENT.format(model=store_dir.absolute(), steps=steps, save_every=SAVE_EVERY)
    write_file(store_dir / "week.toml", text)
    experiment = load_experiment(store_dir / "week.toml")
    paths = create_run("week", store_dir=store_dir)
    write_file(paths.experiment, dump_experiment(experiment))

    async def play(work: Work) -> None:
        run = work.run
        await use_canned_parts(run)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep_counters, run)
            await work._run_stage(0, experiment.stage[0])
            tasks.cancel_scope.cancel()

    async def own_trainer(
        run: RunContext, stage: Any, desk: TrainerDesk, *_: Any, **__: Any
    ) -> None:
        await train(
            run, desk, steps=steps, save_every=SAVE_EVERY, on_step=lambda step: on_step(step, run)
        )

    with (
        patch.object(Work, "run_to_end", play),
        patch.object(grpo, "own_trainer", own_trainer),
        patch.object(run_module, "log_to"),
        patch.object(summary, "show_summary"),
    ):
        await run_module._supervise(
            paths, experiment, EarlierAttempts(), Console(quiet=True), Placement()
        )
    return paths


async def use_canned_parts(run: RunContext) -> None:
    """Sets on `run` what is prepared before the first stage."""
    run.problems = problems()
    await run.writer.put(*run.problems)
    run.weights = WeightSync(
        StartingWeights(weights=Weights(full=run.paths.root)), attempt=run.attempt,
        precision="exact", gate=TurnGate(timeout_s=60.0), sink=run.writer,
    )  # fmt: skip
    run.pool, run.replicas = CannedPool(), CannedReplicas(run.paths.root)
    run.weights.serving = run.replicas
    run.prompts = PROMPTS
    run.prompter = CannedPrompter()  # pyright: ignore[reportAttributeAccessIssue]
    run.group_ids, run.sample_ids = count_from(-1), count_from(-1)


class Meter:
    """Figures after each tenth of the steps."""

    def __init__(self, *, steps: int) -> None:
        self.rows: list[dict[str, float]] = []
        self._each = max(1, steps // PARTS)
        self._began, self._cpu_s = time.perf_counter(), time.process_time()
        self._process = psutil.Process()

    def after(self, step: int, run: RunContext) -> None:
        """Called after every step."""
        if step % self._each:
            return
        gc.collect()
        seconds = time.perf_counter() - self._began
        size_mb = {path.name: path.stat().st_size / 1e6 for path in run.paths.root.glob("*.db*")}
        row = {
            "step": step,
            "ms_a_step": seconds / self._each * 1000,
            "cpu_ms_a_step": (time.process_time() - self._cpu_s) / self._each * 1000,
            "rss_mb": self._process.memory_info().rss / 1e6,
            "python_objects": len(gc.get_objects()),
            "sqlite_mb": sqlite_bytes() / 1e6,
            "num_fds": self._process.num_fds(),
            "num_threads": self._process.num_threads(),
            "run_db_mb": size_mb["run.db"],
            "tokens_db_mb": size_mb["tokens.db"],
            "wal_mb": size_mb.get("run.db-wal", 0.0),
        }
        self.rows.append({name: round(value, 2) for name, value in row.items()})
        print(self.rows[-1], flush=True)
        self._began, self._cpu_s = time.perf_counter(), time.process_time()


def sqlite_bytes() -> int:
    """Bytes that SQLite holds in this process; 0 where its library is not a shared one."""
    with suppress(OSError, AttributeError, StopIteration):
        maps = Path("/proc/self/maps").read_text().splitlines()
        library = ctypes.CDLL(next(line.split()[-1] for line in maps if "libsqlite3" in line))
        library.sqlite3_memory_used.restype = ctypes.c_int64
        return int(library.sqlite3_memory_used())
    return 0


def ask(root: Path) -> dict[str, float]:
    """Seconds of the commands that look at the run."""
    found: dict[str, float] = {}
    for command in (["show"], ["status", "--json"]):
        began = time.perf_counter()
        full = [sys.executable, "-m", "forge", command[0], str(root), *command[1:]]
        subprocess.run(full, check=True, capture_output=True)
        found[f"forge {' '.join(command)}"] = round(time.perf_counter() - began, 2)
    return found


def main() -> int:
    """Simulates, prints, asks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--folder", type=Path, help="where the run is made; default: TMPDIR")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="week-", dir=asked.folder))
    try:
        meter = Meter(steps=asked.steps)
        paths = anyio.run(lambda: simulate(folder, steps=asked.steps, on_step=meter.after))
        times = ask(paths.root)
        for name, seconds in times.items():
            print(f"{seconds:8.3f} s  {name}")
        if asked.out is not None:
            asked.out.write_text(json.dumps({"rows": meter.rows, "seconds": times}) + "\n")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
