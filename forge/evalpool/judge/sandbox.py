"""Putting a process into its sandbox: the zygote's own, once, and a smaller one for each child.

    judge ─spawns─▶ launcher ──unshare pid, mount, ipc, net (+ user)──▶ zygote: pid 1, in the root
       zygote ─unshare pid─▶ child (runner or oracle): pid 1 of its own, with its own mount and ipc
                             namespace, /proc, tmpfs and uid, and no capability

The zygote being pid 1 of a namespace, its end is the end of every child, whatever a child did; a
child being pid 1 of its own, killing it kills all that it started. So no warden process is needed:
one fork of a large process less a candidate. What this does not cover: the network namespace is
shared by the children of one judge (with loopback down), who may not make sockets (seccomp).
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from forge.evalpool.judge import linux, root, seccomp

if TYPE_CHECKING:
    from collections.abc import Mapping

SCRATCH_BYTES = 64 << 20
SCRATCH_FILES = 4096
MAX_PROCESSES = 64
"""Processes and threads of a child. The kernel counts by uid and user namespace."""
MAX_FILE_BYTES = 64 << 20
MAX_OPEN_FILES = 256
OOM_SCORE = 1000
"""The kernel ends a child before anybody else."""
SCRATCH_FOLDERS = ("work", "home", "shm", "triton")
CHILD_ENVIRONMENT = {
    "HOME": "/tmp/home",
    "TMPDIR": "/tmp",
    "TRITON_CACHE_DIR": "/tmp/triton",
    "TRITON_INTERPRET": "1",
    "PATH": "/nonexistent",
    "LANG": "C.UTF-8",
}


SYSCTLS = {
    "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),
    "kernel.unprivileged_userns_clone": ("0", "1"),
    "user.max_user_namespaces": ("0", "16384"),
}
"""Each by itself forbids an ordinary user's namespaces: (the value that does, one that does not).
The first is Ubuntu's, since 23.10; the second Debian's; the third every kernel's."""


class Isolation(StrEnum):
    """How strong the sandbox is. Recorded in every verdict."""

    NAMESPACES = "namespaces"
    """Own pid, mount, ipc and net namespaces, allow-list root, own uid where we are root."""
    NONE = "none"
    """Limits and no_new_privs only: files, sockets and other processes are within reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildLimits:
    """What one child may use."""

    uid: int | None
    """Its own uid, where we are root."""
    memory_bytes: int | None
    """Beyond what is mapped already; None where address space cannot be capped: CUDA reserves more
    than there is memory."""


def advice(*, uid: int, sysctls: Mapping[str, str]) -> str:
    """What to change on a machine that refuses the namespaces. `sysctls` as `read_sysctls` has."""
    if uid == 0:
        return (
            "root lacks CAP_SYS_ADMIN here, as in a container by default: start it with --cap-add "
            "SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined"
        )
    for name, (forbidding, allowing) in SYSCTLS.items():
        if sysctls.get(name) == forbidding:
            return f'allow user namespaces: "sudo sysctl -w {name}={allowing}", or run as root'
    return "no sysctl forbids user namespaces; a container's seccomp profile may: run as root"


def read_sysctls() -> dict[str, str]:
    """Those of SYSCTLS that this kernel has."""
    paths = {name: Path("/proc/sys", *name.split(".")) for name in SYSCTLS}
    return {name: path.read_text().strip() for name, path in paths.items() if path.exists()}


def enter_zygote_namespaces() -> None:
    """First half, in the launcher: namespaces for what follows. The next fork is pid 1 there."""
    uid, gid = os.geteuid(), os.getegid()
    flags = linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWIPC | linux.CLONE_NEWNET
    if uid == 0:
        linux.unshare(flags)
        return
    linux.unshare(flags | linux.CLONE_NEWUSER)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def enter_root(plan: root.RootPlan, *, at: str) -> None:
    """Second half, in the zygote: the allow-list root, with the /proc of its own pid namespace."""
    root.build_root(plan, at=at)
    linux.mount("proc", f"{at}/proc", kind="proc", flags=_proc_flags())
    linux.pivot_root(at)
    root.seal_root()


def enter_child_sandbox(
    limits: ChildLimits,
    *,
    isolation: Isolation,
    mapped_bytes: int,
    environment: Mapping[str, str] = CHILD_ENVIRONMENT,
    is_gpu: bool = False,
) -> None:
    """In a freshly forked child (pid 1 of its namespace): everything down to the filter.

    Promise: returns only if each step succeeded; the judge looks at the result from outside too.
    """
    if isolation is Isolation.NAMESPACES:
        own_net = linux.CLONE_NEWNET if is_gpu else 0
        linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWIPC | own_net)
        linux.mount("proc", "/proc", kind="proc", flags=_proc_flags())
        options = f"size={SCRATCH_BYTES},nr_inodes={SCRATCH_FILES},mode=1777"
        flags = _proc_flags()
        if is_gpu:
            flags &= ~linux.MS_NOEXEC  # Triton compiles its launchers and loads them from there
        linux.mount("tmpfs", root.SCRATCH, kind="tmpfs", flags=flags, data=options)
        for name in SCRATCH_FOLDERS:
            os.mkdir(f"{root.SCRATCH}/{name}")
            os.chmod(f"{root.SCRATCH}/{name}", 0o777)
        os.chdir(f"{root.SCRATCH}/work")
    else:
        os.setsid()  # what it starts can be killed with it, if it stays in the group
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(OOM_SCORE))
    _limit(limits, mapped_bytes=mapped_bytes)
    linux.drop_bounding_set()
    if limits.uid is not None:
        os.setgroups([])
        os.setresgid(limits.uid, limits.uid, limits.uid)
        os.setresuid(limits.uid, limits.uid, limits.uid)
    linux.prctl(linux.PR_SET_PDEATHSIG, 9)
    linux.drop_capabilities()
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    if isolation is Isolation.NAMESPACES:
        seccomp.install(is_gpu=is_gpu)
    os.environ.clear()
    os.environ.update(environment)


def mapped_bytes() -> int:
    """Address space of this process. torch maps far more than it uses."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _limit(limits: ChildLimits, *, mapped_bytes: int) -> None:
    if limits.memory_bytes is not None:
        address_space = mapped_bytes + limits.memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
    for kind, value in (
        (resource.RLIMIT_NPROC, MAX_PROCESSES),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (value, value))


def _proc_flags() -> int:
    return linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
