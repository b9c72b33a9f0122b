"""Predicted time of each phase of a run, and its bytes on disk.

A stage that an earlier run had on the same cards takes as long as there: `record_rates` writes what
a run on cards measured into `rates.json` beside the runs. Else seconds come from sizes: on CPU
cores by measured costs, on GPUs by a roofline of their data sheets, with the shares of it that were
measured. Constants name their measurement: RESULTS is `bench/RESULTS.md` and its history.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from forge.config.schema import (
    Budget,
    EvalStage,
    Experiment,
    GrpoStage,
    PlayStage,
    SearchStage,
    SftStage,
    Stage,
    TrainStage,
)
from forge.data.pairs.generated import most_broken
from forge.process.devices import Gpu
from forge.runner.plan.machine import Machine
from forge.runner.plan.placement import (
    Placement,
    makes_pairs,
    needs_judges,
    needs_serving,
    num_ranks,
    turns_played,
)
from forge.runner.plan.shape import ModelShape, model_shape
from forge.store.layout import RunPaths, write_file
from forge.views.text import count, minutes

logger = logging.getLogger(__name__)
T = TypeVar("T")

TRAIN_S_PER_TOKEN, TRAIN_S_PER_TOKEN_PARAM = 41e-6, 82e-12
"""Core seconds of forward and backward: 6 FLOPs a parameter at 73 GFLOP/s, and the rest. Fitted to
9.0k tokens/s at 0.86M parameters and 5.1k at 1.9M on 2 x86 cores, as all times of a CPU here."""
GENERATE_S_PER_TOKEN, GENERATE_S_PER_TOKEN_PARAM = 120e-6, 110e-12
"""Core seconds of a token in a batch of 32: 2 FLOPs a parameter in f32, memory-bound."""
JUDGE_S = 0.13
"""Core seconds of a verdict: fork, sandbox, interpreter on two inputs, replay, compilation."""
SCREEN_S = 0.01
"""Core seconds of a completion without a kernel, which ends before the sandbox."""
START_S = {"supervisor": 1.0, "replica": 1.5, "judge": 6.0, "trainer": 7.0, "task": 6.0}
"""Seconds of imports by kind of process. A judge has an oracle and a zygote, which import torch."""
GPU_START_S = 35.0
"""A trainer or a vLLM engine on a card: SFT of 50 steps at 49,000 tokens/s took 46 s with it
(RESULTS, H200, 1b913676)."""
COMPILE_S = 20.0
"""Seconds by which the first step of a trainer that compiles its blocks is longer than the second:
18 to 21 for SmolLM2-135M's shape (H200, 16 cores, 2026-11-29, a62cf4a0)."""

JUDGE_NEW_S, JUDGE_GPU_S, JUDGE_FULL_S = 0.16, 0.087, 2.0
"""Wall seconds of a verdict on one card: each of another problem (471 in 76 s, RESULTS, H100,
2026-11-25), siblings as GRPO asks for them (11.5/s, H100, 7fdc4ff8), published sizes up to 13 GB
(two siblings, H100, f709ccd5)."""
DECODE_S = 7.5e-3
"""Seconds of a decoding step beside reading weights and cache: 256 sequences of a 0.6B at 28,633
tokens/s (RESULTS, H200, 40fc4d2), of a 135M in 13 s for two turns of 640 tokens (1b913676)."""
MFU = {51e6: 0.04, 135e6: 0.06, 0.6e9: 0.13, 8e9: 0.34}
"""Share of the bf16 peak that training reaches, by active parameters: SFT of a 51M (H100, 4ede8413)
and a 135M (H200, 1b913676), GRPO of a 0.6B (H200, d71944a) and an 8B (issue 47)."""
MFU_ADAPTER, MFU_MIXTURE = 0.65, 0.22
"""Factors of that: an adapter of an 8B reaches 22 %, a mixture in 4 bits 4.7 % (H100, d29912d5)."""


class _Card(NamedTuple):
    flops: float
    bytes: float


CARDS = {
    "B200": _Card(2250e12, 8.0e12), "H200": _Card(989e12, 4.8e12), "H100": _Card(989e12, 3.35e12),
    "A100": _Card(312e12, 1.9e12), "MI300X": _Card(1307e12, 5.3e12), "L40S": _Card(362e12, 0.86e12),
    "4090": _Card(165e12, 1.0e12), "A6000": _Card(155e12, 0.77e12),
}  # fmt: skip

