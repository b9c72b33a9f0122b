"""Starting trainer children and the children that make a model directory. No torch.

`open_trainer` gives a Child that is a client of control.sock. A child that ends with exit 0 has
trained and published all its steps, or was asked to stop and has saved a checkpoint.

If the ranks of a trainer are on several machines, rank 0 and its neighbours stay on the
supervisor's; `forge.cluster` brings the files of a job to the others and starts their child.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import anyio
from pydantic import BaseModel

from forge.config.schema import GrpoStage, ModelTable, RolloutTable, SftStage, TinyModel
from forge.errors import ConfigError, MachineError
from forge.process.child import Child, ChildSpec, ProcessObserver, open_child
from forge.process.environment import Rendezvous, child_env, free_port
from forge.train.refusals import missing_package, refusals

GRACE_S = 2.0
"""Time for ranks elsewhere to end: they have ended with rank 0, or wait for others that are lost.
"""
FILES = ("model_dir", "adapter", "rows_path", "checkpoint")


def files_of(job: TrainerJob) -> dict[str, Path]:
    paths = {name: getattr(job, name) for name in FILES}
    return {name: path for name, path in paths.items() if path is not None}


def split_job(job: TrainerJob, num_others: int, *, address: str) -> list[TrainerJob]:
    """The job of each machine, this one first, with equally many ranks each. `address`: of this
    machine, as the others reach it."""
    num = job.ranks
    meeting = Rendezvous(
        address=address, port=free_port(address), host=address, first=0, num_here=num
    )
    return [
        replace(job, num_ranks=num * (1 + num_others), meeting=replace(meeting, first=num * index))
        for index in range(1 + num_others)
    ]


def most_others(job: TrainerJob, found: int) -> int | None:
    """The largest number of other machines, up to those found, over which the stage can be
    continued; None if there is none, not even 0."""
    for num in range(found, -1, -1):
        ranks = job.ranks * (1 + num)
        is_one_shard = ranks == 1 and job.gpus and job.stage.parallel == "fsdp2"
        if not is_one_shard and not refusals(
            job.stage, model=job.model, model_dir=job.model_dir, num_gpus=ranks
        ):
            return num
    return None


def ranks_spec(
    name: str, config: Mapping[str, Any], *, files: Mapping[str, str], address: str, folder: Path,
    work: Path, gpus: Sequence[str],
) -> ChildSpec:  # fmt: skip
    """Ranks that report nothing and write no file of the run: rank 0 is the supervisor's. `config`
    and `address` are of this machine; `files`: where those of the job were brought to; `folder` is
    for the log, `work` for the ranks' own files."""
    job: dict[str, Any] = {**config}
    for key, brought in files.items():
        # A step's number is in its checkpoint's name, and rows are one file.
        link = work / Path(job[key]).name
        link.symlink_to(Path(brought, link.name) if key == "rows_path" else brought)
        job[key] = str(link)
    own = {
        "work_dir": str(work), "weights_dir": str(work), "gpus": list(gpus), "shared_gpus": [],
        "control_socket": str(folder / "none.sock"), "meeting": {**job["meeting"], "host": address},
    }  # fmt: skip
    spec = trainer_spec(
        name, {**job, **own}, log_dir=folder, threads=job["stage"]["threads"], gpus=gpus
    )
    return replace(spec, stop_grace_s=GRACE_S)


STOP_GRACE_S = 60.0
"""Time to finish and save the current step after a stop request."""
QUIET = {"TQDM_DISABLE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
"""Environment that turns off progress bars and notices, which would only fill the log."""
FAILURE = "failure.json"
"""File in the work directory of ranks elsewhere, with what they would report over control.sock."""
INIT_TIMEOUT_S = 300.0
"""Imports take 5 s, a tokenizer on a few MB of text another 5 s."""
GGUF_BYTES = 1 << 28
"""Size of a file that may take INIT_TIMEOUT_S more; 100 MB take 20 s on two cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerJob:
    stage: SftStage | GrpoStage
    model: ModelTable
    """Loading options of the model in `model_dir` and `adapter`."""
    model_dir: Path
    adapter: Path | None = None
    """Adapter to train further; without one, `model.lora` makes a new one."""
    rows_path: Path | None = None
    """SFT only: JSON lines with `input_ids` and `completion_mask` of a `TrainingRow`."""
    rollout: RolloutTable = field(default_factory=RolloutTable)
    seed: int
    work_dir: Path
    """Directory of this stage: `checkpoint-N` and their staging directories."""
    checkpoint: Path | None = None
    weights_dir: Path
    """Parent of published directories, each owned by the supervisor once it is published."""
    control_socket: Path
    log_dir: Path
    gpus: Sequence[str] = ()
    """UUIDs, one rank each; empty for one rank on the CPU."""
    shared_gpus: Collection[str] = ()
    """UUIDs of GPUs shared with other processes: the trainer uses them under a lease."""
    num_ranks: int | None = None
    """Number of ranks, if it is not the number of GPUs: on CPUs, or on several machines."""
    meeting: Rendezvous | None = None
    """The ranks of this machine, if others have some too."""
    micro_batch_scale: float = 1.0
    """Size of the micro-batches relative to the stage's."""
    publish_dtype: Literal["float32", "bfloat16"] | None = None
    """Type that published weights are rounded to; None leaves them as trained."""
    shares_weights: bool = False
    """Publish weights that are no checkpoint's in the memory of the first GPU."""
    eval_every: int = 0
    """Steps between evaluations of a grpo stage, 0 for none."""
    publish_timeout_s: float = 600.0
    """Maximum time until every replica serves new weights."""
    publishes: bool = True
    """False for a replayed step of grpo, whose weights nothing serves."""

    def config(self) -> dict[str, Any]:
        values = {each.name: _to_json(getattr(self, each.name)) for each in fields(self)}
        return {**values, "num_ranks": self.ranks, "shared_gpus": sorted(self.shared_gpus)}

    @property
    def ranks(self) -> int:
        return self.num_ranks or max(1, len(self.gpus))


def _to_json(value: object) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Rendezvous):
        return asdict(value)
    if isinstance(value, Path):
        return str(value.absolute())
    return value


