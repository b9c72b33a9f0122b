"""All checks of this machine: the table of what a run needs of the host, each with its probe,
limits and fix, and the probes that try what a run will do.

The sandbox that judges can build depends on the container: Docker's defaults forbid what it is made
of, and each flag that is missing is named. A judge on a GPU needs the strongest level, since CUDA
does not start without a /proc of its own. The probes run in parallel, so all takes as long as the
slowest.

A store needs SQLite's WAL, that is, memory shared between processes and working locks; network file
systems provide neither across machines, and some lose rows or hang without an error.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio

from forge.commands.doctor import probe
from forge.config.schema import ServeTable
from forge.errors import ForgeError, MachineError
from forge.evalpool.judge.sandbox.enter import advice, read_sysctls
from forge.process.devices import Gpu, Vendor, nvidia_fault
from forge.process.gpu_locks import holders
from forge.process.machine import cpu_quota, max_tasks
from forge.process.sockets import open_socket_dir
from forge.runner.plan.machine import Machine, this_machine
from forge.serve.engines import PYTHON_AT_LEAST, read_interpreter
from forge.views.text import gigabytes, size

ERROR, WARNING = probe.Severity.ERROR, probe.Severity.WARNING
PCI_VENDORS = {"0x10de": Vendor.NVIDIA, "0x1002": Vendor.AMD}
GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
"""PCI classes of GPUs: VGA, 3D, other display controllers, processing accelerators."""
AMD_FLAGS = ("--device /dev/kfd", "--device /dev/dri", "--group-add video", "--group-add render")
CAP_SYS_ADMIN = 1 << 21
SECCOMP_FILTER = 2
"""Value in /proc/self/status of a process under a system call filter."""
UNMASKED = ("/proc/sys/fs/binfmt_misc",)
"""Mounts below /proc that any machine has."""
CONTAINERS = {".dockerenv": "Docker", "run/.containerenv": "Podman"}
NO_SANDBOX = 'judge.isolation = "none" uses none'
RELEASED = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
"""No clock of a machine with this release is right before that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Facts of this machine and this process. A limit of None is unlimited."""

    gpus: Sequence[Gpu] = ()
    on_bus: frozenset[Vendor] = frozenset()
    """Makers of GPUs on the PCI bus, which a container sees whatever its devices are."""
    nodes: frozenset[str] = frozenset()
    """Names in /dev: nvidiactl, nvidia-uvm, kfd, dri/renderD128."""
    is_kfd_open: bool = False
    nvml_fault: str = ""
    has_infiniband: bool = False
    compiler: str | None = None
    container: str = ""
    """Docker, Podman, Kubernetes; empty for none."""
    uid: int = 0
    capabilities: int = 0
    seccomp: int = 0
    apparmor: str = ""
    masked: Sequence[str] = ()
    num_files: int | None = None
    num_tasks: int | None = None
    group_tasks: int | None = None
    locked_bytes: int | None = None
    address_bytes: int | None = None
    cores: int = 1
    cpu_quota: float | None = None
    shm_bytes: int = 0
    """Size of /dev/shm; 0 if it cannot be written."""
    shm_free_bytes: int = 0
    memory_bytes: int = 0
    """Physical memory, or the container's limit where that is lower."""
    store_dir: str = "runs"
    disk_bytes: int = 0
    mount: Mount | None = None
    now: float = 0.0

    def fix(self, flags: str, outside: str) -> str:
        return probe.docker(flags) if self.container else outside


