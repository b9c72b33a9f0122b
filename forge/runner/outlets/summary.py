"""Figures of a run at its end: on the console evaluations, the best kernel and further commands;
with `eval.suite` the files `results.json` and `leaderboard.md`.

Called by `run.py` when the last stage has ended; the files also for a run that has finished before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from forge.config.schema import ModelTable
from forge.runner.live.progress import Console
from forge.runner.plan.placement import Placement
from forge.runner.weights.resume import sha256_of_weights
from forge.store.layout import RunPaths, write_file
from forge.store.reader import open_run
from forge.views.suite import LEADERBOARD, RESULTS, leaderboard, load_result, render_result
from forge.views.text.numbers import gigabytes

PEAK = "SELECT stage, max(value) FROM metrics WHERE key = 'train/peak_bytes/max' GROUP BY stage"


def show_summary(paths: RunPaths, console: Console, placement: Placement | None = None) -> None:
    """Prints the summary as `forge show` does, and the peak GPU memory of trainers."""
    if console.quiet:
        return
    from forge.views.show import render_best_kernel, render_evaluations, show_run

    shown = show_run(paths)
    if shown["evaluations"]:
        console.show(render_evaluations(shown["evaluations"]))
    if shown["best_kernel"] is not None:
        console.show(render_best_kernel(shown["best_kernel"]))
    for line in _peaks(paths, placement):
        console.say(line)
    name = paths.root if paths.root.parent.name != "runs" else paths.name
    console.say(
        f"more:  forge show {name}  ·  forge rollouts {name} --best  ·  "
        f"forge sql {name} --named failures"
    )


def _peaks(paths: RunPaths, placement: Placement | None) -> Iterator[str]:
    """A line for each stage: measured and planned peak of the largest rank."""
    if placement is None or not placement.train:
        return
    roles = [placement.bytes_by_gpu.get(gpu.uuid, {}) for gpu in placement.train]
    planned = max(role.get("train", 0) for role in roles)
    beside = f", {gigabytes(planned)} planned" if planned else ""
    with open_run(paths) as reader:
        rows = reader.query(PEAK).rows
    for stage, peak in rows:
        yield f"trainer of stage {stage}: {gigabytes(peak)} of a GPU at its peak{beside}"


def write_results(paths: RunPaths, model: ModelTable, console: Console) -> None:
    """Write both files and show the figures; nothing before an evaluation has ended. Reads the
    weights completely, whose digest is part of the results."""
    with open_run(paths) as reader:
        result = load_result(reader, weights_sha256=_digest(model, paths))
    if result is None:
        return
    write_file(paths.root / RESULTS, json.dumps(result, indent=1) + "\n")
    write_file(paths.root / LEADERBOARD, leaderboard(result))
    if not console.quiet:
        console.show(render_result(result))
    console.say(f"results: {paths.root / RESULTS}  and  {LEADERBOARD}")


def _digest(model: ModelTable, paths: RunPaths) -> str | None:
    """Digests of a model's weights and of its adapter's; None if a server has the model."""
    if model.is_absent:
        return None
    path = Path(model.path) if model.path is not None else paths.weights / "init"
    digests = [sha256_of_weights(each) for each in (path, model.adapter) if each is not None]
    return "+".join(digests) or None
