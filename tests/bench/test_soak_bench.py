"""`bench/soak.py` and `bench/week.py`: what counts as growth; a simulated run has none."""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter, deque
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from forge.evalpool import verdict_cache
from forge.store.write import texts

BENCH = Path(__file__).resolve().parents[2] / "bench"
STEPS = 60


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    yield import_module
    for name in ("soak", "soak_slope", "soak_samples", "week", "week_canned", "store_views"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("percent", "is_within"), [(0.0, True), (1.5, True), (3.0, False)])
def test_growth_is_that_of_a_line_relative_to_the_level(
    bench: Any, percent: float, is_within: bool
) -> None:
    seconds = np.arange(0.0, 2700.0, 10.0)
    waves = np.sin(seconds / 40.0)
    values = 100.0 * (1 + percent / 100 * seconds / 3600) + waves
    found = bench("soak_slope").fit_growth(seconds.tolist(), values.tolist())
    assert found.percent_an_hour == pytest.approx(percent, abs=0.5)
    assert found.low <= percent <= found.high
    assert found.is_within is is_within
    assert found.level == pytest.approx(100.0, abs=0.5)


def test_a_count_grows_if_its_end_exceeds_all_of_its_beginning(bench: Any) -> None:
    has_more = bench("soak_slope").has_more
    assert not has_more([20, 24, 20, 21, 24, 20, 23, 24, 22])
    assert has_more([20, 21, 20, 22, 23, 24, 25, 26, 27])


def is_counted(kind: type) -> bool:
    """True for our types and for containers. Others may wait to be collected: asyncio keeps up to
    100 cancelled timers, each connection of sqlite3 up to 200 references to closed cursors."""
    return str(kind.__module__).startswith("forge") or kind in (dict, list, set, tuple, deque)


def test_twice_as_many_steps_leave_as_many_objects(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No type of object grows with the steps, nor do the tables of versions."""
    monkeypatch.setattr(verdict_cache, "MAX_REMEMBERED", 16)
    monkeypatch.setattr(texts, "CACHE_SIZE", 16)
    monkeypatch.setattr(bench("week"), "SAVE_EVERY", 10)
    counts: dict[int, Counter[type]] = {}
    sizes: dict[int, tuple[int, int]] = {}

    def count(step: int, run: Any) -> None:
        if step % STEPS == 0:
            thread = run.writer._thread
            while not thread._encoder.is_idle or thread._num_pending:
                time.sleep(0.01)
            gc.collect()
            kinds = (type(each) for each in gc.get_objects())
            counts[step] = Counter(kind for kind in kinds if is_counted(kind))
            sizes[step] = len(run.desk.steps), len(run.weights._steps)

    paths = anyio.run(lambda: bench("week").simulate(tmp_path, steps=3 * STEPS, on_step=count))
    grown = counts[3 * STEPS] - counts[2 * STEPS]
    assert {name: more for name, more in grown.items() if more > STEPS // 4} == {}
    assert sizes[3 * STEPS][0] <= sizes[2 * STEPS][0] < 40
    assert paths.run_db.stat().st_size > 100_000
