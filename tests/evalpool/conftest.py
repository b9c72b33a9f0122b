"""Fixtures of the judge's tests: one bench a device for all of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from forge.evalpool.judge.app import oracle_uid
from forge.evalpool.judge.spawner import Spawner
from forge.evalpool.judge.trial.trial import Stamp
from tests.evalpool.benches import GPU_TABLE, ROOT, RUNNER_UID, Bench, GpuBench, open_bench

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from forge.records.verdict import Verdict


@pytest.fixture(scope="session")
def open_bench_at() -> Callable[..., AbstractContextManager[Bench]]:
    """`open_bench`, for a test file with benches of its own."""
    return open_bench


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with open_bench(tmp_path_factory.mktemp("root")) as opened:
        yield opened


@pytest.fixture(scope="session")
def gpu_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    from forge.evalpool.judge.gpu_trial import open_gpu_trials
    from forge.process.devices import inventory

    gpu = inventory()[0]
    folder = tmp_path_factory.mktemp("gpu") / "root"
    os.environ["PYTHONPATH"] = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    os.environ["XDG_CACHE_HOME"] = str(folder.parent)
    # As a judge has it: by its number, a card would not be found beside the nodes of no other.
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu.uuid
    spawner = Spawner(
        isolation="auto",
        folder=folder,
        memory_bytes=8 << 30,
        is_gpu=True,
        gpu_minor=gpu.minor,
    )
    spawner.start()
    spawner.wait_ready()
    stamp = Stamp(isolation=spawner.isolation, caps=spawner.caps, harness="test")
    trials = open_gpu_trials(
        GPU_TABLE,
        spawner=spawner,
        stamp=stamp,
        uuid=gpu.uuid,
        oracle_uid=oracle_uid(),
        spare_uids=range(RUNNER_UID + 1, RUNNER_UID + 33) if RUNNER_UID else (),
        capacity=4,
    )
    yield GpuBench(spawner, trials._references, trials)
    trials.close()
    spawner.close()


@pytest.fixture(scope="session")
def judge(bench: Bench) -> Callable[..., Verdict]:
    return bench.judge
