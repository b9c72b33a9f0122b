"""`forge train --replay`: the record of a step, and one trainer child for it."""

import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from forge.commands import replay
from forge.commands import replay as replaying
from forge.config.load import load_experiment
from forge.errors import ChildDied, ConfigError, MachineError, Stalled
from forge.exits import ending_of
from forge.process.child import ChildSpec, open_child
from forge.process.environment import child_env
from forge.process.sockets import open_socket_dir
from forge.records import Metrics, Sample, Status
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from forge.train.batch import write_batch
from forge.train.checkpoints import checkpoint_dir, write_manifest
from tests.store.storefactory import group, samples, use, write_run
from tests.views.terminals import told

EXPERIMENT = """\
name = "toy"
[model]
path = "model"
[[stage]]
kind = "eval"
[[stage]]
kind = "grpo"
steps = 9
learning_rate = 1e-4
[[stage]]
kind = "grpo"
steps = 9
learning_rate = 1e-4
"""
W, C = Status.WRONG, Status.CORRECT
CHILD = """\
import sys, time
from pathlib import Path
from forge.process.ask import send_blocking
from forge.process.lease import hold_lease
config = hold_lease()
def post(path, **body):
    return send_blocking(Path(config["socket"]), "POST", path, body, server="control", timeout_s=30)
step = config["step"] - 1
taken = post("/take", step=step).json()
assert taken == {"kind": "batch", "step": step + 1, "samples_path": "batch.npz"}, taken
if config["act"] == "dies":
    sys.exit("no")
if config["act"] == "hangs":
    time.sleep(60)
if config["act"] == "is full":
    post("/failed", micro_batch_tokens=64, peak_bytes=1, free_bytes=2, rank=0)
    sys.exit("CUDA out of memory")
post("/trained", step=step + 1, metrics={"train/loss/mean": 0.5})
Path(config["saved"]).touch()
if config["act"] != "saves nothing":
    post("/checkpoint", step=step + 1)
assert post("/take", step=step + 1).json() == {"kind": "done"}
"""


def played(first: int, *, stage: int) -> tuple[list[Any], list[Sample]]:
    """Records of a group that step 1, and of one that step 2 of a stage trained, and samples."""
    records: list[Any] = []
    offered: list[Sample] = []
    for step in (1, 2):
        number = first + step
        made = group(number, [[W, C], [W]], stage=stage, step=step)
        turns = samples(made, first_id=10 * number)
        records += [made, *turns, *(use(s, step=step, staleness=0, stage=stage) for s in turns)]
        values = {replay.LOSS: 0.25 * step, replay.GRAD_NORM: 1.5, "rollout/reward/mean": 3.0}
        records.append(Metrics(stage=stage, step=step, at=1.0, values=values))
        offered += turns
    return records, offered


@pytest.fixture
def run(tmp_path: Path) -> tuple[RunPaths, list[Sample]]:
    """A run whose stages 1 and 2 trained steps 1 and 2, and samples of stage 2."""
    first, _ = played(0, stage=1)
    second, offered = played(10, stage=2)
    root = tmp_path / "toy-1"
    anyio.run(write_run, root, [*first, *second])
    (root / "experiment.toml").write_text(EXPERIMENT)
    (root / "batches").mkdir(exist_ok=True)
    return RunPaths(root), offered


def read(paths: RunPaths, step: int, *, stage: int | None = None) -> Any:
    experiment = load_experiment(paths.experiment, is_here=False)
    with open_run(paths) as reader:
        found = replay.find_stage(paths, reader, experiment, step=step, asked=stage)
        return replay.read_step(paths, reader, stage=found, step=step)


def save_checkpoint(paths: RunPaths, step: int) -> Path:
    folder = checkpoint_dir(paths.checkpoints / "stage-2", step)
    folder.mkdir(parents=True)
    (folder / "model").write_text("weights")
    write_manifest(folder)
    return folder


def rounded(many: Sequence[Sample]) -> list[Any]:
    """The samples with logprobs as both a batch file and the store keep them."""
    return [replace(s, logprobs=tuple(round(p, 5) for p in s.logprobs)) for s in many]


def test_a_step_is_rebuilt_from_the_store(run):
    paths, offered = run
    found = read(paths, 1)
    assert (found.stage, found.step, found.is_exact, found.checkpoint) == (2, 1, False, None)
    assert found.metrics == {replay.LOSS: 0.25, replay.GRAD_NORM: 1.5}
    assert rounded(found.samples) == rounded([s for s in offered if s.group_id == 11])


def test_a_batch_file_gives_the_recorded_order(run):
    paths, offered = run
    own = [s for s in offered if s.group_id == 12][::-1]
    write_batch(paths.batches / "2-000002.npz", own)
    folder = save_checkpoint(paths, 1)
    found = read(paths, 2)
    assert (found.is_exact, found.checkpoint) == (True, folder)
    assert [s.sample_id for s in found.samples] == [s.sample_id for s in own]


