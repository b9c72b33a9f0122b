"""kill -9 during a write, beside a reader: no flushed row is lost, the reader sees no lock."""

import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from forge.store.filesystem import MOUNTINFO, find_mount
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


TABLE = r"""
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 27 0:40 / /home rw,relatime shared:5 master:1 - nfs4 filer:/export/home rw,vers=4.2
41 40 254:1 / /home/me/scratch rw - xfs /dev/nvme0n1 rw
42 27 0:42 / /mnt/with\040space rw - fuse.sshfs me@host:/data rw,user_id=0
43 27 0:43 / /mnt/ntfs rw - fuse.ntfs-3g /dev/sdb1 rw
44 27 0:44 / /lustre rw - lustre 10.0.0.1@o2ib:/scratch rw
45 27 0:45 / /covered rw - nfs filer:/x rw
46 27 0:46 / /covered rw - tmpfs tmpfs rw
a line that is none
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(TABLE)
    return path


@pytest.mark.parametrize(
    ("path", "kind", "is_network"),
    [
        ("/data/runs", "ext4", False),
        ("/home/me/runs", "nfs4", True),
        ("/home/me/scratch/runs", "xfs", False),
        ("/homes/me", "ext4", False),
        ("/mnt/with space/runs", "fuse.sshfs", True),
        ("/mnt/ntfs/runs", "fuse.ntfs-3g", False),
        ("/lustre", "lustre", True),
        ("/covered/runs", "tmpfs", False),
    ],
)
def test_the_innermost_mount_decides(table: Path, path: str, kind: str, is_network: bool) -> None:
    mount = find_mount(Path(path), table=table)
    assert (mount.kind, mount.is_network) == (kind, is_network)


def test_without_a_mount_table_there_is_no_mount(tmp_path: Path) -> None:
    assert find_mount(Path("/"), table=tmp_path / "none") is None


@pytest.mark.skipif(not MOUNTINFO.exists(), reason="no mount table here")
def test_the_mount_table_of_this_machine_is_read() -> None:
    assert find_mount(Path("/proc/self")).kind == "proc"
