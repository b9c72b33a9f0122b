"""A checkpoint is written beside the next steps: killed at any moment, the run has a whole one."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest
import torch

from forge.train.checkpoints import checkpoint_dir, checkpoints, find_damage, find_resume_point

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def forking() -> Iterator[Popen[str]]:
    """The process that forks ranks: torch is imported once for all of them."""
    command = [sys.executable, "-um", "tests.train.saved"]
    with Popen(command, text=True, stdin=PIPE, stdout=PIPE) as process:
        yield process


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "ranks_after", "fatal", "step"),
    [(1, 2, "write_manifest", 1), (2, 1, "put_in_place", 2)],
)
def test_a_run_killed_in_a_save_continues_the_last_whole_checkpoint_on_any_number_of_ranks(
    forking: Any, tmp_path: Path, ranks: int, ranks_after: int, fatal: str, step: int
) -> None:
    from tests.train.saved import STEPS, small, train, whole

    def code_of(*given: object) -> int:
        print(*given, tmp_path, file=forking.stdin, flush=True)
        return int(forking.stdout.readline())

    assert code_of(ranks, step + 1, fatal) == -9
    assert list(checkpoints(tmp_path)) == list(range(1, step + 1))
    assert (tmp_path / ".staging" / f"checkpoint-{step + 1}").is_dir()
    assert find_resume_point(tmp_path).step == step
    files = {path.name for path in checkpoint_dir(tmp_path, step).iterdir()}
    shards = {f"__{rank}_0.distcp" for rank in range(ranks)}
    assert files == {*shards, ".metadata", "manifest.json", "more"}
    assert code_of(ranks_after, 0, fatal) == 0
    assert list(checkpoints(tmp_path)) == list(range(1, STEPS + 1))
    assert find_damage(checkpoint_dir(tmp_path, STEPS)) == ""
    undisturbed = small()
    for each in range(1, STEPS + 1):
        train(undisturbed, step=each)
    found = torch.load(tmp_path / "weights.pt")
    for name, tensor in whole(undisturbed).items():
        assert torch.equal(found[name], tensor), name


def alone() -> Any:
    from forge.train.trainer.child.parallel import SharedCard, World
    from forge.train.trainer.child.saving import Checkpoints

    return Checkpoints(World(), SharedCard(None), is_sharded=False)


def save(checkpoints: Any, path: Path, trained: Any, *, announce: Any = lambda: None) -> None:
    checkpoints.save(
        path, trained, with_moments=True, add_files=lambda folder: None, announce=announce
    )


def test_steps_go_on_while_a_checkpoint_is_written_and_do_not_change_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forge.train.trainer.child import saving
    from tests.train.saved import small, train, whole

    may_write, announced = threading.Event(), []
    writer = saving.filesystem.FileSystemWriter
    write = writer.write_data
    monkeypatch.setattr(writer, "write_data", lambda *given: may_write.wait(60) and write(*given))
    trained, checkpoints = small(), alone()
    train(trained, step=1)
    want = {name: tensor.clone() for name, tensor in whole(trained).items()}
    path = checkpoint_dir(tmp_path, 1)
    save(checkpoints, path, trained, announce=lambda: announced.append(path.is_dir()))
    train(trained, step=2)
    assert not path.exists()
    assert announced == []
    may_write.set()
    checkpoints.wait()
    assert announced == [True]
    other = small()
    other.load(path)
    for name, tensor in whole(other).items():
        assert torch.equal(tensor, want[name]), name
    assert other.schedule.last_epoch == 1


def test_a_copier_that_serves_one_save_as_that_of_torch_2_11_is_made_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forge.train.trainer.child import saving
    from tests.train.saved import small, train

    copy = saving.DefaultStager.stage

    def once(stager: Any, *given: Any) -> Any:
        found = copy(stager, *given)
        stager.close()
        return found

    monkeypatch.setattr(saving.DefaultStager, "stage", once)
    trained, checkpoints = small(), alone()
    for step in (1, 2):
        train(trained, step=step)
        save(checkpoints, checkpoint_dir(tmp_path, step), trained)
    checkpoints.wait()
    assert find_resume_point(tmp_path).step == 2


def test_without_memory_for_a_copy_the_checkpoint_is_whole_before_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forge.process.machine import HostMemory
    from forge.train.trainer.child import saving
    from tests.train.saved import small, train

    memory = HostMemory(used_bytes=10_000, total_bytes=11_000)
    monkeypatch.setattr(saving, "read_memory", lambda: memory)
    monkeypatch.setattr(saving, "fits_host", saving.fits_host.__wrapped__)  # undecided
    trained = small()
    train(trained, step=1)
    save(alone(), checkpoint_dir(tmp_path, 1), trained)
    assert find_resume_point(tmp_path).step == 1


def test_an_error_of_a_save_ends_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forge.train.trainer.child import saving
    from tests.train.saved import small, train

    def fail(*given: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(saving, "write_manifest", fail)
    trained, checkpoints = small(), alone()
    train(trained, step=1)
    save(checkpoints, checkpoint_dir(tmp_path, 1), trained)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.wait()
    assert find_resume_point(tmp_path).path is None
