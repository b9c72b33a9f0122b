"""Which sandbox this machine gives: each level is tried before it is promised.

Called by the zygote's launcher, and by `forge doctor`, in a process of one thread. Promise: a level
is chosen only after a child of ours stood in what it is made of; the judge proves the real thing
again from outside (`proof.py`) for each child.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from forge.evalpool.judge.sandbox import enter, landlock, linux, seccomp
from forge.evalpool.judge.sandbox.enter import Isolation

if TYPE_CHECKING:
    from collections.abc import Callable

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
    attempt = {
        Isolation.NAMESPACES: _try_namespaces,
        Isolation.LANDLOCK: _try_landlock,
    }[level]
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _report(attempt, writing)
    os.close(writing)
    with os.fdopen(reading, errors="replace") as words:
        told = words.read(MAX_WORDS)
    status = os.waitpid(pid, 0)[1]
    return None if status == 0 else told or f"its trial ended with status {status}"


def _report(attempt: Callable[[], None], writing: int) -> None:
    """In the child: ends it, with the words of what was refused."""
    try:
        attempt()
    except OSError as error:
        os.write(writing, (error.strerror or str(error)).encode()[:MAX_WORDS])
        os._exit(1)
    except BaseException as error:
        os.write(writing, repr(error).encode()[:MAX_WORDS])
        os._exit(1)
    os._exit(0)


def _try_namespaces() -> None:
    enter.enter_zygote_namespaces()
    linux.mount(None, "/", flags=linux.MS_REC | linux.MS_PRIVATE)  # else the host would see /proc
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:  # as pid 1 of the new namespace
        _report(enter.mount_proc, writing)
    os.close(writing)
    with os.fdopen(reading) as words:
        told = words.read(MAX_WORDS)
    if os.waitpid(pid, 0)[1]:
        raise OSError(errno.EPERM, f"{told} (is /proc masked, as in Docker?)")


def _try_landlock() -> None:
    if os.uname().machine not in seccomp.DENIED:
        raise OSError(errno.ENOSYS, f"no list of system calls for {os.uname().machine}")
    version = landlock.abi()
    if not version:
        raise OSError(errno.ENOSYS, "this kernel has no Landlock, or it is forbidden")
    if version < landlock.MIN_ABI:
        raise OSError(errno.ENOSYS, f"Landlock {version}, not {landlock.MIN_ABI} (Linux 6.2)")
    if os.geteuid() == 0:
        linux.take_uid(enter.PROBE_UID)
    elif version < landlock.SCOPE_ABI:
        words = f"Landlock {version} stops no signals (6, Linux 6.12, does), and we are not root"
        raise OSError(errno.EPERM, words)
    linux.drop_capabilities()
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    landlock.confine_files([])
    seccomp.install(is_shared=True)
