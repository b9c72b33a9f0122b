"""The checkpoint that a stage continues, what is said about damage, what stays, and going back."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from forge.config.schema import GrpoStage
from forge.errors import MachineError
from forge.records import Event, Metrics, PolicyVersion, Status
from forge.runner.stages.checkpoints import BatchShelf, StageCheckpoints
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from forge.store.resume import last_state, last_steps, untrained_groups
from forge.store.write.writer import open_writer
from forge.train.checkpoints import checkpoint_dir, checkpoints, write_manifest
from tests.runner.stages.desks import batch, can_record
from tests.store.storefactory import Options, attempt, evaluation, group, make_root, samples, use

ROWS = [[Status.WRONG], [Status.CORRECT]]
TABLE = GrpoStage(kind="grpo", steps=20, learning_rate=1e-4)


def step_records(step: int) -> list[Any]:
    """One trained step of stage 1: a group, its samples, their use, the loss, new weights."""
    played = group(step, ROWS, step=step, version=step)
    made = samples(played, first_id=10 * step)
    metrics = Metrics(stage=1, step=step, at=1.0, values={"train/loss/mean": 0.5})
    policy = PolicyVersion(
        version=step + 1, attempt=1, stage=1, step=step, path=f"weights/grpo-{step:06d}",
        sha256="", publish_s=0.1, probe_gap=0.0,
    )  # fmt: skip
    return [played, *made, *(use(each, step=step) for each in made), metrics, policy]


class Stage:
    """Stage 1 of a run on disk: trained up to step 5, checkpoints of 2 and 4."""

    def __init__(self, root: Path, writer: Any) -> None:
        self.said: list[str] = []
        self.paths = RunPaths(root)
        self.writer = writer
        self.shelf = BatchShelf(self.paths.batches, stage=1)
        console = SimpleNamespace(say=self.said.append)
        self.run: Any = SimpleNamespace(paths=self.paths, writer=writer, console=console)
        can_record(self.run)
        self.checkpoints = StageCheckpoints(self.run, TABLE, 1)
        self.folder = self.paths.checkpoints / "stage-1"

    def save(self, step: int) -> None:
        folder = checkpoint_dir(self.folder, step)
        folder.mkdir(parents=True)
        (folder / "optimizer.pt").write_bytes(b"optimizer")
        write_manifest(folder)

    def damage(self, step: int) -> None:
        (checkpoint_dir(self.folder, step) / "optimizer.pt").write_bytes(b"optimizes")

    def events(self, kind: str) -> list[str]:
        with open_run(self.paths) as reader:
            rows = reader.query("SELECT message FROM events WHERE kind = ?", (kind,)).rows
        return [message for (message,) in rows]


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    root = tmp_path / "toy-1"
    make_root(root)
    (root / "batches").mkdir()
    async with open_writer(root, Options()) as writer:
        found = Stage(root, writer)
        await writer.put(attempt(1), *(r for step in range(1, 6) for r in step_records(step)))
        for step in (2, 3, 4, 5, 6):
            await found.shelf.add(batch(step, state={"of": step}))
        for step in (2, 4):
            found.save(step)
            await found.checkpoints.saved(step, found.shelf)
        await writer.put(attempt(2))
        await writer.flush()
        yield found


async def test_the_newest_whole_checkpoint_is_continued_and_damage_is_said_once(
    stage: Stage,
) -> None:
    assert (await stage.checkpoints.choose()).step == 4
    assert stage.said == []
    stage.damage(4)
    for _ in range(2):
        assert (await stage.checkpoints.choose()).step == 2
    line = (
        "checkpoints/stage-1/checkpoint-4: optimizer.pt: its content has changed; grpo-1 continues "
        "from checkpoint-2, steps 3 to 5 are trained again"
    )
    await stage.writer.flush()
    assert stage.said == stage.events("checkpoint_damaged") == [line]


async def test_a_checkpoint_of_weights_alone_is_continued_and_said_to_be_one(stage: Stage) -> None:
    table = TABLE.model_copy(update={"save": "weights"})
    point = await StageCheckpoints(stage.run, table, 1).choose()
    assert point.step == 4
    (said,) = stage.said
    assert said.startswith('grpo-1: checkpoint-4 has the weights alone (save = "weights"); ')


async def test_a_stage_that_lost_every_checkpoint_says_how_to_begin_anew(stage: Stage) -> None:
    shutil.rmtree(stage.folder)
    match = r'checkpoint-4: missing; no whole .* "forge resume toy-1 --from 0" trains grpo-1 from'
    with pytest.raises(MachineError, match=match):
        await stage.checkpoints.choose()


async def test_batches_are_kept_for_the_older_checkpoint(stage: Stage) -> None:
    """From checkpoint-2 the batches of 3, 4, ... are trained again, and 2 has the state."""
    names = sorted(path.name for path in stage.paths.batches.iterdir())
    assert names == [f"1-{step:06d}.npz" for step in (2, 3, 4, 5, 6)]
    stage.damage(4)
    point = await stage.checkpoints.choose()
    shelf = BatchShelf(stage.paths.batches, stage=1)
    await stage.checkpoints.recover(shelf, point)
    assert (shelf.last_step, shelf.last_state) == (6, {"of": 6})
    assert shelf.path(3) is not None
    assert len(stage.said) == 1, "no batch is lost"


async def test_all_checkpoints_stay_and_batches_only_for_the_newest_two(stage: Stage) -> None:
    table = TABLE.model_copy(update={"keep_checkpoints": "all"})
    kept = StageCheckpoints(stage.run, table, 1)
    for step in (6, 8):
        stage.save(step)
        oldest = await kept.saved(step, stage.shelf)
    assert oldest == 6
    assert list(checkpoints(stage.folder)) == [2, 4, 6, 8]
    names = sorted(path.name for path in stage.paths.batches.iterdir())
    assert names == [f"1-{step:06d}.npz" for step in (2, 4, 6)], "3 and 5 would be played again"


async def test_the_newest_two_and_the_best_by_evaluation_stay(stage: Stage) -> None:
    for step, solved in ((2, 0.9), (4, 0.1), (6, 0.3)):
        found = evaluation(f"grpo-1@{step}", step=step, pass_at_1=solved)
        await stage.writer.put(found)
    await stage.writer.flush()
    for step in (6, 8):
        stage.save(step)
        if step == 8:
            stage.damage(6)
        await stage.checkpoints.saved(step, stage.shelf)
    assert list(checkpoints(stage.folder)) == [2, 6, 8]
    names = sorted(path.name for path in stage.paths.batches.iterdir())
    assert names == ["1-000002.npz", "1-000006.npz"], "2 for its state; 3 to 5 are played again"


async def test_a_lost_batch_that_was_trained_is_played_again_and_no_longer_counts(
    stage: Stage,
) -> None:
    (stage.paths.batches / "1-000005.npz").unlink()
    point = await stage.checkpoints.choose()
    shelf = BatchShelf(stage.paths.batches, stage=1)
    await stage.checkpoints.recover(shelf, point)
    assert (shelf.last_step, shelf.last_state) == (4, {"of": 4})
    words = "grpo-1 goes back to step 4, step 5 is played and trained again"
    assert stage.said == [f"batches/1-000005.npz: missing; {words}"]
    with open_run(stage.paths) as reader:
        assert last_steps(reader, stage=1) == (4, 4)


async def test_a_lost_batch_that_was_not_trained_is_made_again(stage: Stage) -> None:
    (stage.paths.batches / "1-000006.npz").write_bytes(b"PK")
    shelf = BatchShelf(stage.paths.batches, stage=1)
    await stage.checkpoints.recover(shelf, await stage.checkpoints.choose())
    assert shelf.last_step == 5
    (line,) = stage.said
    assert line.startswith("batches/1-000006.npz: damaged (")
    assert line.endswith("; grpo-1: step 6 is made again")
    with open_run(stage.paths) as reader:
        assert last_steps(reader, stage=1) == (5, 4), "what was trained counts"


async def test_trained_batches_are_not_lost_silently_before_the_first_checkpoint(
    stage: Stage,
) -> None:
    shutil.rmtree(stage.folder)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stage.checkpoints.go_back, 1, stage.shelf)
    stage.said.clear()
    await stage.writer.put(Metrics(stage=1, step=2, at=2.0, values={"train/loss/mean": 0.5}))
    await stage.writer.flush()
    point = await stage.checkpoints.choose()
    assert point.path is None
    with pytest.raises(MachineError, match=r"batches/1-000001.npz: missing; .*--from 0"):
        await stage.checkpoints.recover(BatchShelf(stage.paths.batches, stage=1), point)


async def test_going_back_deletes_later_files_and_marks_later_rows(stage: Stage) -> None:
    await stage.checkpoints.go_back(2, stage.shelf)
    assert list(checkpoints(stage.folder)) == [2]
    assert [path.name for path in stage.paths.batches.iterdir()] == ["1-000002.npz"]
    assert (await stage.checkpoints.choose()).step == 2
    line = "grpo-1 goes back to step 2, steps 3 to 5 are played and trained again"
    assert stage.said == stage.events("rewind") == [line]
    with open_run(stage.paths) as reader:
        assert last_steps(reader, stage=1) == (2, 2)
        state = last_state(reader)
        steps = [step for (step,) in reader.query("SELECT step FROM v_steps").rows]
        trained = {step for (step,) in reader.query("SELECT step FROM v_samples").rows}
        ages = {step for (step,) in reader.query("SELECT step FROM v_staleness").rows}
        kept = reader.value("SELECT count(*) FROM sample_uses")
        assert untrained_groups(reader, stage=1) == []
    assert (state.steps, [p.step for p in state.policies]) == ({1: 2}, [2])
    assert (state.policy_version, state.sample_id) == (6, 51), "numbers are never used again"
    assert sorted(steps) == sorted(trained) == sorted(ages) == [1, 2]
    assert kept == 10, "nothing is deleted"


async def test_a_step_trained_again_counts_once(stage: Stage) -> None:
    await stage.checkpoints.go_back(2, stage.shelf)
    again = group(40, ROWS, step=3, version=9)
    made = samples(again, first_id=400)
    await stage.writer.put(again, *made, *(use(each, step=3) for each in made))
    await stage.writer.put(
        Event(at=1.0, kind="checkpoint", message="", data={"stage": 1, "step": 3})
    )
    await stage.writer.flush()
    with open_run(stage.paths) as reader:
        rows = reader.query("SELECT num_groups, num_turns FROM v_steps WHERE step = 3").rows
        found = reader.query("SELECT sample_id FROM v_samples WHERE step = 3").rows
        assert last_steps(reader, stage=1)[1] == 3
    assert rows == ((1, 2),)
    assert sorted(each for (each,) in found) == [400, 401]
