"""Limits of this process: ulimits, tasks and CPU time of its control group, and /dev/shm."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from forge.commands.doctor.container import docker
from forge.commands.doctor.finding import Finding, Severity, error, warning
from forge.process.machine import cpu_quota, max_tasks
from forge.views.text.numbers import size

if TYPE_CHECKING:
    from collections.abc import Iterator

MIN_FILES, GOOD_FILES = 256, 1024
"""A candidate's own limit is 256 open files; a supervisor with many judges and engines has more."""
MIN_TASKS, GOOD_TASKS = 128, 1024
"""Processes and threads of a small run, and of one with several judges and a vLLM engine."""
MIN_LOCKED_BYTES = 1 << 20
"""Above Docker's default of 64 kB; systemd's is 8 MB."""
MIN_ADDRESS_BYTES, GOOD_ADDRESS_BYTES = 8_000_000_000, 64 << 30
"""torch maps far more address space than it uses. With 4 GB no judge starts, with 8 GB one does."""
MIN_SHM_BYTES = 1 << 30
"""/dev/shm for NCCL and vLLM on several GPUs. Docker's default is 64 MB."""
SMALL_SHM_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitFacts:
    """Soft limits; None means unlimited."""

    num_files: int | None
    num_tasks: int | None
    """Processes and threads, by ulimit."""
    locked_bytes: int | None
    address_bytes: int | None
    group_tasks: int | None
    """Processes and threads, by control group."""
    cpu_quota: float | None
    """Cores' worth of CPU time."""
    cores: int
    shm_bytes: int | None
    """Size of /dev/shm; None if it cannot be written."""
    shm_free_bytes: int = 0
    num_gpus: int = 0
    has_infiniband: bool = False
    is_container: bool = False


def read_limits(*, cores: int, num_gpus: int, is_container: bool) -> LimitFacts:
    """Ask the kernel."""
    shm = Path("/dev/shm")
    stat = os.statvfs(shm) if os.access(shm, os.W_OK) else None
    return LimitFacts(
        num_files=_soft(resource.RLIMIT_NOFILE),
        num_tasks=_soft(resource.RLIMIT_NPROC),
        locked_bytes=_soft(resource.RLIMIT_MEMLOCK),
        address_bytes=_soft(resource.RLIMIT_AS),
        group_tasks=max_tasks(),
        cpu_quota=cpu_quota(),
        cores=cores,
        shm_bytes=None if stat is None else stat.f_blocks * stat.f_frsize,
        shm_free_bytes=0 if stat is None else stat.f_bavail * stat.f_frsize,
        num_gpus=num_gpus,
        has_infiniband=Path("/dev/infiniband").is_dir(),
        is_container=is_container,
    )


def check_limits(facts: LimitFacts) -> Iterator[Finding]:
    """A finding per limit."""
    yield _check_count(
        "open files", facts.num_files, least=MIN_FILES, good=GOOD_FILES,
        fix=_fix(facts, "--ulimit nofile=65536", "ulimit -n 65536"),
    )  # fmt: skip
    yield _check_count(
        "processes", facts.num_tasks, least=MIN_TASKS, good=GOOD_TASKS,
        fix=_fix(facts, "--ulimit nproc=-1", "ulimit -u unlimited"),
    )  # fmt: skip
    if facts.group_tasks is not None:
        yield _check_count(
            "processes of the container", facts.group_tasks, least=MIN_TASKS, good=GOOD_TASKS,
            fix=docker("--pids-limit=-1"),
        )  # fmt: skip
    yield _check_address_space(facts)
    yield _check_locked_memory(facts)
    yield _check_shared_memory(facts)
    yield _check_cores(facts)


def _check_count(name: str, limit: int | None, *, least: int, good: int, fix: str) -> Finding:
    found = f"{limit} allowed" if limit is not None else "unlimited"
    if limit is None or limit >= good:
        return Finding(name=name, found=found)
    if limit < least:
        return error(name, f"{found}; a run needs {least}", fix=fix)
    return warning(name, f"{found}; large runs need {good}", fix=fix)


def _check_address_space(facts: LimitFacts) -> Finding:
    name, limit = "address space", facts.address_bytes
    if limit is None:
        return Finding(name=name, found="unlimited")
    found = f"{size(limit)} allowed"
    if facts.num_gpus:
        found = f"{found}; CUDA and ROCm reserve more than there is memory"
        return error(name, found, fix="ulimit -v unlimited")
    if limit < MIN_ADDRESS_BYTES:
        found = f"{found}; a judge needs 8 GB"
        return error(name, found, fix="ulimit -v unlimited")
    if limit < GOOD_ADDRESS_BYTES:
        found = f"{found}; torch maps far more than it uses"
        return warning(name, found, fix="ulimit -v unlimited")
    return Finding(name=name, found=found)


def _check_locked_memory(facts: LimitFacts) -> Finding:
    name, limit = "locked memory", facts.locked_bytes
    if limit is None:
        return Finding(name=name, found="unlimited")
    found, fix = f"{size(limit)} allowed", _fix(facts, "--ulimit memlock=-1", "ulimit -l unlimited")
    if facts.has_infiniband:
        return warning(name, f"{found}; NCCL over InfiniBand needs it unlimited", fix=fix)
    if facts.num_gpus > 1 and limit < MIN_LOCKED_BYTES:
        return warning(name, f"{found}; NCCL may pin more", fix=fix)
    return Finding(name=name, found=found)


def _check_shared_memory(facts: LimitFacts) -> Finding:
    name, limit = "/dev/shm", facts.shm_bytes
    remount = "mount -o remount,size=16G /dev/shm"
    fix = _fix(facts, "--shm-size=16g", remount)
    if limit is None:
        severity = Severity.ERROR if facts.num_gpus else Severity.WARNING
        return Finding(name=name, found="absent or not writable", severity=severity, fix=fix)
    found = f"{size(facts.shm_free_bytes)} of {size(limit)} free"
    if facts.num_gpus > 1 and facts.shm_free_bytes < MIN_SHM_BYTES:
        return warning(name, f"{found}; NCCL and vLLM need 1 GB on several GPUs", fix=fix)
    if limit < SMALL_SHM_BYTES:
        return warning(name, f"{found}: it is too small", fix=fix)
    if facts.shm_free_bytes < SMALL_SHM_BYTES:
        return warning(name, f"{found}: it is full", fix="remove old files from /dev/shm")
    return Finding(name=name, found=found)


def _check_cores(facts: LimitFacts) -> Finding:
    quota = facts.cpu_quota
    if quota is None or quota >= facts.cores:
        return Finding(name="cores", found=str(facts.cores))
    found = f"{facts.cores}, of which the control group allows the time of {quota:g}"
    flag = f"--cpuset-cpus=0-{max(0, int(quota) - 1)}"
    fix = docker(flag) if facts.is_container else "raise CPUQuota= of the service"
    return warning("cores", f"{found}: judges time kernels wrongly when throttled", fix=fix)


def _fix(facts: LimitFacts, flag: str, command: str) -> str:
    return docker(flag) if facts.is_container else command


def _soft(kind: int) -> int | None:
    limit = resource.getrlimit(kind)[0]
    return None if limit == resource.RLIM_INFINITY else limit
