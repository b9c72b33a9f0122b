"""Memory, and the disk and file system of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.commands.doctor.finding import Finding, error
from forge.store.filesystem import MOUNTINFO, find_mount
from forge.views.text.numbers import gigabytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIN_MEMORY_BYTES = 4 << 30
"""Memory for the quickstart, with a reserve."""
MIN_DISK_BYTES = 2 << 30


def check_room(*, memory_bytes: int, free_disk_bytes: int, store_dir: Path) -> Iterator[Finding]:
    """Memory and free disk. Memory is the container's limit, where that is lower."""
    memory, fix = gigabytes(memory_bytes), "the quickstart needs 4 GB: docker run --memory=..."
    yield _require(memory_bytes >= MIN_MEMORY_BYTES, "memory", memory, fix=fix)
    free, fix = f"{gigabytes(free_disk_bytes)} free", "free some space, or --set store.dir=DIR"
    yield _require(free_disk_bytes >= MIN_DISK_BYTES, f"disk for {store_dir}", free, fix=fix)


def check_file_system(store_dir: Path, *, table: Path = MOUNTINFO) -> Iterator[Finding]:
    """The file system of the store, which must not be a network's."""
    mount = find_mount(store_dir, table=table)
    if mount is None:
        return
    found = f"{mount.kind} at {mount.point}"
    if not mount.is_network:
        yield Finding(name="file system", found=found)
        return
    yield error(
        "file system",
        f"{found} ({mount.source}), a network file system: SQLite's locks and shared memory do "
        "not work there, and rows can be lost",
        fix='--set store.dir=DIR on a local disk; "forge export sqlite" makes a file to share',
    )


def _require(is_ok: bool, name: str, found: str, *, fix: str) -> Finding:
    if is_ok:
        return Finding(name=name, found=found)
    return error(name, found, fix=fix)