@pytest.mark.parametrize(
    ("step", "kept", "words"),
    [
        (3, (), r"step 3 was not trained by GRPO; trained steps: grpo-1: 1 to 2, grpo-2: 1 to 2"),
        (2, (4,), (r"after step 1, which is not kept; kept: 4; the nearest .* toy-1:1\. A run with "
                  r"stage\.2\.save_every = 1 and stage\.2\.keep_checkpoints")),
    ],
)  # fmt: skip
def test_what_is_missing_is_named_with_what_is_there(run, step, kept, words):
    paths, _ = run
    for each in kept:
        save_checkpoint(paths, each)
    with pytest.raises(ConfigError, match=words):
        read(paths, step)


def test_dropped_tokens_are_named(run):
    paths, _ = run
    paths.tokens_db.unlink()
    for name in ("tokens.db-wal", "tokens.db-shm"):
        (paths.root / name).unlink(missing_ok=True)
    anyio.run(write_run, paths.root, [])
    (paths.experiment).write_text(EXPERIMENT)
    with pytest.raises(ConfigError, match=r"tokens of 3 of 3 samples .* store\.keep_tokens"):
        read(paths, 1)


@pytest.mark.parametrize(
    ("key", "step", "words"),
    [
        ("judge.workers", 1, "not a key of this step"),
        ("stage.1.loss", 1, "not a key of this step"),
        ("stage.2.learning_rate", 2, "step 2 continues a checkpoint"),
        ("stage.2.learning_rate", 1, ""),
        ("stage.2.loss", 2, ""),
        ("rollout.temperature", 2, ""),
        ("devices.gpus", 2, ""),
    ],
)
def test_only_keys_of_the_step_may_be_set(key, step, words):
    check = partial(replay._check_overrides, [f"{key}=1"], stage=2, step=step)
    if not words:
        return check()
    with pytest.raises(ConfigError, match=rf"--set {key}: .*{words}"):
        check()


@pytest.mark.parametrize(
    "spec", ["toy-1", "toy-1:", ":3", "toy-1:0", "toy-1:x", "toy-1:-1", "toy-1:1.5"]
)
def test_a_spec_without_run_or_step_is_refused(spec, capsys):
    assert "found no RUN:STEP" in told(capsys, "train", "--replay", spec, code=2)


def report(loss: float, norm: float = 1.5, **changes: Any) -> replay.ReplayReport:
    keys: dict[str, Any] = {
        "run": "toy-1", "stage": 2, "step": 3, "device": "cpu", "num_samples": 8,
        "is_exact": True, "overrides": (), "checkpoint": None,
        "recorded": {replay.LOSS: 0.5, replay.GRAD_NORM: 1.5},
    }  # fmt: skip
    return replay.ReplayReport(
        **{**keys, **changes}, replayed={replay.LOSS: loss, replay.GRAD_NORM: norm}
    )


def test_rounding_is_the_same_and_more_is_not():
    assert report(0.5).is_same
    assert report(0.5 + 1e-6).is_same
    assert not report(0.5 + 1e-4).is_same
    assert not report(0.5, 1.6).is_same
    assert not report(0.5, recorded={}).is_same


async def trained(tmp_path: Path, act: str, *, is_saved: bool = False) -> Any:
    """The metrics of a child that acts like a trainer."""
    script = tmp_path / "trainer.py"
    script.write_text(CHILD)
    stage = SimpleNamespace(step_timeout_s=3.0 if act == "hangs" else 60.0)
    with open_socket_dir() as socket_dir:
        job: Any = SimpleNamespace(control_socket=socket_dir / "control.sock", stage=stage)
        spec = ChildSpec(
            name="trainer", argv=(sys.executable, str(script)), log_path=tmp_path / "trainer.log",
            env=child_env(threads=1), socket_path=None, stop_grace_s=60.0,
            config={
                "socket": job.control_socket, "step": 7, "act": act, "saved": tmp_path / "saved",
            },
        )  # fmt: skip

        @asynccontextmanager
        async def open_fake(_: Any) -> AsyncGenerator[Any]:
            async with open_child(spec) as child:
                yield child

        with pytest.MonkeyPatch.context() as patch, anyio.fail_after(90):
            patch.setattr(replaying, "open_trainer", open_fake)
            return await replay.train_batch(job, batch=Path("batch.npz"), step=7, is_saved=is_saved)


def test_a_child_without_an_out_ends_before_it_saves(tmp_path):
    assert anyio.run(trained, tmp_path, "") == {replay.LOSS: 0.5}
    assert not (tmp_path / "saved").exists()


def test_a_child_with_an_out_saves_and_ends(tmp_path):
    found = anyio.run(partial(trained, tmp_path, "", is_saved=True))
    assert found == {replay.LOSS: 0.5}
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize(
    ("act", "error", "words"),
    [
        ("dies", ChildDied, "while replaying step 7: exit 1"),
        pytest.param("hangs", Stalled, "silent for 3 s; asked: step 7", marks=pytest.mark.long),
        ("is full", MachineError, "GPU memory ran out in step 7"),
        ("saves nothing", ChildDied, "while replaying step 7: exit 0"),
    ],
)
def test_a_child_that_fails_is_one_error(tmp_path, act, error, words):
    with pytest.raises((error, ExceptionGroup)) as caught:
        anyio.run(partial(trained, tmp_path, act, is_saved=True))
    ending = ending_of(caught.value)
    assert ending.code == error.exit_code
    assert words in ending.message