ROW_TOKENS, PROMPT_TOKENS, ANSWER_TOKENS = 300, 85, 215
"""Means of the generator: an SFT row, its prompt and its answer."""
RETRY_SHARE = 0.4
"""Share of rollouts that take another turn if allowed, after SFT."""
REPLACED_SHARE = 0.3
"""Groups replaced for lack of signal, per group trained."""
TURN_BYTES = 8_000
CHECKPOINT_BYTES_PER_PARAM = 16
"""Weights and moments in f32, and published weights."""
EXTRA_CHECKPOINTS = 2
"""Kept beside the newest ones: the best, and one that is being written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePlan:
    name: str
    work: str
    """Amount of work, for people: `64 problems × 5 rollouts, up to 3 turns`."""
    wall_s: float | None
    basis: str = ""
    """Source of the time, or the reason for which there is none."""


class _Spent(NamedTuple):
    """Time of one kind of work in a phase."""

    wall_s: float
    """With all engines, judges or ranks at it."""
    core_s: float = 0
    """Seconds of one core that it keeps from others; 0 on GPUs."""


class Unknown(Exception):
    """No time can be predicted; the message is the reason."""


def predict_phases(
    experiment: Experiment, *, machine: Machine, params: int | None, placement: Placement,
    rates: Mapping[str, Rate] | None = None, shares: bool = False,
) -> Iterator[PhasePlan]:  # fmt: skip
    """Phases in order: prepare, then the stages. `rates` are times of earlier runs, by the phase's
    name; `shares`: evaluations are of the problems that are trained on."""
    costs = _Costs(experiment, placement, machine, params=params)
    prepared_s, work = _prepare(costs)
    yield PhasePlan(name="prepare", work=work, wall_s=prepared_s)
    for index, stage in enumerate(experiment.stage):
        name, work, wall_s = stage.label(index), _work(experiment, stage), None
        if shares and isinstance(stage, PlayStage):
            work += ", shared with training"
        if isinstance(stage, TrainStage) and stage.compile and placement.train:
            work += f", the first step {COMPILE_S:.0f} s longer (compile)"
        try:
            wall_s, basis = costs.stage(stage)
        except Unknown as error:
            basis = str(error)
        rate, num = (rates or {}).get(name), num_items(experiment, stage)
        if rate and num is not None:
            beside = f"{basis}: {minutes(wall_s)}" if wall_s else basis
            wall_s, basis = num * rate.s_per_item, f"as {rate.run} took ({beside})"
        costs.is_random &= not isinstance(stage, SftStage)
        yield PhasePlan(name=name, work=work, wall_s=wall_s, basis=basis)


class _Costs:
    def __init__(
        self, experiment: Experiment, placement: Placement, machine: Machine, *, params: int | None
    ) -> None:
        self.experiment, self.placement, self.machine = experiment, placement, machine
        self.params = params
        on_gpus = placement.train or placement.serve
        self._model_shape = model_shape(experiment.model) if on_gpus else None
        self.is_random = experiment.model.init is not None

    def stage(self, stage: Stage) -> tuple[float, str]:
        """Wall seconds of a stage, and what they rest on. Raises Unknown."""
        experiment, rollout = self.experiment, self.experiment.rollout
        if isinstance(stage, SftStage):
            rows = num_items(experiment, stage)
            if rows is None:
                raise Unknown("the number of rows is known when they are read")
            is_long = experiment.data.has_files or stage.source != "data"
            mean = stage.max_length if is_long else ROW_TOKENS
            on_card = f"a roofline of its cards, rows of {mean} tokens"
            return self.train(stage, rows * mean).wall_s, on_card if self.placement.train else ""
        tokens = rollout.max_completion_tokens
        if experiment.problems.source == "generated" and not self.is_random:
            tokens = min(tokens, ANSWER_TOKENS)
        basis = "a roofline of its cards" if self.placement.train else ""
        if self.placement.serve:
            basis = f"a roofline of its cards, answers of {tokens} tokens"
        if isinstance(stage, SearchStage) and (budget := Budget.parse(stage.budget)).unit == "s":
            return budget.amount, "its budget"
        if isinstance(stage, PlayStage):
            num, each, most = eval_size(experiment, stage)
            turns = most if self.is_random else turns_of(most)
            played = self.generate(num * each, turns=turns, tokens=tokens)
            return self._at_once(played, self.judge(num * each * turns)), basis
        turns, each = turns_of(rollout.max_turns), rollout.groups_per_step * rollout.group_size
        replaced = each * (1 + min(REPLACED_SHARE, rollout.max_replacements))
        played, judged = (
            _Spent(step.wall_s * stage.steps, step.core_s * stage.steps)
            for step in (
                self.generate(replaced, turns=turns, tokens=tokens), self.judge(replaced * turns)
            )
        )  # fmt: skip
        trained = stage.steps * each * turns * (PROMPT_TOKENS + tokens) * stage.updates_per_batch
        train = self.train(stage, trained)
        if rollout.max_staleness:
            return self._at_once(played, judged, train), basis
        return self._at_once(played, judged) + train.wall_s, basis

    def generate(self, num_rollouts: float, *, turns: float, tokens: float) -> _Spent:
        """Answers of `tokens` tokens, in so many turns of rollouts that are played at a time."""
        serve, total = self.experiment.serve, num_rollouts * turns * tokens
        if serve.url or self.experiment.cluster.serve:
            raise Unknown("engines are elsewhere")
        width = 4 if serve.precision == "exact" else 2
        if not self.placement.serve:
            each = (
                (GENERATE_S_PER_TOKEN + self._num_params * GENERATE_S_PER_TOKEN_PARAM) * width / 4
            )
            return _Spent(total * each / (serve.replicas * serve.threads), total * each)
        card, shape = self._card(self.placement.serve[0]), self._shape
        at_once = min(num_rollouts, serve.slots * serve.replicas)
        cache = at_once / serve.replicas * shape.kv_of(serve.context_tokens) / 2
        read = width * (shape.active_params + cache) / serve.tensor_parallel
        return _Spent(total / at_once * (DECODE_S + read / card.bytes))

    def judge(self, num: float, *, is_new: bool = False) -> _Spent:
        experiment, on = self.experiment, self.placement.judge
        if experiment.judge.url or experiment.cluster.judges:
            raise Unknown("judges are elsewhere")
        parts = experiment.problems.parts()
        shapes = max(len(part.shapes or ()) or 1 for part in parts)
        if not on:
            core_s = num * (SCREEN_S if self.is_random and not is_new else JUDGE_S * shapes)
            return _Spent(core_s / experiment.judge.workers, core_s)
        is_full = any(p.source != "generated" and not (p.overrides or p.shapes) for p in parts)
        each = JUDGE_FULL_S if is_full else JUDGE_NEW_S if is_new else JUDGE_GPU_S
        return _Spent(num * shapes * each / len(on))

    def train(self, stage: SftStage | GrpoStage, tokens: float) -> _Spent:
        """Forward and backward passes and optimizer steps, with the trainer's start."""
        cards, params = self.placement.train, self._num_params
        if not cards:
            each = TRAIN_S_PER_TOKEN + params * TRAIN_S_PER_TOKEN_PARAM
            core_s = START_S["trainer"] + tokens * each
            return _Spent(core_s / min(stage.threads, self.machine.cores), core_s)
        shape, adapter = self._shape, self.experiment.model.lora is not None
        mfu = share_of_peak(shape.active_params)
        mfu *= MFU_MIXTURE if shape.is_mixture else MFU_ADAPTER if adapter else 1
        flops = (4 if adapter else 6) * shape.active_params * tokens
        peak = num_ranks(self.experiment, cards) * self._card(cards).flops
        return _Spent(GPU_START_S + COMPILE_S * stage.compile + flops / (mfu * peak))

    @property
    def _num_params(self) -> int:
        return _known(self.params)

    @property
    def _shape(self) -> ModelShape:
        return _known(self._model_shape)

    def _card(self, gpus: tuple[Gpu, ...]) -> _Card:
        for name, card in CARDS.items():
            if name in gpus[0].name:
                return card
        raise Unknown(f"no data sheet of {gpus[0].name}, and no earlier run on it")

    def _at_once(self, *parts: _Spent) -> float:
        """Seconds of parts that work at the same time and share the cores."""
        on_cores = sum(part.core_s for part in parts) / self.machine.cores
        return max(on_cores, *(part.wall_s for part in parts))


