"""No cheat is judged correct, each is refused for its own reason, and no honest kernel is.

A trick is harmless where the captured program is an honest kernel: it is judged correct.
"""

import glob
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from forge.config.schema import JudgeTable
from forge.records.verdict import JudgeOptions, Status, Verdict
from tests.evalpool.benches import Bench, any_host_code
from tests.zoo import conftest
from tests.zoo.animals import Animal, load
from tests.zoo.conftest import Bait, Benches, leftovers

CHEATS, HARMLESS, HONEST = load("cheats"), load("harmless"), load("honest")
STATUS_OF = {
    "decoy_kernel": Status.REJECTED,
    "torch_work": Status.REJECTED,
    "unsupported": Status.REJECTED,
    "no_kernel_launch": Status.REJECTED,
    "forged_frame": Status.REJECTED,
    "uninitialised": Status.WRONG,
    "output_not_written": Status.WRONG,
    "mismatch": Status.WRONG,
    "params_cached_in_init": Status.WRONG,
    "inputs_modified": Status.WRONG,
    "shape": Status.WRONG,
    "race": Status.WRONG,
    "stateful": Status.WRONG,
    "exception": Status.RUNTIME_ERROR,
    "out_of_bounds": Status.RUNTIME_ERROR,
    "gpu_fault": Status.RUNTIME_ERROR,
    "crash": Status.RUNTIME_ERROR,
    "out_of_memory": Status.RUNTIME_ERROR,
    "not_triton": Status.COMPILE_ERROR,
    "import_error": Status.COMPILE_ERROR,
    "deadline:capture": Status.TIMEOUT,
}
"""The status of each reason."""
CATCH_ALL = {"exception", "import_error", "crash"}
"""Reasons that name no trick: a cheat with one of them must say more."""
IMPATIENT = JudgeTable(compile_timeout_s=1.5, correct_timeout_s=5.0)


def on_devices(animals: list[Animal]) -> list[Any]:
    return [
        pytest.param(one, device, id=f"{one.name}-{device}", marks=_marks(device))
        for one in animals
        for device in one.devices
    ]


def _marks(device: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.gpu] if device == "cuda" else []


@pytest.fixture(scope="module", autouse=True)
def _judge_survives(bench_for: Benches, bait: Bait) -> Iterator[None]:
    yield
    for bench in bench_for.opened.values():
        assert bench.judge_honest().status is Status.CORRECT
        assert leftovers(bench) == set()
    bait.require_untouched()


def judged(bench: Any, animal: Animal, device: str) -> Verdict:
    is_slow = "deadline:capture" in animal.allowed("REASON", device) and device == "cpu"
    table = IMPATIENT if is_slow else None
    options = JudgeOptions(timing=device == "cuda")
    return bench.judge(animal.code, problem=animal.problem, table=table, options=options)


@pytest.mark.parametrize(("animal", "device"), on_devices(CHEATS))
def test_a_cheat_is_refused_for_its_own_reason(
    bench_for: Callable[[str], Any], animal: Animal, device: str
) -> None:
    bench = bench_for(device)
    is_listed = "cannot be judged" in animal.allowed("SAYS", device)
    with nullcontext() if is_listed else any_host_code():  # what it meets behind the list
        verdict = judged(bench, animal, device)
    assert verdict.reason in animal.allowed("REASON", device), verdict.detail
    assert verdict.status is STATUS_OF[verdict.reason], verdict.detail
    assert any(words in verdict.detail for words in animal.allowed("SAYS", device)), verdict.detail
    assert not set(map(chr, (*range(9), *range(11, 32), 127))) & set(verdict.detail)
    assert leftovers(bench) == set()


@pytest.mark.parametrize(("animal", "device"), on_devices(HARMLESS))
def test_a_trick_that_reaches_nothing_changes_no_verdict(
    bench_for: Callable[[str], Any], animal: Animal, device: str
) -> None:
    bench = bench_for(device)
    with any_host_code():
        verdict = judged(bench, animal, device)
    assert verdict.status is Status.CORRECT, verdict.detail
    assert leftovers(bench) == set()


@pytest.mark.parametrize(("animal", "device"), on_devices(HONEST))
def test_an_honest_kernel_is_correct(
    bench_for: Callable[[str], Any], animal: Animal, device: str
) -> None:
    verdict = judged(bench_for(device), animal, device)
    assert verdict.status is Status.CORRECT, verdict.detail


def test_the_zoo_is_as_large_as_it_must_be() -> None:
    assert len(CHEATS) >= 140
    assert len([*CHEATS, *HARMLESS]) >= 170
    assert len(HONEST) >= 25


@pytest.mark.parametrize("animal", [*CHEATS, *HARMLESS, *HONEST], ids=lambda one: one.name)
def test_each_file_says_what_it_is(animal: Animal) -> None:
    assert len(animal.trick) > 20
    assert animal.problem
    assert set(animal.devices) <= {"cpu", "cuda"}
    if animal not in CHEATS:
        return
    for device in animal.devices:
        reasons = animal.allowed("REASON", device)
        assert reasons
        assert set(reasons) <= STATUS_OF.keys()
        assert animal.allowed("SAYS", device)
        says_more = all(len(words) > 4 for words in animal.allowed("SAYS", device))
        assert says_more or not CATCH_ALL & set(reasons)


def test_the_bait_can_be_found_by_who_is_outside(bait: Bait) -> None:
    """The patterns of the cheats that look for a run find this one where no sandbox hides it."""
    for path, code in ((bait.store, "h09_reads_the_store"), (bait.path, "h09_connects_to_the_run")):
        animal = next(one for one in CHEATS if one.name == code)
        assert f"/tmp/**/*{path.suffix}" in animal.code or "/tmp/**/run.db" in animal.code
        assert Path("/tmp") in path.parents
        assert str(path) in glob.glob(f"{path.parent}/**/*{path.suffix}", recursive=True)


@pytest.mark.parametrize("is_ordinary", [False, True])
def test_a_process_behind_a_verdict_is_seen_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_ordinary: bool
) -> None:
    if is_ordinary:
        monkeypatch.setattr(conftest, "NUM_UIDS", 0)
    assert leftovers(bench) == set()
    child = bench.spawner.spawn(role="capture")
    try:
        began = time.monotonic()
        assert leftovers(bench) == {child.pid_here}
        assert time.monotonic() - began < conftest.END_TIMEOUT_S / 2
    finally:
        bench.spawner.end(child)
    assert leftovers(bench) == set()
