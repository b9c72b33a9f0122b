"""The zoo's benches: one judge a device for all files, and what must still hold after them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forge.evalpool.judge.processes import family, read_table
from tests.evalpool.conftest import Bench, bench, gpu_bench

if TYPE_CHECKING:
    from forge.evalpool.judge.ready import ReadyRunners

READY_TIMEOUT_S = 10.0
FIXTURES = {"cpu": "bench", "cuda": "gpu_bench"}
__all__ = ["Bench", "bench", "gpu_bench"]  # fixtures of the judge's own tests


class Benches:
    """The bench of a device. Tests of `cuda` carry the marker that skips them without a card."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.opened: dict[str, Bench] = {}
        self._request = request

    def __call__(self, device: str) -> Bench:
        self.opened[device] = self._request.getfixturevalue(FIXTURES[device])
        return self.opened[device]


@pytest.fixture(scope="session")
def bench_for(request: pytest.FixtureRequest) -> Benches:
    return Benches(request)
