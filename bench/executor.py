"""The GPU executor: times against do_bench, verdicts a second, recovery from faults.

    python -m bench.executor out.json

Programs are those of `tests/evalpool/execute/cases.py`, compiled by Triton itself.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from triton.testing import do_bench

from forge.evalpool.judge.execute.executor import ProgramFault
from forge.evalpool.judge.execute.executors import Executors
from forge.evalpool.judge.execute.processes import Nursery
from tests.evalpool.execute import cases, kernels
from tests.evalpool.execute.trials import Laid, seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.evalpool.judge.execute.executor import Executor

NURSERY = Nursery()
NUM_CALLS = 30
FAULT_EVERY = 8
FAULTS_S = 20.0
CASES: dict[str, Callable[[], cases.Case]] = {
    "add": cases.add,
    "add 4096": lambda: cases.add(4096),
    "softmax": cases.softmax,
    "norm": cases.norm,
    "matmul": lambda: cases.matmul(is_fixed=True),
    "matmul in clusters": lambda: cases.matmul(is_fixed=True, num_ctas=2),
    "tensor maps": cases.described,
    "operations": cases.operations,
    "relu of 6.4 GB": lambda: cases.relu(4096 * 393_216),
}


def ms(began: float) -> float:
    return round((time.perf_counter() - began) * 1e3, 2)


def starts() -> list[float]:
    """Milliseconds until a context is made; the first one imports torch."""
    found = []
    for _ in range(4):
        began = time.perf_counter()
        executor = NURSERY.start()
        found.append(ms(began))
        executor.end()
    return found


def case(make: Callable[[], cases.Case], executor: Executor) -> dict[str, Any]:
    """Milliseconds of each request, error, and microseconds beside those of do_bench."""
    laid = Laid(make(), num_sets=1)
    row: dict[str, Any] = {}
    began = time.perf_counter()
    laid.load(executor)
    row["load_ms"] = ms(began)
    for placement in ("end", "start"):
        began = time.perf_counter()
        laid.run(executor, placement=placement)
        row[f"run_{placement}_ms"] = ms(began)
    row["error"] = laid.error(laid.outputs())
    began = time.perf_counter()
    report = executor.time([laid.call()] * NUM_CALLS, warm_up=laid.call(), deadline=seconds(60))
    row["time_ms"] = ms(began)
    times = [call.gpu_us for call in report.calls]
    row["gpu_us"] = statistics.median(times)
    low, _, high = statistics.quantiles(times)
    row["iqr_us"] = high - low
    row["nodes_us"] = [node.us for node in executor.nodes(laid.call(), deadline=seconds(60))]
    began = time.perf_counter()
    executor.unload(deadline=seconds(60))
    row["unload_ms"] = ms(began)
    if laid.case.eager is not None:
        row["do_bench_us"] = cast("float", do_bench(laid.case.eager, return_mode="median")) * 1e3
        row["ratio"] = row["gpu_us"] / row["do_bench_us"]
    laid.close()
    return row


def judge(laid: Laid, executor: Executor) -> None:
    """Four checked calls, `NUM_CALLS` timed ones."""
    laid.load(executor)
    for placement in ("end", "start", "end", "start"):
        laid.run(executor, placement=placement)
    executor.time([laid.call()] * NUM_CALLS, warm_up=laid.call(), deadline=seconds(10))
    executor.unload(deadline=seconds(10))


def rate(executor: Executor) -> dict[str, float]:
    """Verdicts a second of one small program, comparison left out."""
    laid = Laid(cases.norm(1024, 1000))
    judge(laid, executor)
    spent = []
    for _ in range(50):
        began = time.perf_counter()
        judge(laid, executor)
        spent.append(ms(began))
    laid.close()
    return {"per_second": 1e3 / statistics.mean(spent), "median_ms": statistics.median(spent)}


def faults() -> dict[str, Any]:
    """Verdicts a second where every eighth program faults; milliseconds until the next is right."""
    executors = Executors(NURSERY.start)
    good, bad = Laid(cases.add(4096)), Laid(cases.misbehaving(kernels.beyond_kernel, by=1 << 40))
    num, waits = 0, []
    began = time.perf_counter()
    while time.perf_counter() - began < FAULTS_S:
        asked = time.perf_counter()
        with executors.taken(timeout_s=60) as executor:
            waits.append(ms(asked))
            with suppress(ProgramFault):
                judge(bad if num % FAULT_EVERY == FAULT_EVERY - 1 else good, executor)
        num += 1
    spent = time.perf_counter() - began
    executors.close()
    good.close()
    bad.close()
    return {"per_second": num / spent, "longest_wait_ms": max(waits)}


def attempt(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception:
        return traceback.format_exc()


def main() -> None:
    found: dict[str, Any] = {"start_ms": attempt(starts)}
    executor = NURSERY.start()
    for name, make in CASES.items():
        found[name] = attempt(lambda make=make: case(make, executor))
    found["rate"] = attempt(lambda: rate(executor))
    executor.end()
    found["faults"] = attempt(faults)
    NURSERY.close()
    with open(sys.argv[1], "w") as file:
        json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
