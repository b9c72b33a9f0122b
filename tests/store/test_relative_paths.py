"""Paths in the store are relative to the run directory, so that it may be moved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from forge.records import Event, PolicyVersion, ProcessStart
from forge.runner.weights.resume import find_weights
from forge.serve.weights import Weights
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from forge.store.resume import last_state
from tests.store.storefactory import attempt, write_run

pytestmark = pytest.mark.anyio


def records(root: Path) -> list:
    """A run that published once, as its supervisor writes it."""
    start = Weights(full=root / "weights" / "init", adapter=root.parent / "given")
    data = start.to_json(RunPaths(root).record)
    return [
        attempt(),
        ProcessStart(
            attempt=1, name="serve-0", pid=11, devices="cpu", started_at=1.0,
            log_path=f"{root}/logs/attempt-1/serve-0.log",
        ),
        Event(at=1.0, kind="stage_start", message="sft-0", data={"stage": 0, "weights": data}),
        PolicyVersion(
            version=1, attempt=1, stage=0, step=9, path=f"{root}/weights/sft-9", sha256="",
            publish_s=0.0, probe_gap=0.0,
        ),
    ]  # fmt: skip


async def made_run(root: Path) -> RunPaths:
    await write_run(root, records(root))
    for name in ("weights/init", "weights/sft-9", "../given"):
        (root / name).mkdir(parents=True)
    return RunPaths(root)


async def test_no_row_of_a_run_names_its_directory(tmp_path: Path) -> None:
    paths = await made_run(tmp_path / "toy-1")
    with open_run(paths) as reader:
        assert reader.value("SELECT log_path FROM processes") == "logs/attempt-1/serve-0.log"
        assert reader.value("SELECT path FROM policies") == "weights/sft-9"
        assert "toy-1" not in reader.value("SELECT data FROM events")
        assert str(tmp_path / "given") in reader.value("SELECT data FROM events")


async def test_a_moved_run_finds_its_weights_where_it_is_now(tmp_path: Path) -> None:
    paths = await made_run(tmp_path / "runs" / "toy-1")
    moved = RunPaths(tmp_path / "other" / "renamed")
    moved.root.parent.mkdir()
    paths.root.rename(moved.root)
    assert find_weights(moved, "9").full == moved.weights / "sft-9"
    with open_run(moved) as reader:
        (policy,) = last_state(reader).policies
        assert policy.path == str(moved.weights / "sft-9")
        assert reader.path(f"{tmp_path}/runs/given") == tmp_path / "runs" / "given"


async def test_a_renamed_run_has_one_row_with_its_present_name(tmp_path: Path) -> None:
    paths = await made_run(tmp_path / "toy-1")
    renamed = paths.root.rename(tmp_path / "renamed")
    await write_run(renamed, [replace(attempt(), attempt=2)])
    with open_run(RunPaths(renamed)) as reader:
        (row,) = reader.rows("SELECT * FROM runs")
    assert row["name"] == "renamed"
    assert row["forge_version"]
