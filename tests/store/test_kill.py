"""kill -9 during a write, beside a reader: no flushed row is lost, the reader sees no lock."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from forge.store.reader import open_run

KILLED = """
import sys, pathlib, anyio
from tests.store.storefactory import Options, group, turn
from forge.records import Status
from forge.store.write.writer import open_writer

async def main():
    root = pathlib.Path(sys.argv[1])
    async with open_writer(root, Options(texts="zstd")) as writer:
        for number in range(100_000):
            await writer.put(*(turn(number, rollout) for rollout in range(4)))
            await writer.put(group(number, [[Status.WRONG]] * 4, step=number // 3))
            if number % 7 == 0:
                await writer.flush()
                print(number, flush=True)

anyio.run(main)
"""


class PollingReader(threading.Thread):
    """Polls a run on its own connection until `stop`."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root, self.errors, self.num_polls = root, [], 0
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.is_set():
            try:
                with open_run(self.root) as reader:
                    for _ in range(5):
                        reader.rows("SELECT * FROM v_steps ORDER BY step DESC LIMIT 5")
                        reader.value("SELECT max(turn_row) FROM turns")
                        self.num_polls += 1
            except sqlite3.Error as error:
                self.errors.append(str(error))

    def stop(self) -> None:
        self._is_over.set()
        self.join(20)


def kill_after(root: Path, num_acknowledged: int) -> None:
    """Kills the writer after so many flushes and asserts that no flushed row is lost."""
    root.mkdir(parents=True)
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(root)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    acknowledged = int(child.stdout.readline())
    looking = PollingReader(root)
    looking.start()
    try:
        for _ in range(num_acknowledged):
            acknowledged = int(child.stdout.readline())
    finally:
        child.send_signal(signal.SIGKILL)
        rest, _ = child.communicate()
        looking.stop()
    acknowledged = max([acknowledged, *map(int, rest.split())])
    assert looking.errors == []
    with open_run(root) as reader:
        kept = "SELECT count(*) FROM turns WHERE group_id <= ?"
        assert reader.value(kept, (acknowledged,)) == 4 * (acknowledged + 1)
        torn = "SELECT group_id FROM turns GROUP BY group_id HAVING count(*) <> 4"
        assert reader.rows(torn) == []
        keys = "SELECT group_id, rollout, turn FROM"
        assert reader.rows(f"{keys} turns EXCEPT {keys} tokens.tokens") == []
        assert reader.value("PRAGMA integrity_check") == "ok"
        steps = reader.rows("SELECT step, num_turns FROM v_steps")
        plain = reader.rows(
            "SELECT step, count(*) AS num_turns FROM turns JOIN groups USING (group_id) "
            "GROUP BY step"
        )
    assert sorted(steps, key=str) == sorted(plain, key=str)


@pytest.mark.parametrize("after", [0, pytest.param(20, marks=pytest.mark.long), 60])
def test_kill_9_loses_no_flushed_row(tmp_path: Path, after: int) -> None:
    kill_after(tmp_path / "toy-1", after)


@pytest.mark.marathon
@pytest.mark.timeout(600)
def test_twenty_times_kill_9_loses_no_flushed_row(tmp_path: Path) -> None:
    for number in range(20):
        kill_after(tmp_path / f"toy-{number}", 7 * number)
