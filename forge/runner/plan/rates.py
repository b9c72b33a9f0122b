"""Times and peaks that earlier runs measured, in `rates.json` beside the runs.

Written at the end of a run, read by the plan. A stage is the same if its cards, model, rollouts and
data are: then seconds an item (a row or a rollout) and the trainer's peak are what they were.
"""

from __future__ import annotations

import fcntl
import json
import logging
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from forge.config.schema import EvalStage, GrpoStage, SftStage
from forge.runner.plan.duration import eval_size
from forge.store.layout import write_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from forge.config.schema import Experiment
    from forge.config.schema.training import Stage
    from forge.runner.plan.placement import Placement
    from forge.store.layout import RunPaths

logger = logging.getLogger(__name__)

FILE = "rates.json"
LEAST_STEPS = 3
"""The first step of a stage has the trainer's start in it, and is left out."""
_ADAPTER = {"r", "target_modules", "target_parameters"}
_TRAINING = {
    "micro_batch_tokens", "optimizer", "packing", "compile", "parallel", "gradient_checkpointing",
    "offload",
}  # fmt: skip
"""Keys on which the time and the peak of a trainer depend."""

_STEPS = """
SELECT stage, count(*) AS num, (max(at) - min(at)) / (max(step) - min(step)) AS step_s
FROM metrics WHERE key = 'train/loss/mean' GROUP BY stage, attempt HAVING max(step) > min(step)
ORDER BY attempt
"""
_PEAKS = """
SELECT stage, max(value) AS peak FROM metrics WHERE key = 'train/peak_bytes/max' GROUP BY stage
"""
_EVALUATIONS = """
SELECT json_extract(e.data, '$.stage') AS stage, v.num_problems,
    json_extract(e.data, '$.seconds') AS seconds
FROM events e JOIN evaluations v ON v.stage = 'eval-' || json_extract(e.data, '$.stage')
WHERE e.kind = 'stage_end' AND seconds IS NOT NULL AND v.num_problems > 0
AND NOT EXISTS (SELECT 1 FROM events k WHERE k.kind = 'evaluation_continued'
    AND json_extract(k.data, '$.stage') = json_extract(e.data, '$.stage'))
"""
"""Without those that a resumed attempt continued: their seconds are those of a part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A stage of an earlier run."""

    run: str
    s_per_item: float
    """Seconds a row or a rollout."""
    peak_bytes: int | None = None
    """Memory of the trainer's largest rank; None on the CPU or without training."""


def load_rates(experiment: Experiment, placement: Placement) -> dict[str, Rate]:
    """Rates of this experiment's stages on these cards, by `kind-index`. A damaged file has none:
    the next run writes it again."""
    known = _read(experiment.store.dir / FILE)
    found = dict[str, Rate]()
    for index, stage in enumerate(experiment.stage):
        with suppress(KeyError, TypeError):
            found[f"{stage.kind}-{index}"] = Rate(**known[_key(experiment, stage, placement)])
    return found


def record_rates(paths: RunPaths, placement: Placement) -> None:
    """Add what a run on cards measured to the file; quick runs on cores are predicted well. A run
    that has ended does not fail by it."""
    if placement.gpus:
        try:
            _record(paths, placement)
        except Exception:  # boundary: the run is done
            logger.exception("%s: not written", FILE)


def _record(paths: RunPaths, placement: Placement) -> None:
    from forge.config.load import load_experiment  # only here: a plan loads no store
    from forge.store.reader import open_run

    experiment = load_experiment(paths.experiment, is_here=False)  # with the model as it was named
    with open_run(paths) as reader:
        steps = {row["stage"]: row for row in reader.rows(_STEPS) if row["num"] >= LEAST_STEPS}
        peaks = {row["stage"]: int(row["peak"]) for row in reader.rows(_PEAKS)}
        evaluated = {row["stage"]: row for row in reader.rows(_EVALUATIONS)}
    found = dict[str, Any]()
    for index, stage in enumerate(experiment.stage):
        if isinstance(stage, EvalStage) and (row := evaluated.get(index)):
            each = row["seconds"] / (row["num_problems"] * eval_size(experiment, stage)[1])
        elif row := steps.get(index):
            each = row["step_s"] / _step_items(experiment, stage)
        else:
            continue
        rate = Rate(run=paths.name, s_per_item=each, peak_bytes=peaks.get(index))
        found[_key(experiment, stage, placement)] = asdict(rate)
    if found:
        path = paths.root.parent / FILE
        with path.with_suffix(".lock").open("w") as lock:  # other runs end, too
            fcntl.flock(lock, fcntl.LOCK_EX)
            write_file(path, json.dumps({**_read(path), **found}, indent=1) + "\n")


def _step_items(experiment: Experiment, stage: Stage) -> int:
    if isinstance(stage, SftStage):
        return stage.batch_size
    return experiment.rollout.groups_per_step * experiment.rollout.group_size


def _read(path: Path) -> Mapping[str, Any]:
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
        return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}
    return {}


def _key(experiment: Experiment, stage: Stage, placement: Placement) -> str:
    """All that the time of a row or rollout depends on. Rows of other files count as the same."""
    model, rollout, serve = experiment.model, experiment.rollout, experiment.serve
    cards = {
        "train": [gpu.name for gpu in placement.train],
        "serve": [gpu.name for each in placement.serve for gpu in each],
        "judge": [gpu.name for gpu in placement.judge],
    }
    size = model.tiny.model_dump(mode="json") if model.init else model.path
    lora = model.lora and model.lora.model_dump(mode="json", include=_ADAPTER)
    parts: list[Any] = [stage.kind, size, lora, model.quantize is not None, model.dtype]
    if not isinstance(stage, EvalStage):
        asked = stage.model_dump(mode="json", include=_TRAINING)
        parts += [asked, placement.parallel, placement.recomputes, experiment.cluster.train_nodes]
    if isinstance(stage, SftStage):
        sources = [(part.source, part.weight) for part in experiment.data.parts()]
        parts += [cards["train"], stage.max_length, stage.loss_turns, sources]
    else:
        parts += [cards, placement.engine, serve.slots, serve.replicas, serve.precision]
        parts += [rollout.max_completion_tokens, experiment.problems.source]
    if isinstance(stage, GrpoStage):
        parts += [rollout.max_turns, stage.updates_per_batch, stage.beta > 0, rollout.max_staleness]
    if isinstance(stage, EvalStage):
        parts += [stage.max_turns or experiment.eval.max_turns]
    return json.dumps(parts, sort_keys=True)
