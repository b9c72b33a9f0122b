"""The mount table decides if a store may lie on a file system."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge.store.filesystem import MOUNTINFO, find_mount

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
    assert mount is not None
    assert (mount.kind, mount.is_network) == (kind, is_network)


def test_without_a_mount_table_there_is_no_mount(tmp_path: Path) -> None:
    assert find_mount(Path("/"), table=tmp_path / "none") is None


@pytest.mark.skipif(not MOUNTINFO.exists(), reason="no mount table here")
def test_the_mount_table_of_this_machine_is_read() -> None:
    assert find_mount(Path("/proc/self")).kind == "proc"  # type: ignore[union-attr]
