"""`forge train --replay RUN:STEP`: trains a recorded GRPO step again, and compares its metrics.

The trainer gets the recorded batch, the checkpoint that the step began from and the settings of the
run's stage, with the overrides of `--set`. It publishes nothing, and nothing here writes to the
run: its files are in a temporary directory, or with `--out` in that one.

    stage   the last grpo stage that trained the step, or the one that is asked for
    batch   the batch file, which exists near kept checkpoints; else rows of the store with their
            tokens, in the order of their ids
    start   checkpoint of the step before; the weights that the stage began with, for step 1

One trainer child gets one batch over control.sock, whose other side is `_Desk`. Without `--out` the
child is killed once it has sent the metrics, before it would save.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from forge.config.load import load_experiment
from forge.config.schema import Experiment, GrpoStage
from forge.errors import ConfigError, MachineError
from forge.process.child import Child
from forge.process.server.door import Door, read_object
from forge.process.server.serving import serve_task
from forge.process.sockets import open_socket_dir
from forge.records import Sample, split_step
from forge.runner.control import AtStep, MemoryFailure, Report, read_body_as
from forge.runner.plan.machine import Machine, open_claimed, this_machine
from forge.runner.plan.placement import Placement, place
from forge.runner.prepare.hub import locate_model
from forge.runner.stages.trainer import memory_error, resolve_auto
from forge.runner.weights.resume import check_there, load_stage_weights, on_model
from forge.serve.weights import Weights
from forge.store.codec import decode_ids, decode_logprobs
from forge.store.layout import RunPaths, find_run
from forge.store.reader import RunReader, open_run
from forge.train.batch import BadBatch, read_batch, write_batch
from forge.train.checkpoints import STAGING, checkpoint_dir, checkpoints, find_damage
from forge.train.handle import TrainerJob, open_trainer
from forge.views.text import printable

IN_CHECKPOINT = ("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "optimizer")
"""Keys of a stage whose values a checkpoint of the optimizer and its schedule contains."""
ROLLOUT_KEYS = ("rollout.temperature", "rollout.max_completion_tokens")

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
LOSS, GRAD_NORM = "train/loss/mean", "train/grad_norm/value"
SHOWN = (
    LOSS, GRAD_NORM, "train/learning_rate/value", "train/ratio/mean", "train/ratio/max",
    "train/clipped/share", "train/kl_behaviour/mean", "train/kl_reference/mean",
    "train/entropy/mean", "train/tokens/sum", "train/samples/count", "train/micro_batches/count",
)  # fmt: skip
"""Metrics that the batch, the weights and the settings determine; times are left out."""
RELATIVE = 1e-5
"""Largest relative difference of loss and gradient norm that counts as equal: float32 sums in
another order differ by about 1e-6."""


def replay(
    spec: str,
    *,
    overrides: Sequence[str],
    stage: int | None,
    out: Path | None,
    store_dir: Path,
    say: Callable[[str], None],
) -> ReplayReport:
    """Train a recorded step again. Raises ConfigError: no such step, what it needs was not kept, or
    an override without an effect; MachineError: a damaged checkpoint, or too little GPU memory;
    ChildDied, Stalled: the trainer failed. `out` gets the checkpoint after the step."""
    name, step = split_step(spec)
    if not step or int(step) < 1:
        raise ConfigError(
            f"--replay {spec}: found no RUN:STEP; write e.g. --replay quickstart-1:10"
        )
    if out is not None and out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: found a file; a directory, which may be absent")
    if out is not None and checkpoint_dir(out, int(step)).exists():
        raise ConfigError(f"--out {out}: found checkpoint-{step} in it; another directory")
    paths = find_run(name, store_dir=store_dir)
    recorded, experiment, start = _read(paths, int(step), stage, overrides)
    with (
        open_claimed(
            partial(_place, experiment),
            look=partial(this_machine, experiment.store.dir),
            run=f"forge train --replay {spec}",
            say=say,
        ) as (placement, _),
        tempfile.TemporaryDirectory() as temporary,
        open_socket_dir() as socket_dir,
    ):
        folder = Path(temporary)
        folders = {
            "work_dir": out or folder / "work", "weights_dir": folder / "weights",
            "control_socket": socket_dir / "control.sock", "log_dir": folder / "logs",
        }  # fmt: skip
        job = _job(experiment, recorded, start, placement, **folders)
        batch = folder / "batch.npz"
        write_batch(batch, recorded.samples)
        train = partial(train_batch, job, batch=batch, step=int(step), is_saved=out is not None)
        metrics = anyio.run(train)
    if out is not None:
        shutil.rmtree(out / STAGING, ignore_errors=True)
    return ReplayReport(
        run=paths.name,
        stage=recorded.stage,
        step=recorded.step,
        device=", ".join(gpu.name for gpu in placement.train) or "cpu",
        num_samples=len(recorded.samples),
        is_exact=recorded.is_exact,
        overrides=tuple(overrides),
        recorded=recorded.metrics,
        replayed=metrics,
        checkpoint=None if out is None else str(checkpoint_dir(out, recorded.step)),
    )


def _read(
    paths: RunPaths, step: int, stage: int | None, overrides: Sequence[str]
) -> tuple[RecordedStep, Experiment, Weights]:
    """The record of a step; the experiment with the overrides, its model located; and the weights
    that the stage began with. The step is found by the recorded experiment."""
    with open_run(paths) as reader:  # first: of another version, its keys may be unknown too
        before = load_experiment(paths.experiment, is_here=False)
        stage = find_stage(paths, reader, before, step=step, asked=stage)
        _check_overrides(overrides, stage=stage, step=step)
        recorded = read_step(paths, reader, stage=stage, step=step)
        experiment = load_experiment(paths.experiment, overrides=overrides, is_here=False)
        model = locate_model(experiment.model)
        weights = on_model(load_stage_weights(reader)[stage], model)
    start = check_there(weights, whose=f"stage {stage} of {paths.name}")
    return recorded, experiment.model_copy(update={"model": model}), start


def _check_overrides(overrides: Sequence[str], *, stage: int, step: int) -> None:
    """Raises ConfigError for a key that does not enter the step."""
    own = f"stage.{stage}."
    for item in overrides:
        key = item.partition("=")[0].strip()
        if key.removeprefix(own) in IN_CHECKPOINT and key.startswith(own) and step > 1:
            raise ConfigError(
                f"--set {key}: step {step} continues a checkpoint, which has its own value; "
                "allowed for step 1"
            )
        if not (key.startswith((own, "devices.")) or key in ROLLOUT_KEYS):
            raise ConfigError(
                f"--set {key}: not a key of this step; {own}KEY, {', '.join(ROLLOUT_KEYS)} or "
                "devices.KEY"
            )


def _place(experiment: Experiment, machine: Machine) -> Placement:
    """The trainer alone on the cards; on the CPU if the machine has none."""
    devices = experiment.devices.model_copy(update={"serve": 0, "judge": 0})
    if not machine.gpus:
        devices = devices.model_copy(update={"gpus": None, "train": 0})
    return place(experiment.model_copy(update={"devices": devices}), machine)


def _job(
    experiment: Experiment,
    recorded: RecordedStep,
    start: Weights,
    placement: Placement,
    **folders: Any,
) -> TrainerJob:
    stage = experiment.stage[recorded.stage]
    assert isinstance(stage, GrpoStage), "find_stage chose a grpo stage"
    return TrainerJob(
        stage=resolve_auto(stage, placement, model=experiment.model, model_dir=start.full),
        model=experiment.model,
        model_dir=start.full,
        adapter=start.adapter,
        rollout=experiment.rollout,
        seed=experiment.seed,
        checkpoint=recorded.checkpoint,
        gpus=placement.train_uuids,
        publishes=False,
        **folders,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    stage: int
    step: int
    samples: Sequence[Sample]
    is_exact: bool
    """True if the samples come from the batch file: in the order of the recorded step."""
    metrics: Mapping[str, float]
    checkpoint: Path | None


def find_stage(
    paths: RunPaths, reader: RunReader, experiment: Experiment, *, step: int, asked: int | None
) -> int:
    """The stage of the step. Raises ConfigError if no grpo stage trained it."""
    grpo = [i for i, stage in enumerate(experiment.stage) if isinstance(stage, GrpoStage)]
    if asked is not None and asked not in grpo:
        raise ConfigError(
            f"--stage {asked}: found no grpo stage of this number in {paths.name}; allowed: "
            f"{', '.join(map(str, grpo)) or 'none'}"
        )
    trained = {i: _trained(reader, i) for i in (grpo if asked is None else [asked])}
    having = [i for i, steps in trained.items() if step in steps]
    if having:
        return having[-1]
    found = ", ".join(f"grpo-{i}: {_ranges(steps)}" for i, steps in trained.items()) or "none"
    raise ConfigError(f"{paths.name}: step {step} was not trained by GRPO; trained steps: {found}")


def read_step(paths: RunPaths, reader: RunReader, *, stage: int, step: int) -> RecordedStep:
    """The record of a trained step. Raises ConfigError: its checkpoint or its tokens were not kept;
    the message has the nearest kept one and the keys that keep more; MachineError: its checkpoint
    is damaged."""
    checkpoint = _checkpoint(paths, reader, stage=stage, step=step)
    samples, is_exact = _samples(paths, reader, stage=stage, step=step)
    rows = reader.query(_METRICS, (stage, step)).rows
    metrics = {key: value for key, value in rows if value is not None}
    return RecordedStep(
        stage=stage, step=step, samples=samples, is_exact=is_exact, checkpoint=checkpoint,
        metrics=metrics,
    )  # fmt: skip


def _checkpoint(paths: RunPaths, reader: RunReader, *, stage: int, step: int) -> Path | None:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    run: str
    stage: int
    step: int
    device: str
    num_samples: int
    is_exact: bool
    overrides: Sequence[str]
    recorded: Mapping[str, float]
    replayed: Mapping[str, float]
    checkpoint: str | None

    @property
    def is_same(self) -> bool:
        return all(self._is_equal(key) for key in (LOSS, GRAD_NORM))

    def _is_equal(self, key: str) -> bool:
        before, now = self.recorded.get(key), self.replayed.get(key)
        if before is None or now is None:
            return False
        return abs(now - before) <= RELATIVE * max(abs(before), abs(now), 1e-3)

    def to_json(self) -> dict[str, Any]:
        numbers = {
            name: {"recorded": self.recorded.get(key), "replayed": self.replayed.get(key)}
            for name, key in (("loss", LOSS), ("grad_norm", GRAD_NORM))
        }
        return {**asdict(self), **numbers, "is_same": self.is_same}

    def render(self) -> RenderableType:
        changed = f", with {' '.join(self.overrides)}" if self.overrides else ""
        head = (
            f"{self.run}: step {self.step} of grpo-{self.stage}, {self.num_samples} samples, on "
            f"{self.device}{changed}: loss and gradient norm are "
            f"{'those of the record' if self.is_same else 'different from the record'}"
        )
        parts: list[RenderableType] = [Text(printable(head)), Text(""), self._table()]
        if not self.is_exact:
            words = "the batch file is no longer kept: samples in the order of their ids"
            parts += [Text(""), Text(words, style="yellow")]
        if self.checkpoint is not None:
            parts += [Text(""), Text(printable(f"checkpoint: {self.checkpoint}"))]
        return Group(*parts)

    def _table(self) -> Table:
        table = Table("", "recorded", "replayed", "difference", box=None, pad_edge=False)
        for column in table.columns[1:]:
            column.justify = "right"
        for key in SHOWN:
            before, now = self.recorded.get(key), self.replayed.get(key)
            if before is None and now is None:
                continue
            difference = "" if before is None or now is None else f"{now - before:.3g}"
            table.add_row(key.removeprefix("train/"), _number(before), _number(now), difference)
        return table


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.9g}"


MAX_BODY_BYTES = 1 << 20
STACKS_S = 1.0
"""Time from the signal that dumps a child's stacks until they are in its log."""


