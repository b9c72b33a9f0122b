"""Proof of a child's sandbox, before anything untrusted enters it: seen from outside, and tried.

What is read comes from the kernel (/proc of the child, credentials of its socket), never from the
child. What Landlock forbids cannot be read from outside, so a child of the role `probe`, our own
code, tries it before the first candidate.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.sandbox import linux
from forge.evalpool.judge.sandbox.enter import Isolation, kept_capabilities

CREDENTIALS = struct.Struct("3i")
SO_PASSCRED = 16
SCM_CREDENTIALS = 2
CAP_SETPCAP = 8
NAMESPACES = ("pid", "mnt", "ipc", "net")


class WeakSandbox(Exception):
    """A child stands in a weaker sandbox than its level promises. Infra, never a verdict."""


def ask_for_credentials(sock: socket.socket) -> None:
    """Makes the kernel attach the sender's pid, in our numbering, to what arrives."""
    sock.setsockopt(socket.SOL_SOCKET, SO_PASSCRED, 1)


def peer_pid(sock: socket.socket) -> int:
    """The pid of who sends the next byte (not consumed). The kernel's word. Raises PeerGone, and
    TimeoutError as of the socket."""
    data, ancillary, _, _ = sock.recvmsg(1, socket.CMSG_SPACE(CREDENTIALS.size), socket.MSG_PEEK)
    if not data:
        raise frames.PeerGone("it ended; its output is in the log")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SCM_CREDENTIALS:
            return CREDENTIALS.unpack(data[: CREDENTIALS.size])[0]
    raise WeakSandbox("the kernel gave no credentials with the child's first frame")


def check_sandbox(
    pid: int, *, isolation: Isolation, uid: int | None, mounts: frozenset[str]
) -> None:
    """Raises WeakSandbox unless it has no capability, no way back, and only known mounts."""
    status = _read_status(pid)
    fields = ["CapEff", "CapPrm", "CapInh", "CapAmb"]
    ours = int(_read_status(os.getpid())["CapEff"], 16)
    # Without CAP_SETPCAP, as root has it, out of reach, and of no use to it with no_new_privs.
    if isolation.has_namespaces or ours >> CAP_SETPCAP & 1:
        fields.append("CapBnd")
    kept = kept_capabilities(isolation, uid=uid)
    for field in fields:
        if int(status[field], 16) & ~kept:
            raise WeakSandbox(f"{field} is {status[field]}, not {kept}")
    if status["NoNewPrivs"] != "1":
        raise WeakSandbox("no_new_privs is not set")
    uids = {int(word) for word in status["Uid"].split()}
    if uid is not None and uids != {uid}:
        raise WeakSandbox(f"its uids are {sorted(uids)}, not {uid}")
    if isolation is Isolation.NONE:
        return
    if 0 in uids:
        raise WeakSandbox("it runs as root")
    if status.get("Seccomp", "2") != "2":
        raise WeakSandbox("no seccomp filter")
    if isolation is Isolation.LANDLOCK:
        return  # what that forbids cannot be seen, only tried (`try_forbidden`)
    for name in NAMESPACES:
        if os.readlink(f"/proc/{pid}/ns/{name}") == os.readlink(f"/proc/self/ns/{name}"):
            raise WeakSandbox(f"it shares our {name} namespace")
    unknown = read_mounts(pid) ^ mounts
    if unknown:
        raise WeakSandbox(f"mounts differ from the allow-list: {sorted(unknown)[:5]}")


def read_mounts(pid: int) -> frozenset[str]:
    with open(f"/proc/{pid}/mountinfo") as file:
        return frozenset(line.split()[4] for line in file)


def _read_status(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/status") as file:
        pairs = (line.split(":", 1) for line in file)
        return {name: value.strip() for name, value in pairs}


def try_forbidden(sock: socket.socket) -> None:
    """Asked by the judge, says what worked and should not have. The kernel may refuse in whatever
    words.
    """
    asked = frames.asked(sock, frames.Kind.CALL).body
    frames.send(sock, frames.Kind.DONE, {"works": _what_works(**asked)})


def _what_works(*, forbidden: str, judge_pid: int) -> list[str]:
    tries: dict[str, Callable[[], object]] = {
        "reading a file of the judge's": lambda: Path(forbidden).read_bytes(),
        "writing beside it": lambda: _write(Path(f"{forbidden}.new")),
        "writing to the root": lambda: _write(Path("/forge-attempt")),
        "an Internet socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM).close(),
    }
    if judge_pid != os.getpid():  # the same number may be our own in our namespace
        tries["a signal to the judge"] = lambda: os.kill(judge_pid, 0)
        environ = Path(f"/proc/{judge_pid}/environ")
        tries["reading the judge's environment"] = environ.read_bytes
    tries["a user namespace"] = lambda: linux.unshare(linux.CLONE_NEWUSER)  # changes who we are
    works: list[str] = []
    for name, attempt in tries.items():
        with suppress(OSError):
            attempt()
            works.append(name)
    return works


def _write(path: Path) -> None:
    path.touch(exist_ok=False)
    path.unlink()
