"""Puts a process into its sandbox: the zygote's own, once, and a smaller one for each child.

    judge ─spawns─▶ launcher ──unshare pid, mount, ipc, net (+ user)──▶ zygote: pid 1, in the root
       zygote ─unshare pid─▶ child: pid 1 of its own, with its own mount and ipc namespace, /proc,
                             tmpfs and uid, and no capability

The zygote is pid 1 of a namespace, so its end ends every child, whatever a child did; a child is
pid 1 of its own, so killing it kills all that it started. A warden process is not needed, which
saves a fork of a large process per candidate.

Each level, and what it does not cover (`strongest` chooses, `proof.py` proves):

    namespaces         all of the above. The network namespace is shared by the children of one
                       judge (with loopback down), which may not create sockets (seccomp).
    landlock           no namespaces: Landlock, seccomp, limits, own uid under root. A child is in
                       the host's pid, network and IPC namespaces and can find out which paths
                       exist (stat); the size of each file is limited, not their sum. Not on a GPU.
                       Under root it keeps CAP_DAC_READ_SEARCH, and only Landlock limits its reads.
                       If zygote and launcher are killed at the same instant, its own children may
                       outlive it. An ordinary user's child shares the user's uid and limit of
                       processes.
    none               limits and no_new_privs only: files, sockets and processes are in reach.

Each level is tried before it is promised, by the zygote's launcher and by `forge doctor`, in a
process of one thread: one is chosen only after a child of ours stood in what it is made of. The
judge proves the real thing again from outside for each child.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from forge.evalpool.judge.sandbox import landlock, linux, root, seccomp

SCRATCH_BYTES = 64 << 20
SCRATCH_FILES = 4096
MAX_PROCESSES = 64
"""Maximum number of processes and threads of a child. The kernel counts by uid and user namespace,
so an ordinary user's children share one count."""
MAX_FILE_BYTES = 64 << 20
MAX_OPEN_FILES = 256
PROBE_UID = 60_999
"""User id, under root, of a process that tries a level of the sandbox."""
PROC_FLAGS = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
OOM_SCORE = 1000
"""Highest score: the kernel ends a child before any other process."""
CHILD_ENVIRONMENT = {
    "HOME": "/tmp/home",
    "TMPDIR": "/tmp",
    "TRITON_CACHE_DIR": "/tmp/triton",
    "TRITON_DEFAULT_FP_FUSION": "1",
    "PATH": "/nonexistent",
    "LANG": "C.UTF-8",
    # Inductor asks for a user's name, which a sandbox's uid does not have.
    "USER": "candidate",
    "LOGNAME": "candidate",
}


LIMIT_FLAGS = {
    resource.RLIMIT_AS: "-v (bytes)", resource.RLIMIT_NPROC: "-u",
    resource.RLIMIT_FSIZE: "-f (bytes)", resource.RLIMIT_NOFILE: "-n", resource.RLIMIT_CORE: "-c",
}  # fmt: skip
"""Flags of `ulimit` for the limits of a child."""
SYSCTLS = {
    "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),
    "kernel.unprivileged_userns_clone": ("0", "1"),
    "user.max_user_namespaces": ("0", "16384"),
}
"""Settings that can forbid an ordinary user's namespaces: (a value that forbids, one that allows).
The first is Ubuntu's, since 23.10; the second Debian's; every kernel has the third."""


class LimitTooLow(Exception):
    """A limit that this process inherited is below what a child gets."""


