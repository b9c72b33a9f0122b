"""`bench/scale.py`: the simulated clock, and a run of the real loop on it."""

from __future__ import annotations

import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    yield import_module("scale")
    for name in ("scale", "scale_loop"):
        sys.modules.pop(name, None)


def test_an_hour_of_waiting_takes_no_time_and_charged_work_delays_everything(scale: Any) -> None:
    loop, began = scale.SimulatedLoop(), time.monotonic()

    async def work() -> tuple[float, float, bool]:
        with anyio.move_on_after(10) as scope:
            await anyio.sleep(3600)
        waited = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep, 5)
            await anyio.sleep(1)
            loop.charge(20)
        return waited, anyio.current_time(), scope.cancelled_caught

    waited, ended, is_cut = anyio.run(work, backend_options={"loop_factory": lambda: loop})
    assert is_cut
    assert 10 <= waited < 11
    assert 31 <= ended < 32  # 10, then 1, then 20 of work, in which the sleep of 5 has passed
    assert loop.charged_s == 20
    assert time.monotonic() - began < 5


def test_a_slow_supervisor_limits_a_simulated_run_and_a_free_one_does_not(
    scale: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale, "GROUPS_A_CARD", 4)
    free = scale.play(1, 64, scale.Costs(), is_free=True)
    slow = scale.play(1, 64, scale.Costs(generate_cpu_s=0.5), is_free=False)
    assert free["cores"] < 0.1
    assert slow["cores"] > 0.6
    assert slow["turns_per_s"] < min(2.5, 0.6 * free["turns_per_s"])
