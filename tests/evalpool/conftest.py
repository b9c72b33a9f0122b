"""Fixtures of the judge's tests; `tests/conftest.py` has the bench of each device."""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from forge.records.verdict import Verdict
from tests.evalpool.benches import Bench, any_host_code, open_bench


@pytest.fixture(scope="session")
def open_bench_at() -> Callable[..., AbstractContextManager[Bench]]:
    """`open_bench`, for a test file with benches of its own."""
    return open_bench


@pytest.fixture(scope="session")
def judge(bench: Bench) -> Callable[..., Verdict]:
    return bench.judge


@pytest.fixture
def free_host_code() -> Iterator[None]:
    """Host code may name anything: what is behind its list must hold without it."""
    with any_host_code():
        yield


@pytest.fixture(autouse=True, scope="module")
def no_candidate_is_left() -> Iterator[None]:
    """A generator of one captured in this process may set the mode of gradients when it is
    collected, which was once in a test of the trainer."""
    yield
    if sys.modules.pop("candidate", None) is not None:
        gc.collect()
        sys.modules["torch"].set_grad_enabled(True)
