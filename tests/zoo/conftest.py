"""The zoo's benches: one judge a device for all files, and what must still hold after them."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from forge.evalpool.judge.sandbox.caps import FIRST_UID, NUM_UIDS
from forge.evalpool.judge.sandbox.processes import family, read_table
from tests.evalpool.benches import Bench

END_TIMEOUT_S = 10.0
"""A card's driver takes 0.1 s to end one context, one after another."""
FIXTURES = {"cpu": "bench", "cuda": "gpu_bench"}


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


class Bait:
    """Files that an escaped cheat would touch: a run's database and socket, open to everybody."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "run.db"
        self.store.write_bytes(b"nobody reads this")
        self.store.chmod(0o666)
        self.path = folder / "control.sock"
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(str(self.path))
        self.path.chmod(0o777)
        self.server.listen()
        self.server.setblocking(False)

    def require_untouched(self) -> None:
        assert self.store.read_bytes() == b"nobody reads this"
        with pytest.raises(BlockingIOError):
            self.server.accept()


@pytest.fixture(scope="session")
def bait(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bait]:
    folder = tmp_path_factory.mktemp("run")
    modes = {one: one.stat().st_mode for one in (folder, *folder.parents[:2])}
    for one in modes:
        one.chmod(0o755)
    made = Bait(folder)
    yield made
    made.server.close()
    for one, mode in modes.items():
        one.chmod(mode)


def leftovers(bench: Any) -> set[int]:
    """Processes below the judge's launchers beside the zygotes, once no candidate is judged, and
    beside those that wait: oracles, processes that time references, evaluators, shared captures. An
    oracle that ends is given the time for it; a candidate has none left."""
    has_card = len(bench.spawners) > 1
    deadline = time.monotonic() + END_TIMEOUT_S * has_card
    while (left := _left(bench)) and all(map(_is_oracle, left)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


def _left(bench: Any) -> set[int]:
    names = ("references", "given", "sketches")  # draws of ours and of other protocols, and shapes
    draws: list[Any] = [getattr(bench.trials, name, None) for name in names]
    oracles = [one._oracles for one in draws if one]
    oracles += [one._small.oracles for one in draws if getattr(one, "_small", None)]
    if baselines := getattr(bench.trials, "baselines", None):
        oracles.append(baselines._children)
    waiting = {kept.child.pid_here for one in oracles for kept in one._idle}
    for children in (getattr(bench.trials, "evaluators", None), bench.trials.captures._kept):
        if children is not None:
            waiting |= {kept.child.pid_here for kept in children._idle}
    table = read_table()
    found: set[int] = set()
    for spawner in bench.spawners:
        launcher = spawner._process.pid
        below = family(launcher, table) - {launcher} - waiting
        found |= {pid for pid in below if _is_below_another(pid, below, launcher)}
    return found


def _is_oracle(pid: int) -> bool:
    """By its user, which is not a capture's; as an ordinary user, anybody."""
    with suppress(OSError), open(f"/proc/{pid}/status") as status:
        uids = next(line for line in status if line.startswith("Uid:")).split()[1:]
        return int(uids[0]) not in range(FIRST_UID, FIRST_UID + NUM_UIDS)
    return True


def _is_below_another(pid: int, below: set[int], launcher: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            parent = int(stat.read().rpartition(")")[2].split()[1])
    except OSError:
        return False
    return parent != launcher and os.path.exists(f"/proc/{pid}")
