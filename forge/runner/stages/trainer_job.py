"""The job that a stage gives its trainer, and what to change in it when GPU memory runs out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from forge.config.schema import GrpoStage
from forge.runner.plan.prefix_sharing import share_prefixes
from forge.serve.installed.engines import ENGINES
from forge.train.handle import TrainerJob
from forge.views.text.numbers import gigabytes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from forge.config.schema import ModelTable, ServeTable, SftStage
    from forge.runner.plan.placement import Placement
    from forge.runner.stages.run_context import RunContext
    from forge.runner.stages.trainer_desk import TrainerDesk
    from forge.serve.weights import Weights

Stage = TypeVar("Stage", bound="SftStage | GrpoStage")


def make_job(
    run: RunContext,
    stage: SftStage | GrpoStage,
    desk: TrainerDesk,
    *,
    start: Weights,
    rows_path: Path | None,
) -> TrainerJob:
    """The job that every trainer of the stage gets."""
    experiment, placement = run.experiment, run.placement
    is_fast = experiment.serve.precision == "fast"
    return TrainerJob(
        stage=resolve_auto(stage, placement, model=experiment.model, model_dir=start.full),
        model=experiment.model,
        model_dir=start.full,
        adapter=start.adapter,
        rows_path=rows_path,
        rollout=experiment.rollout,
        seed=experiment.seed,
        work_dir=run.paths.checkpoints / f"stage-{desk.stage}",
        weights_dir=run.paths.weights,
        control_socket=run.control_socket,
        log_dir=run.log_dir,
        gpus=placement.train_uuids,
        shared_gpus=placement.shared,
        # Engines that compute in bf16 get bf16, which halves the bytes.
        publish_dtype="bfloat16" if is_fast and placement.train else None,
        # Engines that sleep during a step are awake only for a publish before the next batch.
        eval_every=1 if placement.sleeps else experiment.eval.every,
        publish_timeout_s=publish_timeout_s(experiment.serve),
    )


def resolve_auto(
    stage: Stage, placement: Placement, *, model: ModelTable, model_dir: Path
) -> Stage:
    """The stage with each "auto" resolved for these cards and this model."""
    found: dict[str, object] = {}
    if stage.parallel == "auto":
        found["parallel"] = placement.parallel
    if isinstance(stage, GrpoStage):
        shares = share_prefixes(stage, model, gpus=placement.train, model_dir=model_dir)
        found["share_prefixes"] = shares.is_on
    return stage.model_copy(update=found)


def publish_timeout_s(serve: ServeTable) -> float:
    """Maximum duration of a publish: each replica in turn finishes its requests, restarts and
    answers; the same time once more for running turns and the probe."""
    start_s = serve.start_timeout_s or max(kind.start_timeout_s for kind in ENGINES.values())
    return (serve.replicas + 1) * (2 * serve.request_timeout_s + start_s)


def memory_error(failure: Mapping[str, Any], *, doing: str, is_halved: bool) -> str:
    """One line about the GPU memory that ran out, from the trainer's own report."""
    budget = failure["micro_batch_tokens"]
    whole = "half batches" if is_halved else "whole batches"
    held = whole if budget is None else f"micro-batches of {budget} tokens"
    again = ", again after they were halved" if is_halved else ""
    return (
        f"trainer: GPU memory ran out in {doing}{again}: {held}, peak "
        f"{gigabytes(failure['peak_bytes'])}, free {gigabytes(failure['free_bytes'])} on rank "
        f"{failure['rank']}"
    )


def memory_advice(run: RunContext, job: TrainerJob) -> str:
    """Settings that take less memory and are not in use yet; first those that the checkpoint can
    continue with."""
    stage = job.stage
    now = ["fewer micro_batch_tokens" if stage.micro_batch_tokens else "micro_batch_tokens"]
    if stage.gradient_checkpointing is False:
        now.append("gradient_checkpointing = true")
    new = [] if job.model.lora or job.adapter else ["[model.lora]"]
    new.append(
        "a smaller max_completion_tokens" if stage.kind == "grpo" else "a smaller max_length"
    )
    return (
        f"Allowed: {' or '.join(now)} in {run.paths.experiment}, and {run.stop.resume}; in a new "
        f'run also {", ".join(new)}, or more devices.train with parallel = "fsdp2"'
    )
