"""A process that a candidate leaves running is seen at once, also by an ordinary user's tests."""

import time

import pytest

from tests.evalpool.benches import Bench
from tests.zoo import conftest
from tests.zoo.conftest import leftovers


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
