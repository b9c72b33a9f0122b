"""Rules for every test: skips, the order and grouping of a parallel run, and tests that run alone.

A parallel run (pytest-xdist, `make test`) keeps the tests of a file on one worker, because module
fixtures start judges, engines and whole runs. Files whose tests take long come first. A test marked
`alone` runs while no other test does: see `alone.py`.
"""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from forge.store.layout import RunPaths
from tests import canned
from tests.alone import take_turn
from tests.examples import WHOLE

if TYPE_CHECKING:
    from tests.evalpool.benches import Bench

# Read when torch starts, which no test may have imported yet: its threads would wait spinning.
for name, value in (("OMP_NUM_THREADS", "1"), ("OMP_WAIT_POLICY", "passive")):
    os.environ.setdefault(name, value)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else children ignore Ctrl-C, too
for name, num_examples in (("quick", 30), ("whole", WHOLE)):
    settings.register_profile(
        name, max_examples=num_examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
BY_NAME = {
    "long": "make test-all, or -m long",
    "marathon": "takes minutes: -m marathon",
    "chaos": "takes minutes: -m chaos",
}
"""Markers of tests that run only where `-m` names them, and the reason given for a skip."""
JUDGES = frozenset({"bench", "bench_for"})
"""Fixtures that start judges for the tests of a worker."""
GPU_DEVICES = (Path("/dev/nvidia0"), Path("/dev/kfd"))


def pytest_configure(config: pytest.Config) -> None:
    """Chooses how many examples property tests try: 100 with the long tests, else fewer.

    Collects no garbage during the imports: they make a million objects and leave none.
    """
    settings.load_profile("whole" if "long" in config.option.markexpr else "quick")
    gc.disable()
    if hasattr(config, "workerinput"):
        atexit.register(os._exit, 0)  # a worker's end frees a million objects one by one: 2 s


def pytest_collection_finish() -> None:
    """Hides the imported and collected objects from later garbage collections."""
    gc.freeze()
    gc.set_threshold(50_000)  # after every 700 objects, they take a fifth of the tests' CPU time
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips what was not asked for or cannot run here; orders the files."""
    for marker, reason in BY_NAME.items():
        if marker not in config.option.markexpr:
            for item in items:
                if item.get_closest_marker(marker):
                    item.add_marker(pytest.mark.skip(reason=reason))
    if not any(device.exists() for device in GPU_DEVICES):
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no GPU on this machine"))
    order = dict[Path, int]()
    for item in items:
        order[item.path] = min(order.get(item.path, 2), _start_order(item))
    items.sort(key=lambda item: order[item.path])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Waits for the test's turn, outside its timeout."""
    with take_turn(item.config, is_alone=item.get_closest_marker("alone") is not None):
        return (yield)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Closes two files that llama_cpp opens at import and leaves open."""
    if not hasattr(config, "workerinput"):
        gc.unfreeze()  # nanobind reports frozen objects as leaks
    if module := sys.modules.get("llama_cpp._utils"):
        module.outnull_file.close()
        module.errnull_file.close()


def _start_order(item: pytest.Item) -> int:
    """0 for a whole run, 1 for another test that takes long or judges, 2 for the others.

    Files that judge take up to 20 s: one that starts last leaves the other cores idle.
    """
    if item.get_closest_marker("skip"):
        return 2
    if item.get_closest_marker("slow"):
        return 0 if item.get_closest_marker("e2e") else 1
    return 1 if JUDGES.intersection(getattr(item, "fixturenames", ())) else 2


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A judge of this process without a GPU, for all tests of a worker: its start takes 3 s."""
    from tests.evalpool.benches import open_bench

    with open_bench(tmp_path_factory.mktemp("root")) as opened:
        yield opened


@pytest.fixture(scope="session")
def gpu_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """The same on the first card."""
    from tests.evalpool.benches import open_gpu_bench

    with open_gpu_bench(tmp_path_factory.mktemp("gpu") / "root") as opened:
        yield opened


@pytest.fixture(scope="session")
def canned_template(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    """The canned run, unpacked once; nobody may change it."""
    return canned.unpack(tmp_path_factory.mktemp("canned"))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The backend of async tests."""
    return "asyncio"


@pytest.fixture
def canned_run(canned_template: RunPaths, tmp_path: Path) -> RunPaths:
    """A finished quickstart of the test's own: `<tmp_path>/runs/quickstart-1` (tests/canned)."""
    root = tmp_path / "runs" / canned_template.name
    shutil.copytree(canned_template.root, root, symlinks=True)
    return RunPaths(root)