def _known(value: T | None) -> T:
    if value is None:
        raise Unknown("the size of the model is unknown")
    return value


def share_of_peak(params: float) -> float:
    """`MFU` between its points by the logarithm of the size, beyond them at their ends."""
    for low, high in itertools.pairwise(MFU):
        if params < high:
            part = max(0.0, math.log(params / low) / math.log(high / low))
            return MFU[low] * (MFU[high] / MFU[low]) ** part
    return max(MFU.values())


def _prepare(costs: _Costs) -> tuple[float, str]:
    """Starts of judges, verdicts on broken answers for repairs, making of tokenizer and model."""
    experiment, workers = costs.experiment, costs.experiment.judge.workers
    num_judged, most = 0, most_broken(turns_played(experiment))
    if most and makes_pairs(experiment):
        repaired = _num_pairs(experiment) * experiment.data.repair_share
        num_judged = int(repaired * (1 + most) / 2)
    makes = experiment.model.init is not None
    start_s = START_S["supervisor"] + workers * START_S["judge"] + START_S["task"] * makes
    start_s += START_S["replica"] * experiment.serve.replicas * needs_serving(experiment)
    made = ["judges start"] * needs_judges(experiment)
    made += [f"{num_judged} broken answers judged"] * (num_judged > 0)
    made += ["tokenizer and model made"] * makes
    work = ", ".join(made) or "processes start"
    if costs.placement.judge:
        return start_s + costs.judge(num_judged, is_new=True).wall_s, work
    return (start_s + num_judged * JUDGE_S) / min(workers, costs.machine.cores), work