def open_trainer(
    job: TrainerJob, *, observer: ProcessObserver | None = None
) -> AbstractAsyncContextManager[Child]:
    """Start the trainer of a stage. Raises ConfigError if the stage cannot train this model,
    MachineError if a package is missing."""
    stage = job.stage
    if mistakes := refusals(stage, model=job.model, model_dir=job.model_dir, num_gpus=job.ranks):
        raise ConfigError(f"stage {stage.kind}: " + "; ".join(mistakes))
    if missing := missing_package(stage, model=job.model):
        raise MachineError(f"stage {stage.kind}: {missing}")
    job.work_dir.mkdir(parents=True, exist_ok=True)
    spec = trainer_spec(
        "trainer", job.config(), log_dir=job.log_dir, threads=stage.threads, gpus=job.gpus
    )
    return open_child(spec, observer=observer)


def trainer_spec(
    name: str, config: Mapping[str, Any], *, log_dir: Path, threads: int, gpus: Sequence[str]
) -> ChildSpec:
    """The child that has the ranks of one machine. `config`: that of a job."""
    return ChildSpec(
        name=name,
        argv=(sys.executable, "-m", "forge.train.trainer"),
        log_path=log_dir / f"{name}.log",
        env=child_env(threads=threads, gpus=gpus, extra=QUIET),
        socket_path=None,
        config=config,
        stop_grace_s=STOP_GRACE_S,
        devices=",".join(gpus) or "cpu",
    )


async def run_init_model(
    tiny: TinyModel, *, texts_path: Path, out_dir: Path, log_dir: Path, seed: int,
    observer: ProcessObserver | None = None,
) -> None:  # fmt: skip
    """Make a random model in `out_dir`, and a tokenizer from `texts_path`, JSON lines of strings.
    Raises ChildDied with the last lines of its log."""
    given = {
        "tiny": tiny.model_dump(mode="json"), "texts_path": str(texts_path.absolute()),
        "seed": seed, "model_dir": str(out_dir.absolute()),
    }  # fmt: skip
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    await run_for_result(
        "forge.train.trainer.model.init_model", given, log_dir=log_dir, makes="a model directory",
        timeout_s=INIT_TIMEOUT_S, observer=observer,
    )  # fmt: skip


async def run_from_gguf(path: Path, *, out_dir: Path, threads: int) -> None:
    """Make the model directory `out_dir` of a GGUF file. Raises ConfigError if the file cannot
    become the model that llama.cpp computes, ChildDied, MachineError for a full disk."""
    timeout_s = INIT_TIMEOUT_S * (1 + path.stat().st_size / GGUF_BYTES)
    given = {"path": str(path.absolute()), "model_dir": str(out_dir.absolute())}
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        result = await run_for_result(
            "forge.train.trainer.model.from_gguf", given, log_dir=Path(folder),
            makes="a model directory", timeout_s=timeout_s, threads=threads,
        )  # fmt: skip
    if "refused" in result:
        raise ConfigError(result["refused"])
    if "disk" in result:
        raise MachineError(f"{out_dir.parent}: the disk is full; XDG_CACHE_HOME names another one")


async def run_for_result(
    module: str, given: Mapping[str, Any], *, log_dir: Path, makes: str, timeout_s: float,
    threads: int = 1, extra: Mapping[str, str] = QUIET, observer: ProcessObserver | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Run `python -m MODULE CONFIG`; returns the JSON of its result file. `makes`: what is asked of
    it. Raises ChildDied if it ended without a result, Stalled."""
    name = module.rpartition(".")[2].replace("_", "-")
    result_path = log_dir / f"{name}.result.json"
    result_path.unlink(missing_ok=True)
    spec = ChildSpec(
        name=name, argv=(sys.executable, "-m", module), log_path=log_dir / f"{name}.log",
        env=child_env(threads=threads, extra=extra), socket_path=None,
        config={**given, "threads": threads, "result_path": str(result_path.absolute())},
    )  # fmt: skip
    async with open_child(spec, observer=observer) as child:
        with anyio.move_on_after(timeout_s) as scope:
            await child.wait()
        if scope.cancelled_caught:
            child.dump_stacks()
            raise child.stalled(asked=makes, silent_s=timeout_s)
        if not result_path.is_file():
            raise child.died(doing=f"making {makes}")
        return json.loads(result_path.read_text())
