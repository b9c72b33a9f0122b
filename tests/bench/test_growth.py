"""A simulated run (`bench/week.py`) leaves no objects behind."""

import gc
import sys
import time
from collections import Counter, deque
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import pytest

from forge.evalpool import pool as pool_module
from forge.store.write import rows

BENCH = Path(__file__).resolve().parents[2] / "bench"
STEPS = 60


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    yield import_module
    for name in ("week", "week_canned"):
        sys.modules.pop(name, None)


def is_counted(kind: type) -> bool:
    """True for our types and for containers. Others may wait to be collected: asyncio keeps up to
    100 cancelled timers, each connection of sqlite3 up to 200 references to closed cursors."""
    return str(kind.__module__).startswith("forge") or kind in (dict, list, set, tuple, deque)


def test_twice_as_many_steps_leave_as_many_objects(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No type of object grows with the steps, nor do the tables of versions."""
    monkeypatch.setattr(pool_module, "MAX_REMEMBERED", 16)
    monkeypatch.setattr(rows, "CACHE_SIZE", 16)
    monkeypatch.setattr(bench("week"), "SAVE_EVERY", 10)
    counts: dict[int, Counter[type]] = {}
    sizes: dict[int, tuple[int, int]] = {}

    def count(step: int, run: Any) -> None:
        if step % STEPS == 0:
            thread = run.writer._thread
            while thread.queue.qsize() or thread._num_pending:
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
