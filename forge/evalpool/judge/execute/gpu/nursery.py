"""Forks executors on request. Imports torch once; never makes a context, which no fork survives.

Started by `executors.py` of the room above: `python -m … SOCKET JUDGE_PID`. One thread.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import socket
import sys
import traceback
from contextlib import suppress

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import IDLE_S, Kind, PeerGone
from forge.process.lease import collector_paused, die_with_parent

with collector_paused():
    from forge.evalpool.judge.execute.gpu import child


def main() -> None:
    """Serves the judge until it hangs up."""
    sock_fd, judge = (int(one) for one in sys.argv[1:3])
    die_with_parent(judge)
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    with socket.socket(fileno=sock_fd) as sock:
        frames.send(sock, Kind.READY, {}, timeout_s=IDLE_S)
        try:
            while True:
                asked = frames.asked(sock, Kind.FORK, takes_fds=True)
                with suppress(ChildProcessError):  # frees the pids of executors that have ended
                    while os.waitpid(-1, os.WNOHANG)[0]:
                        pass
                _fork(sock, asked.fds)
        except PeerGone:
            os._exit(0)


def _fork(sock: socket.socket, fds: tuple[int, ...]) -> None:
    theirs, progress = fds
    nursery = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            sock.close()
            die_with_parent(nursery)
            child.serve(theirs, progress)
        except BaseException:
            traceback.print_exc()
            os._exit(child.CRASH_STATUS)
        os._exit(0)
    pidfd = os.pidfd_open(pid)
    for fd in fds:
        os.close(fd)
    frames.send(sock, Kind.FORKED, {}, fds=(pidfd,), timeout_s=IDLE_S)
    os.close(pidfd)


if __name__ == "__main__":
    main()
