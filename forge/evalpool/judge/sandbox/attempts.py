"""Trying, in the sandbox, what must not work: our own code, before the first candidate.

Forked by the zygote as a child of the role `probe`. What Landlock forbids cannot be read from
outside (`proof.py` reads the rest), so somebody has to try it.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.sandbox import linux

if TYPE_CHECKING:
    from collections.abc import Callable


IDLE_S = 60.0


def main(sock: socket.socket) -> None:
    """Asked by the judge, says what worked and should not have. The kernel may refuse in whatever
    words.
    """
    deadline = time.monotonic() + IDLE_S
    asked = frames.receive(sock, deadline=deadline, expected=(frames.Kind.CALL,)).body
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
    return [name for name, attempt in tries.items() if _works(attempt)]


def _write(path: Path) -> None:
    path.touch(exist_ok=False)
    path.unlink()


def _works(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True
