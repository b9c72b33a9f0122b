"""Summary on the console at the end: evaluations, the best kernel, and further commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.views.text.numbers import gigabytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge.runner.live.console import Console
    from forge.runner.plan.placement import Placement
    from forge.store.layout import RunPaths


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
        f"forge sql {name} --named failures  ·  forge chat {name}"
    )


def _peaks(paths: RunPaths, placement: Placement | None) -> Iterator[str]:
    """A line for each stage: measured and planned peak of the largest rank."""
    if placement is None or not placement.train:
        return
    from forge.store.reader import open_run

    roles = [placement.bytes_by_gpu.get(gpu.uuid, {}) for gpu in placement.train]
    planned = max(role.get("train", 0) for role in roles)
    beside = f", {gigabytes(planned)} planned" if planned else ""
    with open_run(paths) as reader:
        rows = reader.query(PEAK).rows
    for stage, peak in rows:
        yield f"trainer of stage {stage}: {gigabytes(peak)} of a GPU at its peak{beside}"
