"""Weights that an unfinished stage began with are published again from their stage's checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from forge.errors import MachineError
from forge.records import PolicyVersion
from forge.runner.weights.resume import find_lost_weights, sha256_of_weights, without_stages
from forge.serve.weights import Weights
from forge.store.layout import RunPaths
from forge.store.resume import LastState
from forge.train.checkpoints import checkpoint_dir, write_manifest
from tests.runner.weights.syncs import new_dir

STEPS = {0: 9, 1: 5}
"""Last step of each finished stage: sft-0 and grpo-1. Stage 2 has begun."""


class Run:
    """A run whose third stage was interrupted."""

    def __init__(self, root: Path) -> None:
        self.paths = RunPaths(root)
        self.paths.weights.mkdir()
        self.dirs = [new_dir(self.paths.weights, name) for name in ("init", "sft-9", "grpo-5")]
        policies = tuple(
            PolicyVersion(
                version=stage + 1, attempt=1, stage=stage, step=step, path=str(path),
                sha256=sha256_of_weights(path), publish_s=0.1, probe_gap=0.0,
            )
            for (stage, step), path in zip(STEPS.items(), self.dirs[1:], strict=True)
        )  # fmt: skip
        self.state = LastState(
            attempt=1, group_id=-1, sample_id=-1, policy_version=2, policies=policies[::-1],
            steps={}, finished_stages=(0, 1),
        )  # fmt: skip
        self.weights = {i: Weights(full=path, version=i) for i, path in enumerate(self.dirs)}
        for stage, step in STEPS.items():
            folder = checkpoint_dir(self.paths.checkpoints / f"stage-{stage}", step)
            folder.mkdir(parents=True)
            (folder / "optimizer.pt").write_bytes(b"optimizer")
            write_manifest(folder)

    def lost(self) -> list[str]:
        found = find_lost_weights(self.state, self.weights, self.paths)
        self.state = without_stages(self.state, found)
        return [each.message for each in found]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_whole_weights_are_left_alone(run: Run) -> None:
    assert run.lost() == []
    assert run.state.finished_stages == (0, 1)


def test_missing_weights_let_their_stage_publish_again(run: Run) -> None:
    shutil.rmtree(run.dirs[2])
    assert run.lost() == [
        "weights/grpo-5: missing; published again from checkpoints/stage-1/checkpoint-5"
    ]
    assert run.state.finished_stages == (0,)


def test_a_stage_that_publishes_again_needs_the_weights_that_it_began_with(run: Run) -> None:
    shutil.rmtree(run.paths.weights)
    assert len(run.lost()) == 2
    assert run.state.finished_stages == ()


def test_damaged_weights_are_removed_since_their_name_is_needed(run: Run) -> None:
    (run.dirs[2] / "model.safetensors").write_bytes(b"one byte")
    assert run.lost()[0].startswith("weights/grpo-5: damaged; published again")
    assert not run.dirs[2].exists()


def test_without_a_whole_checkpoint_both_files_are_named(run: Run) -> None:
    shutil.rmtree(run.dirs[2])
    folder = checkpoint_dir(run.paths.checkpoints / "stage-1", 5)
    (folder / "optimizer.pt").write_bytes(b"")
    match = r"weights/grpo-5: missing, and checkpoints/stage-1/checkpoint-5, .*optimizer.pt: 0 of 9"
    with pytest.raises(MachineError, match=match):
        run.lost()