class Isolation(StrEnum):
    """Level of the sandbox, as above. Recorded in every verdict."""

    NAMESPACES = "namespaces"
    LANDLOCK = "landlock"
    NONE = "none"

    @property
    def has_namespaces(self) -> bool:
        """True if children have namespaces of their own."""
        return self is Isolation.NAMESPACES


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Facts of the zygote that the sandbox of each child needs."""

    isolation: Isolation
    plan: root.RootPlan
    mapped_bytes: int
    """Address space of the zygote: torch maps far more than it uses."""
    environment: Mapping[str, str]
    is_gpu: bool
    own_pid_namespace: int | None
    """Descriptor; None without namespaces."""
    proc: int
    """Descriptor of a /proc, for a child that sees none."""


def advice(*, uid: int, sysctls: Mapping[str, str]) -> str:
    """Fix for a machine that refuses the namespaces. `sysctls` is from `read_sysctls`."""
    if uid == 0:
        return (
            "root lacks CAP_SYS_ADMIN here, as in a container by default: start it with --cap-add "
            "SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
            "--security-opt systempaths=unconfined, or for a CPU on Linux 6.2 or later with "
            "Landlock allowed"
        )
    for name, (forbidding, allowing) in SYSCTLS.items():
        if sysctls.get(name) == forbidding:
            return f'allow user namespaces: "sudo sysctl -w {name}={allowing}", or run as root'
    return "no sysctl forbids user namespaces; a container's seccomp profile may: run as root"


def read_sysctls() -> dict[str, str]:
    """Values of the SYSCTLS that this kernel has."""
    paths = {name: Path("/proc/sys", *name.split(".")) for name in SYSCTLS}
    return {name: path.read_text().strip() for name, path in paths.items() if path.exists()}


def enter_zygote_namespaces() -> None:
    """First half, in the launcher: enters the namespaces. The next fork is pid 1 there."""
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
    """Second half, in the zygote: enters the allow-list root, with the /proc of its own pid
    namespace; the tmpfs that the root itself is becomes read-only."""
    root.build_root(plan, at=at)
    mount_proc(at)
    linux.pivot_root(at)
    linux.mount(None, "/", flags=root.READ_ONLY)


def mount_proc(at: str = "") -> None:
    """Mounts a /proc of the current pid namespace below `at`."""
    linux.mount("proc", f"{at}/proc", kind="proc", flags=PROC_FLAGS)


def enter_child_sandbox(
    around: Surroundings,
    *,
    role: str,
    scratch: str,
    uid: int | None,
    memory_bytes: int | None,
    cores: Sequence[int],
    num_siblings: int,
) -> None:
    """Enters the sandbox in a freshly forked child (pid 1 of its namespace).

    It may run on these cores, all if there are none, with so much address space beyond the mapped
    one; on a GPU `memory_bytes` is None, since CUDA reserves more than there is memory. It has a
    user id of its own if the judge runs as root. Of as many siblings it is one.

    Promise: returns only if each step succeeded; the judge also inspects the result from outside.
    """
    isolation = around.isolation
    runs_references = role in root.REFERENCE_ROLES
    if isolation.has_namespaces:
        _enter_child_namespaces(around.plan, is_gpu=around.is_gpu)
        if around.plan.packages and not runs_references:
            linux.unmount(root.PACKAGES)
    else:
        os.setsid()  # what it starts can be killed with it, if it stays in the group
    if runs_references and isolation is not Isolation.NONE:
        sys.path += root.reference_sys_path(around.plan, has_root=isolation.has_namespaces)
    for name in root.SCRATCH_FOLDERS:
        os.makedirs(f"{scratch}/{name}", exist_ok=True)
        os.chmod(f"{scratch}/{name}", 0o777)
    os.chdir(f"{scratch}/work")
    score = os.open("self/oom_score_adj", os.O_WRONLY, dir_fd=around.proc)
    os.write(score, str(OOM_SCORE).encode())
    os.close(score)
    os.close(around.proc)
    if cores:
        os.sched_setaffinity(0, cores)
    if memory_bytes is not None:
        _set_limit(resource.RLIMIT_AS, around.mapped_bytes + memory_bytes)
    num_processes = max_processes(uid=uid, num_siblings=num_siblings)
    if uid is None and not isolation.has_namespaces:
        # The kernel counts this user's processes and threads, at most all of the machine, with us.
        num_processes += int(Path("/proc/loadavg").read_text().split()[3].split("/")[1])
    _set_limit(resource.RLIMIT_NPROC, num_processes)
    _set_limit(resource.RLIMIT_FSIZE, MAX_FILE_BYTES)
    _set_limit(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)
    _set_limit(resource.RLIMIT_CORE, 0)
    kept = kept_capabilities(isolation, uid=uid)
    linux.drop_bounding_set(kept=kept)
    if uid is not None:
        if kept:
            os.chown(scratch, uid, uid)
        linux.take_uid(uid)
    linux.prctl(linux.PR_SET_PDEATHSIG, 9)
    linux.drop_capabilities(kept=kept)
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    if isolation is Isolation.LANDLOCK:
        rules = root.landlock_rules(around.plan, scratch=scratch, shows_packages=runs_references)
        landlock.confine_files(rules)
    if isolation is not Isolation.NONE:
        seccomp.install(is_gpu=around.is_gpu, is_shared=not isolation.has_namespaces)
    os.environ.clear()
    for name, value in around.environment.items():
        is_inside = f"{value}/".startswith(f"{root.SCRATCH}/")
        os.environ[name] = scratch + value.removeprefix(root.SCRATCH) if is_inside else value


def kept_capabilities(isolation: Isolation, *, uid: int | None) -> int:
    """Capabilities that a child keeps, as a mask. Without a root of its own, a uid of its own may
    not enter the folders on the way to the interpreter (below /root, often) and to its scratch:
    Landlock alone says what it reads.
    """
    is_alone = isolation is Isolation.LANDLOCK and uid is not None
    return linux.CAP_DAC_READ_SEARCH if is_alone else 0


def _enter_child_namespaces(plan: root.RootPlan, *, is_gpu: bool) -> None:
    own_net = linux.CLONE_NEWNET if is_gpu else 0
    linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWIPC | own_net)
    mount_proc()
    options = f"size={SCRATCH_BYTES},nr_inodes={SCRATCH_FILES},mode=1777"
    # Triton compiles its launchers for a card and loads them from there.
    flags = PROC_FLAGS & ~linux.MS_NOEXEC if is_gpu else PROC_FLAGS
    root.mount_scratch(plan, flags=flags, data=options)


def _set_limit(kind: int, value: int) -> None:
    """Raises LimitTooLow if the inherited limit is lower than a child needs."""
    try:
        resource.setrlimit(kind, (value, value))
    except (ValueError, PermissionError) as error:
        hard = resource.getrlimit(kind)[1]
        message = f'"ulimit {LIMIT_FLAGS[kind]}" is {hard} here; a candidate gets {value}'
        raise LimitTooLow(message) from error


def max_processes(*, uid: int | None, num_siblings: int) -> int:
    """Limit of the processes that the kernel counts together with a child."""
    return MAX_PROCESSES * (num_siblings if uid is None else 1)


# --- levels


WANTED = {
    "auto": (Isolation.NAMESPACES, Isolation.LANDLOCK),
    "namespaces": (Isolation.NAMESPACES,),
    "landlock": (Isolation.LANDLOCK,),
}
"""Levels that each value of `[judge] isolation` allows, strongest first."""
ON_GPU = frozenset({Isolation.NAMESPACES, Isolation.NONE})
"""Under Landlock cuInit fails with error 304 (seen on an H200)."""
MAX_WORDS = 1000


def strongest(wanted: str, *, is_gpu: bool = False) -> Isolation:
    """The first of what is wanted that this machine gives. Raises OSError saying why none is."""
    if wanted == Isolation.NONE:
        return Isolation.NONE
    level = find_level(wanted)[0]
    if is_gpu and level not in ON_GPU:
        raise OSError(errno.EPERM, f"{level}: CUDA does not start without a /proc of its own")
    return level


def find_level(wanted: str) -> tuple[Isolation, list[str]]:
    """The first that works, and why each before it does not. Raises OSError where none does."""
    refused: list[str] = []
    for level in WANTED[wanted]:
        why = why_not(level)
        if why is None:
            return level, refused
        refused.append(f"{level}: {why}")
    raise OSError(errno.EPERM, "; ".join(refused))


def why_not(level: Isolation) -> str | None:
    """None if the level works here, else what the machine refused. Tried in a child of ours."""
    return _refusal(_try_namespaces if level is Isolation.NAMESPACES else _try_landlock)


def _refusal(attempt: Callable[[], None]) -> str | None:
    """None if a child of ours can do this, else the words of what was refused."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            attempt()
        except BaseException as error:
            words = error.strerror if isinstance(error, OSError) else None
            os.write(writing, (words or repr(error)).encode()[:MAX_WORDS])
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, errors="replace") as said:
        words = said.read(MAX_WORDS)
    status = os.waitpid(pid, 0)[1]
    return None if status == 0 else words or f"its trial ended with status {status}"


def _try_namespaces() -> None:
    enter_zygote_namespaces()
    linux.mount(None, "/", flags=linux.MS_REC | linux.MS_PRIVATE)  # else the host would see /proc
    if words := _refusal(mount_proc):  # as pid 1 of the new namespace
        raise OSError(errno.EPERM, f"{words} (is /proc masked, as in Docker?)")


def _try_landlock() -> None:
    version = landlock.abi()
    if not version:
        raise OSError(errno.ENOSYS, "this kernel has no Landlock, or it is forbidden")
    if version < landlock.MIN_ABI:
        raise OSError(errno.ENOSYS, f"Landlock {version}, not {landlock.MIN_ABI} (Linux 6.2)")
    if os.geteuid() == 0:
        linux.take_uid(PROBE_UID)
    elif version < landlock.SCOPE_ABI:
        words = f"Landlock {version} stops no signals (6, Linux 6.12, does), and we are not root"
        raise OSError(errno.EPERM, words)
    linux.drop_capabilities()
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    landlock.confine_files([])
    seccomp.install(is_shared=True)
