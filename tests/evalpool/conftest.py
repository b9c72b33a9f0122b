"""Fixtures of the judge's tests; `tests/conftest.py` has the bench of each device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.evalpool.benches import Bench, open_bench

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from forge.records.verdict import Verdict


@pytest.fixture(scope="session")
def open_bench_at() -> Callable[..., AbstractContextManager[Bench]]:
    """`open_bench`, for a test file with benches of its own."""
    return open_bench


@pytest.fixture(scope="session")
def judge(bench: Bench) -> Callable[..., Verdict]:
    return bench.judge