def check_host(host: HostFacts) -> Iterator[probe.Finding]:
    """The table: name, what was found, fix, and limits, of which the first that is broken counts.

    A limit is its severity, whether it is broken, words about it, and its own fix. Without a text
    and a broken limit there is no finding.
    """
    gpus, several = host.gpus, len(host.gpus) > 1
    amd = host.fix(
        " ".join(AMD_FLAGS), "install ROCm's kernel driver: amdgpu-install --usecase=dkms"
    )
    uvm = f" on the host, then {probe.docker('--gpus all')}" if host.container else ""
    quota, shm = host.cpu_quota, f"{size(host.shm_free_bytes)} of {size(host.shm_bytes)} free"
    share = f", of which the control group allows the time of {quota:g}" if quota else ""
    is_throttled, mount = _low(quota, host.cores), host.mount
    fault = f"does not answer: {host.nvml_fault}"
    yield from _rows([
        ("system", f"{platform.system()} {platform.release()} {platform.machine()}",
         "runs need Linux; reading commands work here", (ERROR, sys.platform != "linux")),
        ("python", platform.python_version(), "Python {}.{} or later".format(*PYTHON_AT_LEAST),
         (ERROR, sys.version_info < PYTHON_AT_LEAST)),
        ("C compiler", host.compiler or "none",
         "apt install gcc; Triton compiles its launchers with it on GPUs",
         (ERROR, not host.compiler and gpus), (WARNING, not host.compiler)),
        ("NVIDIA driver", "", "",
         (WARNING, host.nvml_fault, fault,
          "nvidia-smi; after an update of the driver, reboot or restart the container"),
         (WARNING, Vendor.NVIDIA in host.on_bus and "nvidiactl" not in host.nodes,
          "there is an NVIDIA GPU, but no /dev/nvidiactl",
          host.fix("--gpus all", "install NVIDIA's driver, 580 or later for CUDA 13")),
         (WARNING, "nvidiactl" in host.nodes and "nvidia-uvm" not in host.nodes,
          "no /dev/nvidia-uvm, without which CUDA does not start",
          f"nvidia-modprobe -u -c=0{uvm}")),
        ("AMD driver", "", amd,
         (WARNING, Vendor.AMD in host.on_bus and "kfd" not in host.nodes,
          "there is an AMD GPU, but no /dev/kfd"),
         (WARNING, "kfd" in host.nodes and "dri/renderD" not in " ".join(host.nodes),
          "/dev/kfd is there, but no /dev/dri/renderD*"),
         (WARNING, "kfd" in host.nodes and not host.is_kfd_open, "this user may not open /dev/kfd",
          host.fix(" ".join(AMD_FLAGS[2:]), "sudo usermod -aG render,video $USER, then log in "
                   "again"))),
        ("container", _show_container(host), ""),
        # A candidate's own limit is 256 open files; a supervisor with many judges has more.
        ("open files", _allowed(host.num_files),
         host.fix("--ulimit nofile=65536", "ulimit -n 65536"),
         (ERROR, _low(host.num_files, 256), "a run needs 256"),
         (WARNING, _low(host.num_files, 1024), "large runs need 1024")),
        # Processes and threads of a small run, and of one with several judges and a vLLM engine.
        ("processes", _allowed(host.num_tasks),
         host.fix("--ulimit nproc=-1", "ulimit -u unlimited"),
         (ERROR, _low(host.num_tasks, 128), "a run needs 128"),
         (WARNING, _low(host.num_tasks, 1024), "large runs need 1024")),
        ("processes of the container",
         "" if host.group_tasks is None else _allowed(host.group_tasks),
          probe.docker("--pids-limit=-1"),
         (ERROR, _low(host.group_tasks, 128), "a run needs 128"),
         (WARNING, _low(host.group_tasks, 1024), "large runs need 1024")),
        # With 4 GB no judge starts, with 8 GB one does.
        ("address space", _allowed(host.address_bytes, size), "ulimit -v unlimited",
         (ERROR, host.address_bytes is not None and gpus,
          "CUDA and ROCm reserve more than there is memory"),
         (ERROR, _low(host.address_bytes, 8e9), "a judge needs 8 GB"),
         (WARNING, _low(host.address_bytes, 64 << 30), "torch maps far more than it uses")),
        # 1 MB is above Docker's default of 64 kB; systemd's is 8 MB.
        ("locked memory", _allowed(host.locked_bytes, size),
         host.fix("--ulimit memlock=-1", "ulimit -l unlimited"),
         (WARNING, host.locked_bytes is not None and host.has_infiniband,
          "NCCL over InfiniBand needs it unlimited"),
         (WARNING, several and _low(host.locked_bytes, 1 << 20), "NCCL may pin more")),
        # Docker's default is 64 MB.
        ("/dev/shm", shm if host.shm_bytes else "absent or not writable",
         host.fix("--shm-size=16g", "mount -o remount,size=16G /dev/shm"),
         (ERROR, not host.shm_bytes and gpus), (WARNING, not host.shm_bytes),
         (WARNING, several and host.shm_free_bytes < 1 << 30,
          "NCCL and vLLM need 1 GB on several GPUs"),
         (WARNING, host.shm_bytes < 16 << 20, "it is too small"),
         (WARNING, host.shm_free_bytes < 16 << 20, "it is full",
          "remove old files from /dev/shm")),
        ("cores", f"{host.cores}{share if is_throttled else ''}",
         host.fix(f"--cpuset-cpus=0-{max(0, int(quota or 0) - 1)}",
                  "raise CPUQuota= of the service"),
         (WARNING, is_throttled, "judges time kernels wrongly when throttled")),
        ("memory", gigabytes(host.memory_bytes),
         "the quickstart needs 4 GB: docker run --memory=...",
         (ERROR, host.memory_bytes < 4 << 30)),
        ("disk", f"{gigabytes(host.disk_bytes)} free for {host.store_dir}",
         "free some space, or --store DIR", (ERROR, host.disk_bytes < 2 << 30)),
        ("file system", mount and f"{mount.kind} at {mount.point}",
         '--store DIR on a local disk; "forge archive" makes a file to share',
         (ERROR, mount and mount.is_network,
          (f"{mount and mount.source} is a network file system: SQLite's locks and shared memory "
          "do not work there, and rows can be lost"))),
        ("clock", datetime.fromtimestamp(host.now, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
         "timedatectl set-ntp true (on the host, if this is a container)",
         (WARNING, host.now < RELEASED,
          "the clock is wrong: it is before this release of forge")),
    ])  # fmt: skip


def _rows(table: Sequence[tuple[Any, ...]]) -> Iterator[probe.Finding]:
    for name, found, fix, *limits in table:
        broken = next((limit for limit in limits if limit[1]), None)
        if broken is not None:
            severity, _, *words = broken
            why, own_fix = (*words, "", "")[:2]
            found = "; ".join(filter(None, (found, why)))
            yield probe.Finding(name=name, found=found, severity=severity, fix=own_fix or fix)
        elif found:
            yield probe.Finding(name=name, found=found)


def _low(value: float | None, least: float) -> bool:
    return value is not None and value < least


def _allowed(limit: int | None, show: Callable[[int], str] = str) -> str:
    return "unlimited" if limit is None else f"{show(limit)} allowed"


def _show_container(host: HostFacts) -> str:
    forbids = {
        "no CAP_SYS_ADMIN": not host.capabilities & CAP_SYS_ADMIN,
        "a seccomp filter": host.seccomp == SECCOMP_FILTER,
        f"AppArmor's {host.apparmor}": host.apparmor not in ("", "unconfined"),
        "a masked /proc": host.masked,
    }
    named = ", ".join(name for name, is_set in forbids.items() if is_set)
    return f"{host.container}: {named or 'unconfined'}" if host.container else ""


def sandbox_flags(host: HostFacts) -> list[str]:
    """Flags that give a container what the strongest sandbox needs, without those it has."""
    has_admin = bool(host.capabilities & CAP_SYS_ADMIN)
    flags = {
        "--cap-add SYS_ADMIN": host.uid == 0 and not has_admin,
        "--security-opt seccomp=unconfined": host.seccomp == SECCOMP_FILTER and not has_admin,
        "--security-opt apparmor=unconfined": host.apparmor not in ("", "unconfined"),
        "--security-opt systempaths=unconfined": bool(host.masked),
    }
    return [flag for flag, is_needed in flags.items() if is_needed]


def check_sandbox(
    outcome: probe.Outcome, host: HostFacts, *, sysctls: Mapping[str, str]
) -> probe.Finding:
    level = outcome.get("level")
    refused: list[str] = outcome.get("refused") or []
    flags = sandbox_flags(host)
    fix = (
        probe.docker(*flags) if flags and host.container else advice(uid=host.uid, sysctls=sysctls)
    )
    if level is None:
        why = outcome.fault or "; ".join(refused)
        return probe.error("sandbox", f"none: {why}", fix=f"{fix}; {NO_SANDBOX}")
    found = f"{level} ({'; '.join(refused)})" if refused else f"{level}"
    if host.gpus and not outcome.get("serves_gpus"):
        found = f"{found}; judges on GPUs need namespaces with a /proc of their own"
        return probe.error("sandbox", found, fix=f"{fix}; {NO_SANDBOX}")
    return (
        probe.warning("sandbox", found, fix=fix)
        if refused
        else probe.Finding(name="sandbox", found=found)
    )


def read_host(machine: Machine, store_dir: Path) -> HostFacts:
    shm = Path("/dev/shm")
    room = os.statvfs(shm) if os.access(shm, os.W_OK) else None
    return HostFacts(
        gpus=machine.gpus,
        nvml_fault=nvidia_fault(),
        compiler=shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"),
        num_files=_soft(resource.RLIMIT_NOFILE),
        num_tasks=_soft(resource.RLIMIT_NPROC),
        group_tasks=max_tasks(),
        locked_bytes=_soft(resource.RLIMIT_MEMLOCK),
        address_bytes=_soft(resource.RLIMIT_AS),
        cores=machine.cores,
        cpu_quota=cpu_quota(),
        shm_bytes=0 if room is None else room.f_blocks * room.f_frsize,
        shm_free_bytes=0 if room is None else room.f_bavail * room.f_frsize,
        has_infiniband=Path("/dev/infiniband").is_dir(),
        memory_bytes=machine.memory_bytes,
        disk_bytes=machine.free_disk_bytes,
        store_dir=str(store_dir),
        mount=find_mount(store_dir),
        **read_container(),
        **read_devices(),
        now=time.time(),
    )


def read_devices(*, root: Path = Path("/")) -> dict[str, Any]:
    """The fields of HostFacts that /sys and /dev have."""
    dev, on_bus = root / "dev", set[Vendor]()
    for device in (root / "sys/bus/pci/devices").glob("*"):
        vendor = PCI_VENDORS.get(_read(device / "vendor"))
        if vendor is not None and _read(device / "class").startswith(GPU_CLASSES):
            on_bus.add(vendor)
    names = [*dev.glob("nvidia*"), *dev.glob("kfd"), *dev.glob("dri/renderD*")]
    return {
        "on_bus": frozenset(on_bus),
        "nodes": frozenset(str(path.relative_to(dev)) for path in names),
        "is_kfd_open": os.access(dev / "kfd", os.R_OK | os.W_OK),
    }


def read_container(*, root: Path = Path("/")) -> dict[str, Any]:
    """The fields of HostFacts that /proc and the marks of container runtimes have."""
    status = _read(root / "proc/self/status")
    kind = next((kind for mark, kind in CONTAINERS.items() if (root / mark).exists()), "")
    if not kind and "KUBERNETES_SERVICE_HOST" in os.environ:
        kind = "Kubernetes"
    fields = dict(re.findall(r"^(\w+):\s*(\S+)", status, re.MULTILINE))
    mounts = [line.split(" ")[4] for line in _read(root / "proc/self/mountinfo").splitlines()]
    return {
        "container": kind,
        "uid": os.geteuid(),
        "capabilities": int(fields.get("CapEff", "0"), 16),
        "seccomp": int(fields.get("Seccomp", "0")),
        "apparmor": _read(root / "proc/self/attr/current").removesuffix(" (enforce)"),
        "masked": [at for at in mounts if at.startswith("/proc/") and at not in UNMASKED],
    }


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip("\0\n ")
    except OSError:
        return ""


def _soft(kind: int) -> int | None:
    limit = resource.getrlimit(kind)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def examine(store_dir: Path, *, serve: ServeTable | None = None) -> list[probe.Finding]:
    """Runs all checks. `store_dir`: parent of run directories; its disk is checked. `serve`:
    `[serve]` of an experiment, to check the engines of its interpreter; absent means this
    interpreter."""
    python, of_engines = None, list[probe.Finding]()
    try:
        python = read_interpreter(serve)
    except MachineError as failure:
        fix = "serve.python must name a Python that runs"
        of_engines.append(probe.error("engines", str(failure), fix=fix))
    machine = this_machine(store_dir, serve=None if python is None else serve)
    gpus = probe.GpuFacts(
        gpus=machine.gpus,
        hidden=machine.hidden_gpus,
        holders=holders(machine.gpus),
        users=machine.gpu_users,
    )
    engines = None
    if python is not None:
        engines = probe.EngineFacts(python=python, table=serve or ServeTable(), gpus=machine.gpus)
    with ExitStack() as opened:
        folder, sockets = _open_folder(opened)
        here, serving, sandbox, gpus = anyio.run(_try_all, folder, gpus, engines)
    host = read_host(machine, store_dir)
    if engines is not None:
        of_engines = [*probe.check_engines(replace(engines, imported={**here, **serving}))]
    return [
        *check_host(host),
        *probe.check_packages(here),
        *of_engines,
        *probe.check_gpus(gpus),
        check_sandbox(sandbox, host, sysctls=read_sysctls()),
        sockets,
    ]


async def _try_all(
    folder: Path, gpus: probe.GpuFacts, engines: probe.EngineFacts | None
) -> tuple[
    Mapping[str, probe.Imported], Mapping[str, probe.Imported], probe.Outcome, probe.GpuFacts
]:
    """Run all probes; `folder` is a private directory for their files. Returns the packages of this
    interpreter and of the one that serves, the sandbox, and the GPUs."""
    found: dict[str, Any] = {"serving": {}}

    async def keep(name: str, trial: Awaitable[Any]) -> None:
        found[name] = await trial

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep, "here", probe.import_packages(probe.PACKAGES, folder))
        tasks.start_soon(keep, "sandbox", probe.run_probe("sandbox", folder))
        tasks.start_soon(keep, "gpus", probe.try_gpus(gpus, folder))
        if engines is not None:
            tasks.start_soon(keep, "serving", probe.import_for_engines(engines, folder))
    return found["here"], found["serving"], found["sandbox"], found["gpus"]


def _open_folder(opened: ExitStack) -> tuple[Path, probe.Finding]:
    """A private directory for the probes: that of a run's sockets, which is removed after a kill
    too, or another one if sockets have no place."""
    try:
        folder = opened.enter_context(open_socket_dir())
        return folder, probe.Finding(name="sockets", found=str(folder.parent))
    except (ForgeError, OSError) as failure:
        fix = "TMPDIR=/tmp, or another short writable path"
        sockets = probe.error("sockets", str(failure), fix=fix)
    try:
        return Path(opened.enter_context(TemporaryDirectory())), sockets
    except OSError as failure:
        raise MachineError(f"no temporary directory: {failure}; set TMPDIR") from failure


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
