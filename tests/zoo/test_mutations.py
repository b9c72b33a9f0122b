"""A thousand random mutations of honest kernels: a verdict for each, and the judge as it was."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge.config.schema import JudgeTable
from forge.records.verdict import Status
from tests.zoo.animals import load
from tests.zoo.conftest import leftovers
from tests.zoo.mutate import mutated

HONEST = [one for one in load("honest") if "cpu" in one.devices]
TABLE = JudgeTable(compile_timeout_s=2.0, correct_timeout_s=2.0)
NUM_WARM_UPS = 30
MARATHON = (pytest.mark.marathon, pytest.mark.timeout(600))


def rss_bytes(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def num_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def zygote_of(bench: Any) -> int:
    launcher = bench.spawner._process.pid
    (child,) = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return int(child)


def judge_all(bench: Any, seeds: range) -> dict[str, int]:
    """How often each status came of it."""
    found: dict[str, int] = {}
    for seed in seeds:
        animal = HONEST[seed % len(HONEST)]
        code = mutated(animal.code, seed=seed)
        verdict = bench.judge(code, problem=animal.problem, table=TABLE)
        assert verdict.status is not Status.INFRA_ERROR, f"seed {seed}: {verdict.detail}"
        assert verdict.reason
        found[verdict.status] = found.get(verdict.status, 0) + 1
    return found


@pytest.mark.parametrize(
    "seeds", [range(NUM_WARM_UPS, 100), pytest.param(range(100, 1000), marks=MARATHON)], ids=len
)
def test_mutations_get_a_verdict_and_leave_nothing(
    bench_for: Callable[[str], Any], seeds: range
) -> None:
    bench = bench_for("cpu")
    judge_all(bench, range(NUM_WARM_UPS))
    pids = (os.getpid(), zygote_of(bench))
    memory = [rss_bytes(pid) for pid in pids]
    files = [num_files(pid) for pid in pids]
    found = judge_all(bench, seeds)
    assert len(found) >= 4, found
    assert bench.judge_honest().status is Status.CORRECT
    assert leftovers(bench) == set()
    assert [num_files(pid) for pid in pids] == files
    for pid, before in zip(pids, memory, strict=True):
        assert rss_bytes(pid) <= before * 1.05, f"{before} bytes before"
