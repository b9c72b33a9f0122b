"""Runs the experiment of `forge eval` under the supervisor and reads its result."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.commands.suite.experiment import make_experiment
from forge.runner.run import run_experiment
from forge.views.suite import RESULTS

if TYPE_CHECKING:
    from forge.commands.suite.request import EvalRequest
    from forge.store.layout import RunPaths


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteRun:
    """A finished evaluation."""

    paths: RunPaths
    result: dict[str, Any]
    """`results.json`."""


def evaluate_suite(request: EvalRequest, *, quiet: bool, wait_s: float | None = None) -> SuiteRun:
    """Evaluates the model in a new run. Raises ForgeError; an interrupted run can be resumed."""
    text = make_experiment(request)
    with tempfile.TemporaryDirectory(prefix="forge-eval-") as folder:
        file = Path(folder) / "eval.toml"
        file.write_text(text, encoding="utf-8")
        paths = run_experiment(file, overrides=request.overrides, quiet=quiet, wait_s=wait_s)
    return SuiteRun(paths=paths, result=json.loads((paths.root / RESULTS).read_text()))
