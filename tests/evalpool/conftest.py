"""Fixtures of the judge's tests: one bench a device for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.evalpool.benches import Bench, open_bench, open_gpu_bench

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
    with open_gpu_bench(tmp_path_factory.mktemp("gpu") / "root") as opened:
        yield opened


@pytest.fixture(scope="session")
def judge(bench: Bench) -> Callable[..., Verdict]:
    return bench.judge
