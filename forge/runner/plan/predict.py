"""Predicted cost of each phase of a run: seconds of one core, wall seconds, bytes on disk.

Called by `plan`. Pure; the constants are in `cpu_costs`. A phase that runs on a GPU, or with a
model of unknown size, has no prediction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge.config.schema import EvalStage, Experiment, GrpoStage, SftStage, Stage
from forge.data.pairs.generated import most_broken
from forge.runner.plan import cpu_costs as costs
from forge.runner.plan.model_shape import model_shape
from forge.runner.plan.needs import needs_judges, needs_serving, turns_played

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge.runner.plan.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePlan:
    """A phase of a run: prepare, or a stage."""

    name: str
    work: str
    """Amount of work, for people: `64 problems × 5 rollouts, up to 3 turns`."""
    cpu_s: float | None
    """Seconds of one core; None if it cannot be predicted."""
    wall_s: float | None


def predict_phases(
    experiment: Experiment,
    *,
    machine: Machine,
    params: int | None,
    num_judge_gpus: int = 0,
    shares: bool = False,
) -> Iterator[PhasePlan]:
    """Phases in order: prepare, then the stages.

    Args:
        shares: evaluations are of the problems that are trained on.
    """
    is_random = experiment.model.init is not None
    yield _prepare(experiment, machine=machine, num_judge_gpus=num_judge_gpus)
    for index, stage in enumerate(experiment.stage):
        cpu_s = wall_s = None
        if params is None or experiment.devices.train or experiment.devices.serve:
            pass  # no prediction
        elif isinstance(stage, EvalStage):
            cpu_s, wall_s = _eval(experiment, stage, machine, params=params, is_random=is_random)
        elif isinstance(stage, SftStage):
            cpu_s, wall_s = _sft(experiment, stage, machine, params=params)
            is_random = False
        else:
            cpu_s, wall_s = _grpo(experiment, stage, machine, params=params)
        name, work = f"{stage.kind}-{index}", _work(experiment, stage)
        if shares and isinstance(stage, EvalStage):
            work += ", shared with training"
        yield PhasePlan(name=name, work=work, cpu_s=cpu_s, wall_s=wall_s)


def _prepare(experiment: Experiment, *, machine: Machine, num_judge_gpus: int) -> PhasePlan:
    """Starts of judges, verdicts on broken answers for repairs, making of tokenizer and model."""
    workers = experiment.judge.workers
    num_judged, most = 0, most_broken(turns_played(experiment))
    if most and any(isinstance(stage, SftStage) for stage in experiment.stage):
        repaired = _num_pairs(experiment) * experiment.data.repair_share
        num_judged = int(repaired * (1 + most) / 2)
    start_s = costs.START_S["supervisor"] + workers * costs.START_S["judge"]
    start_s += costs.START_S["replica"] * experiment.serve.replicas * needs_serving(experiment)
    start_s += costs.START_S["task"] * (experiment.model.init is not None)
    cpu_s = start_s + num_judged * costs.JUDGE_S
    made = ["judges start"] * needs_judges(experiment)
    made += [f"{num_judged} broken answers judged"] * (num_judged > 0)
    made += ["tokenizer and model made"] * (experiment.model.init is not None)
    wall_s = cpu_s / min(workers, machine.cores)
    if num_judge_gpus:
        wall_s = start_s + num_judged * costs.JUDGE_GPU_S / num_judge_gpus
    return PhasePlan(
        name="prepare", work=", ".join(made) or "processes start", cpu_s=cpu_s, wall_s=wall_s
    )


def _num_pairs(experiment: Experiment) -> int:
    """One-turn rows that the generator makes."""
    problems = experiment.problems
    if not experiment.data.has_generated:
        return 0
    num_sft = min(sum(problems.sft_by_level), problems.num_problems - problems.num_reserved)
    return num_sft * experiment.data.pairs_per_problem


def _eval(
    experiment: Experiment, stage: EvalStage, machine: Machine, *, params: int, is_random: bool
) -> tuple[float, float]:
    """Seconds of one core, and wall seconds; as of the functions below."""
    num, rollouts, max_turns = _eval_size(experiment, stage)
    turns = num * rollouts * (max_turns if is_random else costs.turns_of(max_turns))
    tokens = experiment.rollout.max_completion_tokens if is_random else costs.ANSWER_TOKENS
    generate_s = costs.generate_s(turns * tokens, params=params)
    judge_s = turns * (costs.SCREEN_S if is_random else _judge_s(experiment))
    return generate_s + judge_s, _overlapped(experiment, machine, generate_s, judge_s)


def _sft(
    experiment: Experiment, stage: SftStage, machine: Machine, *, params: int
) -> tuple[float, float] | tuple[None, None]:
    num_rows = stage.steps * stage.batch_size
    if stage.epochs is not None:
        if experiment.data.has_files:
            return None, None
        num_rows = stage.epochs * _num_pairs(experiment) * (1 + experiment.data.repair_share)
    cpu_s = costs.START_S["trainer"] + costs.train_s(num_rows * costs.ROW_TOKENS, params=params)
    return cpu_s, cpu_s / min(stage.threads, machine.cores)


def _grpo(
    experiment: Experiment, stage: GrpoStage, machine: Machine, *, params: int
) -> tuple[float, float]:
    rollout = experiment.rollout
    trained = stage.steps * rollout.groups_per_step * rollout.group_size
    trained *= costs.turns_of(rollout.max_turns)
    replaced = 1 + min(costs.REPLACED_SHARE, rollout.max_replacements)
    generate_s = costs.generate_s(trained * replaced * costs.ANSWER_TOKENS, params=params)
    judge_s = trained * replaced * _judge_s(experiment)
    tokens = trained * (costs.PROMPT_TOKENS + costs.ANSWER_TOKENS) * stage.updates_per_batch
    train_s = costs.START_S["trainer"] + costs.train_s(tokens, params=params)
    cpu_s = generate_s + judge_s + train_s
    wall_s = _overlapped(experiment, machine, generate_s, judge_s)
    if rollout.max_staleness:
        return cpu_s, max(wall_s, train_s / stage.threads, cpu_s / machine.cores)
    return cpu_s, wall_s + train_s / min(stage.threads, machine.cores)


def _judge_s(experiment: Experiment) -> float:
    """Seconds of one core for a verdict. An answer that fails needs fewer: it is judged up to the
    first shape at which it does."""
    return costs.JUDGE_S * max(len(part.shapes or ()) or 1 for part in experiment.problems.parts())


def _overlapped(
    experiment: Experiment, machine: Machine, generate_s: float, judge_s: float
) -> float:
    """Wall seconds of engines and judges that work at the same time and share the cores."""
    engine = generate_s / (experiment.serve.replicas * experiment.serve.threads)
    judges = judge_s / experiment.judge.workers
    return max(engine, judges, (generate_s + judge_s) / machine.cores)


def _eval_size(experiment: Experiment, stage: EvalStage) -> tuple[int, int, int]:
    """Numbers of problems, rollouts a problem (the greedy one included), maximum turns."""
    table = experiment.eval
    greedy = table.greedy if stage.greedy is None else stage.greedy
    num_heldout = experiment.problems.num_reserved
    num_problems = min(stage.num_problems or num_heldout, num_heldout)
    rollouts = (stage.samples or table.samples) + int(greedy)
    return num_problems, rollouts, stage.max_turns or table.max_turns


def _work(experiment: Experiment, stage: Stage) -> str:
    if isinstance(stage, EvalStage):
        num, rollouts, turns = _eval_size(experiment, stage)
        size = f"{_count(num, 'problem')} × {_count(rollouts, 'rollout')}"
        return f"{size}, up to {_count(turns, 'turn')}"
    if isinstance(stage, SftStage):
        length = f"{stage.steps} steps" if stage.epochs is None else f"{stage.epochs:g} epochs"
        return f"{length} × {stage.batch_size} rows{_sources(experiment)}"
    rollout = experiment.rollout
    size = f"{rollout.groups_per_step} groups × {rollout.group_size} rollouts"
    return f"{stage.steps} steps × {size}, up to {_count(rollout.max_turns, 'turn')}"


def _sources(experiment: Experiment) -> str:
    """The sources of rows with their weights, if there are several."""
    data = experiment.data
    names = [
        data.origin_of(index) + (f" (weight {part.weight:g})" if part.weight else "")
        for index, part in enumerate(data.sources or ())
    ]
    return f" of {', '.join(names)}" if names else ""


def _count(num: int, noun: str) -> str:
    return f"{num} {noun}" if num == 1 else f"{num} {noun}s"


def predict_disk_bytes(experiment: Experiment, *, params: int | None) -> int | None:
    """Bytes of kept checkpoints and weights, and of each turn's row, texts and tokens; None if the
    number of parameters or of checkpoints is unknown."""
    if params is None:
        return None
    rollout, turns = experiment.rollout, 0.0
    for stage in experiment.stage:
        if isinstance(stage, EvalStage):
            num, rollouts, max_turns = _eval_size(experiment, stage)
            turns += num * rollouts * costs.turns_of(max_turns)
        elif isinstance(stage, GrpoStage):
            each = rollout.groups_per_step * rollout.group_size * costs.turns_of(rollout.max_turns)
            turns += stage.steps * each * (1 + costs.REPLACED_SHARE)
    shape, lora = model_shape(experiment.model), experiment.model.lora
    # A checkpoint of an adapter has no base model.
    num_trained = shape.adapter_params(lora) if lora is not None and shape is not None else params
    trained = [stage for stage in experiment.stage if not isinstance(stage, EvalStage)]
    counts = [_kept_checkpoints(stage) for stage in trained]
    if None in counts:
        return None
    kept = max((num for num in counts if num is not None), default=0)
    kept += costs.EXTRA_CHECKPOINTS * bool(trained)
    kept *= (costs.CHECKPOINT_BYTES_PER_PARAM + 4) * num_trained
    return int(kept + turns * costs.TURN_BYTES)


def _kept_checkpoints(stage: SftStage | GrpoStage) -> int | None:
    """Checkpoints of a stage at its end; None if all are kept and its steps are unknown."""
    if stage.keep_checkpoints != "all":
        return stage.keep_checkpoints
    return math.ceil(stage.steps / stage.save_every) if stage.steps else None
