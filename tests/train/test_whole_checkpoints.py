"""A checkpoint is whole if every file has the size and the hash of its manifest."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from forge.errors import MachineError
from forge.train.checkpoints import (
    checkpoint_dir,
    checkpoints,
    find_damage,
    find_resume_point,
    remove_checkpoints,
    require_whole,
    write_manifest,
)


def save(work_dir: Path, step: int) -> Path:
    folder = checkpoint_dir(work_dir, step)
    (folder / "sub").mkdir(parents=True)
    (folder / "optimizer.pt").write_bytes(bytes(range(200)))
    (folder / "sub" / "scheduler.pt").write_text(f"step {step}")
    write_manifest(folder)
    return folder


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda f: (f / "optimizer.pt").write_bytes(b""), "optimizer.pt: 0 of 200 bytes"),
    (lambda f: (f / "optimizer.pt").write_bytes(b"12"), "optimizer.pt: 2 of 200 bytes"),
    (lambda f: flip(f / "optimizer.pt"), "optimizer.pt: its content has changed"),
    (lambda f: (f / "optimizer.pt").unlink(), "optimizer.pt: missing"),
    (lambda f: (f / "sub" / "scheduler.pt").unlink(), "sub/scheduler.pt: missing"),
    (lambda f: (f / "manifest.json").unlink(), "manifest.json: missing"),
    (lambda f: (f / "manifest.json").write_text("{"), "manifest.json: not the JSON"),
    (lambda f: (f / "manifest.json").write_text("[]"), "manifest.json: not the JSON"),
    (lambda f: (f / "manifest.json").write_text('{"files": {"a": 1}}'), "manifest.json: not the"),
    (shutil.rmtree, "missing"),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGES, ids=[words for _, words in DAMAGES])
def test_each_damage_is_found_and_an_older_checkpoint_is_used(
    tmp_path: Path, damage: Callable[[Path], object], words: str
) -> None:
    work_dir = tmp_path / "checkpoints" / "stage-1"
    older, newer = save(work_dir, 9), save(work_dir, 10)
    assert find_damage(newer) == ""
    point = find_resume_point(work_dir, last_saved=10)
    assert (point.path, point.step, point.damages) == (newer, 10, ())
    damage(newer)
    assert find_damage(newer).startswith(words)
    with pytest.raises(MachineError, match="checkpoint-10: "):
        require_whole(newer)
    point = find_resume_point(work_dir, last_saved=10)
    assert (point.path, point.step) == (older, 9)
    (told,) = point.damages
    assert told.startswith(f"checkpoints/stage-1/checkpoint-10: {words}")


def test_without_a_whole_checkpoint_a_stage_has_its_beginning_only(tmp_path: Path) -> None:
    assert find_resume_point(tmp_path / "none").path is None
    newer, older = save(tmp_path, 4), save(tmp_path, 3)
    flip(newer / "optimizer.pt")
    flip(older / "optimizer.pt")
    point = find_resume_point(tmp_path)
    assert (point.path, point.step, len(point.damages)) == (None, 0, 2)


def test_checkpoints_are_ordered_by_step_and_nothing_else_counts(tmp_path: Path) -> None:
    assert checkpoints(tmp_path / "missing") == {}
    for name in ("checkpoint-9", "checkpoint-10", ".staging/checkpoint-11", "checkpoint-x"):
        (tmp_path / name).mkdir(parents=True)
    assert list(checkpoints(tmp_path)) == [9, 10]
    remove_checkpoints(tmp_path, [9])
    assert list(checkpoints(tmp_path)) == [10]
