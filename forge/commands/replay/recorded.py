"""The record of one GRPO step: its samples, its metrics, and the checkpoint that it began from.

stage   the last grpo stage that trained the step, or the one that is asked for
batch   the batch file, which exists near kept checkpoints; else rows of the store with their
        tokens, in the order of their ids
start   checkpoint of the step before; the weights that the stage began with, for step 1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge.config.schema import GrpoStage
from forge.errors import ConfigError, MachineError
from forge.records import Sample
from forge.runner.weights.resume import check_there, load_stage_weights, on_model
from forge.store.codec import decode_ids, decode_logprobs
from forge.train.batch import BadBatch, read_batch
from forge.train.checkpoints import checkpoint_dir, checkpoints, find_damage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from forge.config.schema import Experiment, ModelTable
    from forge.serve.weights import Weights
    from forge.store.layout import RunPaths
    from forge.store.reader import RunReader

TOKENS = ("prompt_ids", "completion_ids", "logprobs")
_SAMPLES = """
SELECT u.sample_id, u.group_id, u.rollout, u.turn, u.advantage, u.policy_version, k.prompt_ids,
    k.completion_ids, k.logprobs
FROM v_samples u LEFT JOIN tokens.tokens k USING (group_id, rollout, turn)
WHERE u.stage = ? AND u.step = ? ORDER BY u.sample_id
"""
_METRICS = "SELECT key, value FROM v_metrics WHERE stage = ? AND step = ? AND key LIKE 'train/%'"
_TRAINED = """
SELECT DISTINCT step FROM v_metrics WHERE stage = ? AND key = 'train/loss/mean' ORDER BY step
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """A step that can be trained again."""

    stage: int
    step: int
    samples: Sequence[Sample]
    is_exact: bool
    """True if the samples come from the batch file: in the order of the recorded step."""
    metrics: Mapping[str, float]
    checkpoint: Path | None
    """None for the beginning of the stage."""


def find_stage(
    paths: RunPaths, reader: RunReader, experiment: Experiment, *, step: int, asked: int | None
) -> int:
    """The stage of the step. Raises ConfigError if no grpo stage trained it."""
    grpo = [i for i, stage in enumerate(experiment.stage) if isinstance(stage, GrpoStage)]
    if asked is not None and asked not in grpo:
        raise ConfigError(
            f"--stage {asked}: found no grpo stage of this number in {paths.name}; allowed: "
            f"{_listed(grpo)}"
        )
    trained = {i: _trained(reader, i) for i in (grpo if asked is None else [asked])}
    having = [i for i, steps in trained.items() if step in steps]
    if having:
        return having[-1]
    found = ", ".join(f"grpo-{i}: {_ranges(steps)}" for i, steps in trained.items()) or "none"
    raise ConfigError(f"{paths.name}: step {step} was not trained by GRPO; trained steps: {found}")


def read_step(
    paths: RunPaths, reader: RunReader, experiment: Experiment, *, stage: int, step: int
) -> RecordedStep:
    """The record of a trained step.

    Raises:
        ConfigError: its checkpoint or its tokens were not kept; the message has the nearest kept
            one and the keys that keep more.
        MachineError: its checkpoint is damaged.
    """
    checkpoint = _checkpoint(paths, reader, experiment, stage=stage, step=step)
    samples, is_exact = _samples(paths, reader, stage=stage, step=step)
    rows = reader.query(_METRICS, (stage, step)).rows
    return RecordedStep(
        stage=stage, step=step, samples=samples, is_exact=is_exact, checkpoint=checkpoint,
        metrics={key: value for key, value in rows if value is not None},
    )  # fmt: skip


def read_start(reader: RunReader, model: ModelTable, *, stage: int, name: str) -> Weights:
    """The weights that the stage began with, where the model is now. Raises MachineError."""
    weights = on_model(load_stage_weights(reader)[stage], model)
    return check_there(weights, whose=f"stage {stage} of {name}")


def _checkpoint(
    paths: RunPaths, reader: RunReader, experiment: Experiment, *, stage: int, step: int
) -> Path | None:
    if step == 1:
        return None
    work_dir = paths.checkpoints / f"stage-{stage}"
    kept = checkpoints(work_dir)
    if step - 1 in kept:
        path = checkpoint_dir(work_dir, step - 1)
        if damage := find_damage(path):
            raise MachineError(f"{path}: {damage}")
        return path
    trained = _trained(reader, stage)
    possible = sorted({1, *(each + 1 for each in kept)} & set(trained))
    nearest = min(possible, key=lambda each: abs(each - step), default=None)
    now = "" if nearest is None else f"; the nearest that can be replayed is {paths.name}:{nearest}"
    before = ", ".join(map(str, kept)) or "none"
    raise ConfigError(
        f"{paths.name}: step {step} of grpo-{stage} began from the checkpoint after step "
        f"{step - 1}, which is not kept; kept: {before}{now}. A run with stage.{stage}.save_every "
        f'= 1 and stage.{stage}.keep_checkpoints = "all" keeps every one'
    )


def _samples(
    paths: RunPaths, reader: RunReader, *, stage: int, step: int
) -> tuple[list[Sample], bool]:
    try:
        return read_batch(paths.batches / f"{stage}-{step:06d}.npz"), True
    except BadBatch:
        rows = reader.rows(_SAMPLES, (stage, step))
    without = [row["sample_id"] for row in rows if row["completion_ids"] is None]
    if without or not rows:
        raise ConfigError(
            f"{paths.name}: the tokens of {len(without)} of {len(rows)} samples of step {step} are "
            'not kept; a run with store.keep_tokens = "all" keeps them'
        )
    return [_sample(row) for row in rows], False


def _sample(row: dict[str, Any]) -> Sample:
    rest = {name: value for name, value in row.items() if name not in TOKENS}
    return Sample(
        **rest,
        prompt_ids=decode_ids(row["prompt_ids"]),
        completion_ids=decode_ids(row["completion_ids"]),
        logprobs=decode_logprobs(row["logprobs"]),
    )


def _trained(reader: RunReader, stage: int) -> list[int]:
    return [step for (step,) in reader.query(_TRAINED, (stage,)).rows]


def _ranges(steps: Sequence[int]) -> str:
    """`1 to 20`; steps are trained without gaps."""
    return f"{steps[0]} to {steps[-1]}" if steps else "none"


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"
