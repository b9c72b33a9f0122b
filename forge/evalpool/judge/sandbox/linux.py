"""System calls of the sandbox that Python 3.11 does not have. Each raises OSError with the refused
step."""

from __future__ import annotations

import ctypes
import os
from typing import Any

CLONE_NEWNS = 0x0002_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18

MNT_DETACH = 2

PR_SET_PDEATHSIG = 1
PR_SET_KEEPCAPS = 8
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
PR_CAP_AMBIENT_CLEAR_ALL = 4

CAP_DAC_READ_SEARCH = 1 << 2
"""Permission to enter folders and read files of any owner."""

CAPABILITY_VERSION_3 = 0x2008_0522
LAST_CAPABILITY = 63
"""The kernel refuses numbers it does not know; asking for more than there are is harmless."""

PIVOT_ROOT_NUMBERS = {"x86_64": 155, "aarch64": 41}

_libc = ctypes.CDLL(None, use_errno=True)


class _CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


def mount(
    source: str | None, target: str, *, kind: str | None = None, flags: int = 0, data: str = ""
) -> None:
    texts = [text and os.fsencode(text) for text in (source, target, kind, data)]
    result: int = _libc.mount(*texts[:3], ctypes.c_ulong(flags), texts[3] or b"")
    _check(result, f"mount {kind or source} on {target}")


def unmount(target: str) -> None:
    """umount2(2), lazily."""
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), f"unmount {target}")


def unshare(flags: int) -> None:
    _check(_libc.unshare(ctypes.c_int(flags)), f"unshare {flags:#x}")


def setns(fd: int, *, kind: int) -> None:
    _check(_libc.setns(fd, ctypes.c_int(kind)), f"setns {kind:#x}")


def pivot_root(new_root: str) -> None:
    """Makes `new_root` (a mount point) the root and unmounts the old one."""
    os.chdir(new_root)
    number = PIVOT_ROOT_NUMBERS[os.uname().machine]
    _check(_libc.syscall(ctypes.c_long(number), b".", b"."), f"pivot_root to {new_root}")
    unmount(".")
    os.chdir("/")


def prctl(option: int, argument: int = 0) -> None:
    """prctl(2) with one argument."""
    _check(_libc.prctl(option, ctypes.c_ulong(argument), 0, 0, 0), f"prctl {option}")


def call(number: int, *arguments: Any, doing: str) -> int:
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result: int = _libc.syscall(ctypes.c_long(number), *words)
    _check(result, doing)
    return result


def take_uid(uid: int) -> None:
    """Sets all ids to `uid`. Capabilities stay until `drop_capabilities`."""
    os.setgroups([])
    prctl(PR_SET_KEEPCAPS, 1)
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def drop_bounding_set(*, kept: int = 0) -> None:
    """Restricts the capabilities that can be gained again to a mask. Needs CAP_SETPCAP, so it
    precedes the change of uid."""
    for number in range(LAST_CAPABILITY):
        if kept >> number & 1:
            continue
        if _libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0) != 0:
            break


def drop_capabilities(*, kept: int = 0) -> None:
    """Drops all capabilities but a mask (below 1 << 32), which executed programs keep, too."""
    _libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = _CapHeader(CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)(kept, kept, kept)
    _check(_libc.capset(ctypes.byref(header), sets), f"capset to {kept:#x}")
    for number in range(32):
        if kept >> number & 1:
            raised = _libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, ctypes.c_ulong(number), 0, 0)
            _check(raised, f"raise capability {number}")


def _check(result: int, doing: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{doing}: {os.strerror(number)}")
