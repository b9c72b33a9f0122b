"""Memory of the machine: a lower limit of the container replaces it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forge.process.machine import HostMemory, read_memory, total_memory_bytes

if TYPE_CHECKING:
    from pathlib import Path

PHYSICAL = HostMemory(used_bytes=600 << 10, total_bytes=1000 << 10)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    folder.mkdir()
    text = "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  400 kB\n"
    (folder / "meminfo").write_text(text)
    return folder


def make_cgroup(folder: Path, *, limit: str) -> Path:
    folder.mkdir()
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text("450\n")
    (folder / "memory.stat").write_text("anon 300\ninactive_file 100\n")
    return folder


def test_a_machine_without_a_container_has_its_physical_memory(proc: Path, tmp_path: Path) -> None:
    assert read_memory(proc=proc, cgroup=tmp_path / "none") == PHYSICAL
    assert total_memory_bytes(cgroup=tmp_path / "none") > 1 << 20


@pytest.mark.parametrize("limit", ["max", str(1 << 60)])
def test_a_limit_that_does_not_bind_is_ignored(proc: Path, tmp_path: Path, limit: str) -> None:
    cgroup = make_cgroup(tmp_path / "cgroup", limit=limit)
    assert read_memory(proc=proc, cgroup=cgroup) == PHYSICAL
    assert total_memory_bytes(cgroup=cgroup) < 1 << 60


def test_a_container_counts_its_use_without_inactive_file_pages(proc: Path, tmp_path: Path) -> None:
    cgroup = make_cgroup(tmp_path / "cgroup", limit="500")
    found = read_memory(proc=proc, cgroup=cgroup)
    assert found == HostMemory(used_bytes=350, total_bytes=500)
    assert total_memory_bytes(cgroup=cgroup) == 500


def test_memory_that_the_kernel_does_not_report_is_unknown(tmp_path: Path) -> None:
    assert read_memory(proc=tmp_path, cgroup=tmp_path) is None
