"""Landlock: what a process may do with files, TCP, signals and abstract sockets, from now on.

The kernel holds to it for good, for all that the process starts; a process under it can neither
trace nor read the memory, the environment or the descriptors of one that is not. Not covered: names
and sizes of files (stat), metadata (chmod, chown, times: seccomp denies these), Unix sockets by
path (seccomp: no socket).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

from forge.evalpool.judge.sandbox import linux

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""The same numbers on every machine."""
ASK_VERSION = 1
RULE_PATH_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
MAKE_CHAR, MAKE_DIR, MAKE_SOCK, MAKE_BLOCK = 1 << 6, 1 << 7, 1 << 9, 1 << 11
REFER, TRUNCATE, IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
ALL_FILES = (1 << 15) - 1
"""Every right over files that MIN_ABI knows."""
TCP = 0b11
"""bind, connect."""
SCOPES = 0b11
"""Abstract Unix sockets, signals."""

READ = EXECUTE | READ_FILE | READ_DIR
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEVICE
"""Rights that can be given for what is no directory."""
DEVICE = READ_FILE | WRITE_FILE | IOCTL_DEVICE
SCRATCH = ALL_FILES & ~(MAKE_CHAR | MAKE_BLOCK | MAKE_SOCK | MAKE_DIR | REFER)

MIN_ABI = 3
"""Linux 6.2: before it, any file could be truncated."""
TCP_ABI, IOCTL_ABI, SCOPE_ABI = 4, 5, 6


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("tcp", ctypes.c_uint64), ("scopes", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def abi() -> int:
    """Which Landlock this kernel has; 0 without."""
    try:
        return linux.call(CREATE_RULESET, None, 0, ASK_VERSION, doing="landlock version")
    except OSError:
        return 0


def confine_files(rules: Iterable[tuple[str, int]]) -> None:
    """Shuts off all files but these: (path, rights below it). Needs no_new_privs. Leaves out a path
    that does not exist. Shuts off TCP, signals and abstract sockets where the kernel can.
    """
    version = abi()
    handled = ALL_FILES | (IOCTL_DEVICE if version >= IOCTL_ABI else 0)
    tcp = TCP if version >= TCP_ABI else 0
    scopes = SCOPES if version >= SCOPE_ABI else 0
    size = 8 if version < TCP_ABI else 16 if version < SCOPE_ABI else 24
    terms = ctypes.byref(_Ruleset(handled, tcp, scopes))
    ruleset = linux.call(CREATE_RULESET, terms, size, 0, doing="landlock_create_ruleset")
    try:
        for path, rights in rules:
            _allow(ruleset, path, rights & handled)
        linux.call(RESTRICT_SELF, ruleset, 0, doing="landlock_restrict_self")
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(path):
            rights &= OF_FILES
        rule = _PathBeneath(rights, fd)
        doing = f"landlock_add_rule for {path}"
        linux.call(ADD_RULE, ruleset, RULE_PATH_BENEATH, ctypes.byref(rule), 0, doing=doing)
    finally:
        os.close(fd)
