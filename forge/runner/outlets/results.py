"""`results.json` and `leaderboard.md` at the end of a run with `eval.suite`.

Called by `run.py` when the last stage has ended, and again for a run that has finished.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from forge.runner.weights.resume import sha256_of_weights
from forge.store.layout import write_file
from forge.store.reader import open_run
from forge.views.suite import LEADERBOARD, RESULTS, leaderboard, load_result, render_result

if TYPE_CHECKING:
    from forge.config.schema import ModelTable
    from forge.runner.live.console import Console
    from forge.store.layout import RunPaths


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
