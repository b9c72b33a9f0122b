# pyright: strict
"""The child's side of `child.py`: `hold_lease()` is the first call of every child's `main`, and one
that imports torch does so with its collector paused.

Promise: when the supervisor ends in any way, this process and its whole process group are killed.
Neither means needs a responsive Python (a long call may hold the GIL), and both are checked after
arming, for a supervisor that died in between:

- the death signal: the kernel kills this process when the thread that spawned it ends;
- the lease pipe: its write end is open in the supervisor only, and its read end is armed so that
  the kernel itself sends SIGKILL to our process group when the pipe hangs up.

Not covered: a grandchild in a new session. Its creator must pass it a lease too.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import fcntl
import gc
import json
import os
import select
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

LEASE_FD_VARIABLE = "FORGE_LEASE_FD"
SUPERVISOR_VARIABLE = "FORGE_SUPERVISOR_PID"

PR_SET_PDEATHSIG = 1
F_SETSIG = 10
"""Linux: sets the signal of O_ASYNC. Only some builds of Python name it."""


def hold_lease() -> dict[str, Any]:
    """Bind this process's life to its supervisor and return its config.

    The config is the JSON file named by the first argument. SIGINT is ignored: the supervisor stops
    its children in order. SIGUSR1 dumps all stacks to stderr, which is the log. A child that is
    started by hand has no lease and ends with its terminal.
    """
    atexit.register(gc.unfreeze)  # nanobind lists what is frozen as leaks, below the last error
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    lease_fd = os.environ.pop(LEASE_FD_VARIABLE, None)
    supervisor = os.environ.pop(SUPERVISOR_VARIABLE, None)
    if lease_fd is not None and supervisor is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        die_with_parent(int(supervisor))
        fd = int(lease_fd)
        os.set_inheritable(fd, False)
        fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(fd, F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
        if is_readable(fd):
            _kill_own_group()
    return json.loads(Path(sys.argv[1]).read_text())


@contextmanager
def collector_paused() -> Generator[None]:
    """Pause the garbage collector inside; it never visits again what exists at the end. While
    torch, transformers and TRL are imported, its passes take a sixth of the CPU time."""
    atexit.register(gc.unfreeze)
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def end_process(status: int = 0) -> NoReturn:
    """End now, after what is registered for the end. The interpreter's own end frees every object
    of torch and transformers: 0.5 to 1.5 s of CPU time."""
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def take_parents_priority() -> int:
    """Give this thread and what it starts the nice value and the OOM score of the process that
    started this one, where that is allowed; returns the nice value.

    Ray's workers have 15 and 1000, where its daemon has none: behind everything else on the
    machine, and killed before the candidates of a judge that take too much memory.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, os.getppid()))
    with suppress(OSError):
        score = Path(f"/proc/{os.getppid()}/oom_score_adj").read_text()
        Path("/proc/self/oom_score_adj").write_text(score)
    return os.getpriority(os.PRIO_PROCESS, 0)


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel for SIGKILL when the spawning thread ends; end now if it already has."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) was refused")
    if os.getppid() != parent_pid:
        _kill_own_group()


def is_readable(fd: int) -> bool:
    """True if a pipe has data or lost its other end, or if the process of a pidfd has ended."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _kill_own_group() -> None:
    """Kill this process, and its whole group if it leads it."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