async def train_batch(
    job: TrainerJob, *, batch: Path, step: int, is_saved: bool
) -> Mapping[str, float]:
    """Train one batch; returns the metrics of the step. `is_saved`: the child also writes the
    checkpoint after it, into `job.work_dir`. Raises ChildDied, Stalled: the trainer ended, or was
    silent for `step_timeout_s`; MachineError: GPU memory ran out."""
    desk = _Desk(batch=batch, step=step, is_saved=is_saved)
    async with desk.serving(job.control_socket), open_trainer(job) as child:
        try:
            with anyio.move_on_after(job.stage.step_timeout_s) as silence:
                await _until_done(desk, child)
            if silence.cancelled_caught:
                child.dump_stacks()
                await anyio.sleep(STACKS_S)
                raise child.stalled(asked=f"step {step}", silent_s=job.stage.step_timeout_s)
            if desk.failure is not None:
                words = memory_error(desk.failure, doing=f"step {step}", is_halved=False)
                raise MachineError(f"{words}. Allowed: --set with a smaller micro_batch_tokens")
            if desk.metrics is None or (is_saved and not desk.has_saved):
                raise child.died(doing=f"replaying step {step}")
        finally:
            # After SIGTERM it would finish its step and save, for which it has a minute.
            with anyio.CancelScope(shield=True):
                await child.kill()
            desk.gone.set()
    return desk.metrics