def _num_pairs(experiment: Experiment) -> int:
    problems = experiment.problems
    if not experiment.data.has_generated:
        return 0
    return min(sum(problems.sft_by_level), problems.num_problems - problems.num_reserved)


def num_items(experiment: Experiment, stage: Stage) -> float | None:
    if isinstance(stage, PlayStage):
        num, rollouts, _ = eval_size(experiment, stage)
        return num * rollouts
    if isinstance(stage, GrpoStage) or stage.epochs is None:
        return stage.steps * _step_items(experiment, stage)
    if experiment.data.has_files or stage.source != "data":
        return None
    return stage.epochs * _num_pairs(experiment) * (1 + experiment.data.repair_share)


def _step_items(experiment: Experiment, stage: SftStage | GrpoStage) -> int:
    rollout = experiment.rollout
    if isinstance(stage, SftStage):
        return stage.batch_size
    return rollout.groups_per_step * rollout.group_size


def turns_of(max_turns: int) -> float:
    return 1 + RETRY_SHARE * (max_turns - 1)


def eval_size(experiment: Experiment, stage: EvalStage | SearchStage) -> tuple[int, int, int]:
    """Numbers of problems, rollouts a problem (the greedy one included), maximum turns; of a search
    its answers, each of one turn, 0 if its budget is a time."""
    if isinstance(stage, SearchStage):
        budget = Budget.parse(stage.budget)
        longest = experiment.rollout.max_completion_tokens
        size = {"answers": 1, "tokens": longest, "s": math.inf}[budget.unit]
        return int(budget.amount // size), 1, 1
    table = experiment.eval
    greedy = table.greedy if stage.greedy is None else stage.greedy
    num_heldout = experiment.problems.num_reserved
    num_problems = min(stage.num_problems or num_heldout, num_heldout)
    rollouts = (stage.samples or table.samples) + int(greedy)
    return num_problems, rollouts, stage.max_turns or table.max_turns


def _work(experiment: Experiment, stage: Stage) -> str:
    if isinstance(stage, SearchStage):
        num = experiment.problems.num_reserved if stage.problems == "heldout" else None
        most = [each for each in (stage.num_problems, num) if each]
        size = count(min(most), "problem") if most else "all training problems"
        unit = " answers" if stage.budget.isdigit() else ""
        return f"{stage.strategy} on {size}, {stage.budget}{unit}"
    if isinstance(stage, PlayStage):
        num, rollouts, turns = eval_size(experiment, stage)
        size = f"{count(num, 'problem')} × {count(rollouts, 'rollout')}"
        return f"{size}, up to {count(turns, 'turn')}"
    if isinstance(stage, SftStage):
        length = f"{stage.steps} steps" if stage.epochs is None else f"{stage.epochs:g} epochs"
        data = experiment.data
        if stage.source != "data":
            return f"{length} × {stage.batch_size} rows of the run's own {stage.source}"
        names = [
            data.origin_of(index) + (f" (weight {part.weight:g})" if part.weight else "")
            for index, part in enumerate(data.sources or ())
        ]
        sources = f" of {', '.join(names)}" if names else ""
        return f"{length} × {stage.batch_size} rows{sources}"
    rollout = experiment.rollout
    size = f"{rollout.groups_per_step} groups × {rollout.group_size} rollouts"
    return f"{stage.steps} steps × {size}, up to {count(rollout.max_turns, 'turn')}"


def predict_disk_bytes(experiment: Experiment, *, params: int | None) -> int | None:
    if params is None:
        return None
    shape, lora = model_shape(experiment.model), experiment.model.lora
    # A checkpoint of an adapter has no base model.
    num_trained = shape.adapter_params(lora) if lora is not None and shape is not None else params
    turns, most = 0.0, 0
    for stage in experiment.stage:
        items = num_items(experiment, stage) or 0
        if isinstance(stage, PlayStage):
            turns += items * turns_of(eval_size(experiment, stage)[2])
            continue
        if isinstance(stage, GrpoStage):
            turns += items * turns_of(experiment.rollout.max_turns) * (1 + REPLACED_SHARE)
        kept = stage.keep_checkpoints
        if kept == "all":
            if not stage.steps:
                return None
            kept = math.ceil(stage.steps / stage.save_every)
        most = max(most, kept + EXTRA_CHECKPOINTS)
    return int(most * CHECKPOINT_BYTES_PER_PARAM * num_trained + turns * TURN_BYTES)


RATES = "rates.json"
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
FROM events e JOIN evaluations v ON v.stage_index = json_extract(e.data, '$.stage')
    AND v.stage LIKE 'eval-%'
WHERE e.kind = 'stage_end' AND seconds IS NOT NULL AND v.num_problems > 0
AND NOT EXISTS (SELECT 1 FROM events k WHERE k.kind = 'evaluation_continued'
    AND json_extract(k.data, '$.stage') = json_extract(e.data, '$.stage'))
"""
"""Without those that a resumed attempt continued: their seconds are those of a part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    run: str
    s_per_item: float
    peak_bytes: int | None = None
    """Memory of the trainer's largest rank; None on the CPU or without training."""


def load_rates(experiment: Experiment, placement: Placement) -> dict[str, Rate]:
    """Rates of this experiment's stages on these cards, by name. A damaged file has none: the next
    run writes it again."""
    known = _read(experiment.store.dir / RATES)
    found = dict[str, Rate]()
    for index, stage in enumerate(experiment.stage):
        with suppress(KeyError, TypeError):
            found[stage.label(index)] = Rate(**known[_key(experiment, stage, placement)])
    return found


def record_rates(paths: RunPaths, placement: Placement) -> None:
    """Add what a run on cards measured to the file; quick runs on cores are predicted well. A run
    that has ended does not fail by it."""
    if placement.gpus:
        try:
            _record(paths, placement)
        except Exception:  # boundary: the run is done
            logger.exception("%s: not written", RATES)


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
        elif isinstance(stage, TrainStage) and (row := steps.get(index)):
            each = row["step_s"] / _step_items(experiment, stage)
        else:
            continue
        rate = Rate(run=paths.name, s_per_item=each, peak_bytes=peaks.get(index))
        found[_key(experiment, stage, placement)] = asdict(rate)
    if found:
        path = paths.root.parent / RATES
        with path.with_suffix(".lock").open("w") as lock:  # other runs end, too
            fcntl.flock(lock, fcntl.LOCK_EX)
            write_file(path, json.dumps({**_read(path), **found}, indent=1) + "\n")


def _read(path: Path) -> Mapping[str, Any]:
    found: Any = None
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}


