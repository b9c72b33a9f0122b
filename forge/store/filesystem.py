"""File system of a path, and its suitability for a store. Used by `forge doctor`.

SQLite's WAL needs shared memory between processes and working locks; network file systems provide
neither across machines, and some lose rows or hang without an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")
NETWORK_KINDS = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "coda", "ceph", "glusterfs"),
        *("lustre", "gpfs", "beegfs", "orangefs", "pvfs2", "panfs", "wekafs", "ocfs2", "gfs2"),
        *("vboxsf", "prl_fs"),
    }
)
"""File systems over a network, or of a host that does not share mapped memory. 9p and virtiofs are
left out: they are the root of some sandboxes and work there."""
NETWORK_FUSE = re.compile(
    r"^fuse\.(sshfs|glusterfs|ceph|s3fs|gcsfuse|goofys|rclone|juicefs|davfs|seaweedfs|curlftpfs|"
    r"mfs|moosefs|objectivefs|alluxio|blobfuse2?|mount-s3|hdfs|smbnetfs|nfs)\b"
)
"""FUSE names its backend in its type; other FUSE file systems (ntfs-3g, ...) are local."""
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    point: str
    kind: str
    """ext4, nfs4, fuse.sshfs, ..."""
    source: str
    """A device, or `server:/export`."""

    @property
    def is_network(self) -> bool:
        """True if a store must not lie here."""
        return self.kind in NETWORK_KINDS or NETWORK_FUSE.match(self.kind) is not None


def find_mount(path: Path, *, table: Path = MOUNTINFO) -> Mount | None:
    """The mount of a path, which need not exist yet; None without a mount table."""
    try:
        lines = table.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    resolved, found = path.resolve(), None
    for mount in filter(None, map(_parse, lines)):
        # A later mount hides an earlier one at the same point.
        is_over = resolved.is_relative_to(mount.point)
        if is_over and (found is None or len(mount.point) >= len(found.point)):
            found = mount
    return found


def _parse(line: str) -> Mount | None:
    """A line of mountinfo: `36 35 98:0 /root /point opts [tags ...] - kind source opts`."""
    left, separator, right = line.partition(" - ")
    fields, rest = left.split(" "), right.split(" ")
    if not separator or len(fields) < 5 or len(rest) < 2:
        return None
    return Mount(point=_unescape(fields[4]), kind=rest[0], source=_unescape(rest[1]))


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