async def _until_done(desk: _Desk, child: Child) -> None:
    async with anyio.create_task_group() as tasks:

        async def first(event: anyio.Event) -> None:
            await event.wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(first, desk.done)
        await child.wait()
        tasks.cancel_scope.cancel()


class _Desk:
    """Answers of control.sock for one step."""

    def __init__(self, *, batch: Path, step: int, is_saved: bool) -> None:
        self._batch, self._step, self._is_saved = batch, step, is_saved
        self.done = anyio.Event()
        self.gone = anyio.Event()
        self.metrics: Mapping[str, float] | None = None
        self.failure: Mapping[str, Any] | None = None
        self.has_saved = False

    @asynccontextmanager
    async def serving(self, socket_path: Path) -> AsyncGenerator[None]:
        posts = {
            "/take": self._take, "/trained": self._trained, "/checkpoint": self._checkpoint,
            "/failed": self._failed,
        }  # fmt: skip
        routes = [
            Route(path, partial(_answer, handler), methods=["POST"])
            for path, handler in posts.items()
        ]
        app = Starlette(routes=routes, middleware=[Middleware(Door)])
        async with anyio.create_task_group() as tasks:
            await tasks.start(serve_task, app, socket_path)
            yield
            tasks.cancel_scope.cancel()

    async def _take(self, body: dict[str, Any]) -> dict[str, Any]:
        if read_body_as(AtStep, body).step != self._step - 1:
            return {"kind": "done"}
        return {"kind": "batch", "step": self._step, "samples_path": str(self._batch)}

    async def _trained(self, body: dict[str, Any]) -> dict[str, Any]:
        self.metrics = read_body_as(Report, body).metrics
        if not self._is_saved:
            self.done.set()
            await self.gone.wait()  # an answer would let the child save a checkpoint
        return {"save": True}

    async def _checkpoint(self, body: dict[str, Any]) -> dict[str, Any]:
        self.has_saved = True
        return {}

    async def _failed(self, body: dict[str, Any]) -> dict[str, Any]:
        self.failure = read_body_as(MemoryFailure, body).model_dump()
        return {}


async def _answer(handler: Any, request: Request) -> JSONResponse:
    return JSONResponse(await handler(await read_object(request, max_bytes=MAX_BODY_BYTES)))