def _key(experiment: Experiment, stage: Stage, placement: Placement) -> str:
    """All that the time of a row or rollout depends on. Rows of other files count as the same."""
    model, rollout, serve = experiment.model, experiment.rollout, experiment.serve
    cards = {role: [gpu.name for gpu in gpus] for role, gpus in placement.by_role().items()}
    size = model.tiny.model_dump(mode="json") if model.init else model.path
    lora = model.lora and model.lora.model_dump(mode="json", include=_ADAPTER)
    parts: list[Any] = [stage.kind, size, lora, model.quantize is not None, model.dtype]
    if isinstance(stage, TrainStage):
        asked = stage.model_dump(mode="json", include=_TRAINING)
        parts += [asked, placement.parallel, placement.recomputes, experiment.cluster.train_nodes]
    if isinstance(stage, SftStage):
        sources = [(part.source, part.weight) for part in experiment.data.parts()]
        sources = sources if stage.source == "data" else [(stage.source, None)]
        parts += [cards["train"], stage.max_length, stage.loss_turns, sources]
    else:
        parts += [cards, placement.engine, serve.slots, serve.replicas, serve.precision]
        parts += [rollout.max_completion_tokens, experiment.problems.source]
    if isinstance(stage, GrpoStage):
        parts += [rollout.max_turns, stage.updates_per_batch, stage.beta > 0, rollout.max_staleness]
    if isinstance(stage, EvalStage):
        parts += [stage.max_turns or experiment.eval.max_turns]
    return json.dumps(parts, sort_keys=True)
