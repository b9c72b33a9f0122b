"""Starts the zygote, in namespaces made for it, and ends with it and all that it started.

Spawned by the judge (`python -m forge.evalpool.judge.children.launcher FD CONFIG`). A process that
enters a pid namespace stays outside of it; its child, the zygote, is the first inside.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

from forge.evalpool.judge.children.zygote import be_zygote, ending_with_cause, reporting_refusals
from forge.evalpool.judge.sandbox import enter, linux, processes, root

SIGNALLED = 128
"""Added to the number of the signal that ended the zygote, as a shell does."""


def main() -> None:
    """Becomes the launcher; its child becomes the zygote."""
    fd, config = int(sys.argv[1]), json.loads(sys.argv[2])
    judge_pid = config["judge_pid"]
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != judge_pid:
        return
    sock = socket.socket(fileno=fd)
    with ending_with_cause(sock):
        _launch(sock, config)


def _launch(sock: socket.socket, config: dict[str, Any]) -> None:
    is_gpu = config["device"] != "cpu"
    files = root.find_gpu_files(minor=config["gpu_minor"]) if is_gpu else None
    plan = root.plan_root(files, site_packages=config["site_packages"])
    with reporting_refusals(sock):
        isolation = enter.strongest(config["isolation"], is_gpu=is_gpu)
        if isolation.has_namespaces:
            enter.enter_zygote_namespaces()
    if not isolation.has_namespaces:
        _become_subreaper()
    pid = os.fork()
    if pid:
        sock.close()
        _await_zygote(pid)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not isolation.has_namespaces:
        _become_subreaper()
    be_zygote(
        sock, isolation=isolation, plan=plan, folder=config["folder"], is_gpu=is_gpu,
        harvests=config["harvests"],
    )  # fmt: skip


def _become_subreaper() -> None:
    """Without a pid namespace, adopts the orphans of children, and survives a kill of the judge's
    process group long enough to end them."""
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    os.setsid()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGTERM)


def _await_zygote(pid: int) -> NoReturn:
    """Waits in the launcher for the zygote's end, and exits with its code."""
    code = 0
    try:
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        code = SIGNALLED - code if code < 0 else code
    except SystemExit:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
    finally:
        processes.end_children()
    sys.exit(code)


if __name__ == "__main__":
    os.chdir("/")
    Path("/proc/self/oom_score_adj").write_text("500")
    main()
