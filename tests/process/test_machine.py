"""Memory, control groups and limits of this machine: a container's limit replaces the machine's,
one that no run can live with is named before it starts.
"""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from forge.errors import ConfigError, ForgeError, MachineError, unwritable
from forge.process import machine
from forge.process.machine import (
    HostMemory,
    cpu_quota,
    limit_behind,
    max_tasks,
    read_memory,
    total_memory_bytes,
)

PHYSICAL = HostMemory(used_bytes=600 << 10, total_bytes=1000 << 10)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    folder.mkdir()
    text = "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  400 kB\n"
    (folder / "meminfo").write_text(text)
    return folder


def make_cgroup(folder: Path, *, limit: str) -> Path:
    folder.mkdir(exist_ok=True)
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


def test_the_limit_of_a_group_below_the_root_counts(proc: Path, tmp_path: Path) -> None:
    """A SLURM job or a systemd slice."""
    cgroup, own = tmp_path / "cgroup", tmp_path / "own"
    for path, limit in (("", "900000"), ("job", "max"), ("job/step", "500"), ("other", "7")):
        make_cgroup(cgroup / path, limit=limit)
    own.write_text("0::/job/step\n")
    assert total_memory_bytes(cgroup=cgroup, own=own) == 500
    found = read_memory(proc=proc, cgroup=cgroup, own=own)
    assert found == HostMemory(used_bytes=350, total_bytes=500)
    own.write_text("0::/docker/0123abc\n")  # the host's path, in a container
    assert total_memory_bytes(cgroup=cgroup, own=own) == 900000


def test_groups_of_version_1_are_read(proc: Path, tmp_path: Path) -> None:
    cgroup, own = tmp_path / "cgroup", tmp_path / "own"
    memory, cpu = cgroup / "memory/job", cgroup / "cpu"
    for folder in (memory, cpu, cgroup / "unified", cgroup / "pids"):
        folder.mkdir(parents=True)
    (memory / "memory.limit_in_bytes").write_text("500\n")
    (memory / "memory.usage_in_bytes").write_text("450\n")
    (memory / "memory.stat").write_text("cache 200\ntotal_inactive_file 100\n")
    (cpu / "cpu.cfs_quota_us").write_text("-1\n")
    (cpu / "cpu.cfs_period_us").write_text("100000\n")
    own.write_text("4:memory:/job\n2:cpu,cpuacct:/\n8:pids:/\n0::/\n")
    found = read_memory(proc=proc, cgroup=cgroup, own=own)
    assert found == HostMemory(used_bytes=350, total_bytes=500)
    assert cpu_quota(cgroup=cgroup, own=own) is None
    (cpu / "cpu.cfs_quota_us").write_text("250000\n")
    assert cpu_quota(cgroup=cgroup, own=own) == 2.5
    assert max_tasks(cgroup=cgroup, own=own) is None
    (cgroup / "pids/pids.max").write_text("512\n")
    assert max_tasks(cgroup=cgroup, own=own) == 512


def test_a_quota_of_version_2_is_read(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert cpu_quota(cgroup=tmp_path, own=tmp_path / "absent") == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cpu_quota(cgroup=tmp_path, own=tmp_path / "absent") is None


@pytest.mark.parametrize(
    ("limit", "line"),
    [
        ("-n 40", 'forge: "ulimit -n" allows this process 40 open files; a run needs 512: '),
        ("-v 3000000", 'forge: "ulimit -v" allows a process 2.9 GiB of address space; a run nee'),
    ],
)
@pytest.mark.parametrize("command", ["run", "judge"])
def test_a_limit_that_no_run_can_live_with_is_one_line_and_exit_3(
    limit: str, line: str, command: str
) -> None:
    program = f'ulimit {limit}; exec "$@"'
    argv = [sys.executable, "-m", "forge", command, "absent.toml", "absent.py"][
        : 5 + (command == "judge")
    ]
    done = subprocess.run(
        ["sh", "-c", program, "sh", *argv], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1


def test_the_soft_limit_of_open_files_is_raised() -> None:
    code = (
        "import resource as r; from forge.process.machine import require_limits;"
        "hard = r.getrlimit(r.RLIMIT_NOFILE)[1]; r.setrlimit(r.RLIMIT_NOFILE, (100, hard));"
        "require_limits(); print(r.getrlimit(r.RLIMIT_NOFILE)[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert int(done.stdout) >= machine.MIN_OPEN_FILES


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("OSError: [Errno 24] Too many open files: 'x'", '"ulimit -n" allows 700 open files.'),
        ("RuntimeError: can't start new thread", '"ulimit -v" allows each process 9.0 GiB'),
        ("libtorch.so: failed to map segment from shared object", '"ulimit -v" allows'),
        ("ValueError: x", ""),
    ],
)
def test_the_limit_behind_a_failure_is_named(
    words: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {resource.RLIMIT_AS: 9 << 30, resource.RLIMIT_NOFILE: 700}
    monkeypatch.setattr(machine.resource, "getrlimit", lambda kind: (found[kind], found[kind]))
    assert said in limit_behind(words)
    assert bool(limit_behind(words)) is bool(said)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, MachineError), (errno.EACCES, MachineError), (errno.EROFS, MachineError),
        (errno.ENOENT, ConfigError), (errno.ENOTDIR, ConfigError), (errno.EISDIR, ConfigError),
    ],
)  # fmt: skip
def test_an_output_is_the_users_mistake_only_if_no_such_path_can_be(
    number: int, kind: type[ForgeError]
) -> None:
    found = unwritable("--out x", OSError(number, os.strerror(number)))
    assert type(found) is kind
    assert str(found) == f"--out x: cannot be written: {os.strerror(number)}"
