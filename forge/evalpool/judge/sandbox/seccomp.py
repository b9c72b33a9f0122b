"""A deny-list of system calls for runners, as a classic BPF filter: they answer EPERM.

It stands behind namespaces, uid and dropped capabilities, not instead of them: it keeps a runner
from making namespaces of its own (where it would hold capabilities), from any socket, and from
surviving its parent. For x86_64 and aarch64: no other machine has a sandbox.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from functools import cache

from forge.evalpool.judge.sandbox import linux

AUDIT_ARCH = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}

DENIED = {
    "x86_64": (
        *(41, 53),  # socket, socketpair
        *(101, 310, 311, 312),  # ptrace, process_vm_readv, process_vm_writev, kcmp
        *(161, 165, 166, 155),  # chroot, mount, umount2, pivot_root
        *(272, 308),  # unshare, setns
        *(133, 259),  # mknod, mknodat
        *(321, 298, 323),  # bpf, perf_event_open, userfaultfd
        *(248, 249, 250),  # add_key, request_key, keyctl
        *(425, 426, 427),  # io_uring
        *(428, 429, 430, 431, 432, 433, 442),  # the new mount interface
        *(29, 64, 68),  # shmget, semget, msgget
        *(175, 313, 246, 320),  # kernel modules, kexec
        *(303, 304),  # name_to_handle_at, open_by_handle_at
        *(112, 109),  # setsid, setpgid
        *(203,),  # sched_setaffinity: it stays on the cores it was given
    ),
    "aarch64": (
        *(198, 199),
        *(117, 270, 271, 272),
        *(51, 40, 39, 41),
        *(97, 268),
        *(33,),
        *(280, 241, 282),
        *(217, 218, 219),
        *(425, 426, 427),
        *(428, 429, 430, 431, 432, 433, 442),
        *(194, 190, 186),
        *(105, 273, 104, 294),
        *(264, 265),
        *(157, 154),
        *(122,),
    ),
}
MEMFD = {"x86_64": (319, 447), "aarch64": (279, 447)}
"""memfd_create, memfd_secret: what is written to one counts in no limit of address space."""
DENIED_SHARED = {
    "x86_64": (
        *(90, 91, 268, 452, 92, 93, 94, 260),  # chmod and chown, each by path and descriptor
        *(188, 189, 190, 463, 197, 198, 199, 466),  # setxattr, removexattr
        *(132, 235, 261, 280),  # utime, utimes, futimesat, utimensat
        *(253, 294, 300),  # inotify, fanotify
        *(141, 142, 144, 314, 251),  # setpriority, sched_set*, ioprio_set: take any process
        *(256, 279),  # migrate_pages, move_pages
        *(30, 31, 65, 66, 220, 69, 70, 71, 240, 241),  # what there is of System V and POSIX queues
    ),
    "aarch64": (
        *(52, 53, 452, 54, 55),
        *(5, 6, 7, 463, 14, 15, 16, 466),
        *(88,),
        *(26, 262),
        *(140, 118, 119, 274, 30),
        *(238, 239),
        *(196, 195, 193, 191, 192, 189, 188, 187, 180, 181),
    ),
}
"""Beyond DENIED where no namespaces stand around a runner: Landlock knows nothing of these."""
PRLIMIT = {"x86_64": 302, "aarch64": 261}
SENDTO = {"x86_64": 44, "aarch64": 206}
SENDING = {"x86_64": (46, 307), "aarch64": (211, 269)}
"""sendmsg, sendmmsg: where to lies in memory that a filter cannot read."""
SOCKET = {"x86_64": 41, "aarch64": 198}
CONNECT = {"x86_64": 42, "aarch64": 203}
AF_UNIX = 1
CLONE = {"x86_64": 56, "aarch64": 220}
CLONE3 = 435
"""Its flags lie in memory that a filter cannot read: ENOSYS makes libc fall back to clone."""
PRCTL = {"x86_64": 157, "aarch64": 167}
NAMESPACE_FLAGS = (
    linux.CLONE_NEWNS
    | linux.CLONE_NEWIPC
    | linux.CLONE_NEWUSER
    | linux.CLONE_NEWPID
    | linux.CLONE_NEWNET
    | 0x0200_0000  # CLONE_NEWCGROUP
    | 0x0400_0000  # CLONE_NEWUTS
)

ALLOW = 0x7FFF_0000
KILL = 0x8000_0000
EPERM = 0x0005_0000 | 1
ENOSYS = 0x0005_0000 | 38

LOAD, JUMP_EQUAL, JUMP_SET, RETURN = 0x20, 0x15, 0x45, 0x06
NUMBER_AT, ARCH_AT, ARGUMENT_AT = 0, 4, 16
LENGTH_AT = ARGUMENT_AT + 5 * 8
"""sendto's sixth argument: 0 where no address is given."""
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
X32_BIT = 0x4000_0000


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def install(*, is_gpu: bool = False, is_shared: bool = False) -> None:
    """Filters this process and all it starts, for good. Needs no_new_privs. Raises OSError.

    With `is_gpu`, sockets of the Unix family can be made and bound, since cuInit fails with error
    304 without one (measured), but not connected; the network namespace is then the child's own.
    With `is_shared`, no namespace is: also refused is what would act on others' files, processes
    and queues, and sending to an address.
    """
    machine = os.uname().machine
    if machine not in DENIED:
        raise OSError(errno.ENOSYS, f"no list of system calls for {machine}")
    code = _program(machine, is_gpu, is_shared)
    program = _Program(len(code) // 8, code)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_SECCOMP) was refused")


@cache
def _program(machine: str, is_gpu: bool, is_shared: bool) -> bytes:
    lines = [
        _line(LOAD, ARCH_AT),
        _line(JUMP_EQUAL, AUDIT_ARCH[machine], yes=1),
        _line(RETURN, KILL),
        _line(LOAD, NUMBER_AT),
        _line(JUMP_SET, X32_BIT, no=1),
        _line(RETURN, KILL),
    ]
    denied = DENIED[machine]
    if is_gpu:
        denied = (*(one for one in denied if one != SOCKET[machine]), CONNECT[machine])
        lines += _only(SOCKET[machine], AF_UNIX)
    else:
        denied = (*denied, *MEMFD[machine])
    if is_shared:
        denied = (*denied, *DENIED_SHARED[machine], *(SENDING[machine] if is_gpu else ()))
        lines += _only(PRLIMIT[machine], 0)  # itself
        lines += _only(SENDTO[machine], 0, at=LENGTH_AT)
    for number in denied:
        lines += [_line(JUMP_EQUAL, number, no=1), _line(RETURN, EPERM)]
    lines += [_line(JUMP_EQUAL, CLONE3, no=1), _line(RETURN, ENOSYS)]
    lines += [_line(JUMP_EQUAL, CLONE[machine], no=4), _line(LOAD, ARGUMENT_AT)]
    lines += [_line(JUMP_SET, NAMESPACE_FLAGS, no=1), _line(RETURN, EPERM), _line(RETURN, ALLOW)]
    lines += [_line(JUMP_EQUAL, PRCTL[machine], no=3), _line(LOAD, ARGUMENT_AT)]
    lines += [_line(JUMP_EQUAL, linux.PR_SET_PDEATHSIG, no=1), _line(RETURN, EPERM)]
    return b"".join([*lines, _line(RETURN, ALLOW)])


def _only(number: int, value: int, *, at: int = ARGUMENT_AT) -> list[bytes]:
    """A call that is allowed with this value of one argument, and refused with any other."""
    take = [_line(JUMP_EQUAL, number, no=4), _line(LOAD, at), _line(JUMP_EQUAL, value, yes=1)]
    return [*take, _line(RETURN, EPERM), _line(RETURN, ALLOW)]


def _line(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, value)
