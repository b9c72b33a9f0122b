"""The nursery with a process that has no card: forks of it answer by what they are asked."""

import mmap
import os
import socket
import sys
import time
import types
from typing import Any

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import IDLE_S, Kind, PeerGone
from forge.evalpool.judge.execute.call import PROGRESS


def serve(sock_fd: int, progress_fd: int) -> None:
    """Sleeps in step 2 when it is to run, dies when it is to tune, else says that it is done."""
    memory = mmap.mmap(progress_fd, mmap.PAGESIZE)
    with socket.socket(fileno=sock_fd) as sock:
        frames.send(sock, Kind.READY, {})
        while True:
            try:
                deadline = time.monotonic() + IDLE_S
                asked = frames.receive(sock, deadline=deadline, expected=tuple(Kind))
            except PeerGone:
                os._exit(0)
            if asked.kind is Kind.RUN:
                PROGRESS.pack_into(memory, 0, 2)
                time.sleep(60)
            if asked.kind is Kind.TUNE:
                os._exit(1)
            frames.send(sock, Kind.DONE, {})


child: Any = types.ModuleType("forge.evalpool.judge.execute.gpu.child")
child.serve, child.CRASH_STATUS = serve, 70

if __name__ == "__main__":
    sys.modules[child.__name__] = child
    from forge.evalpool.judge.execute.gpu import nursery

    nursery.main()
