"""The nursery with a process that has no card: forks of it answer by what they are asked."""

from __future__ import annotations

import mmap
import os
import socket
import sys
import time
import types
from typing import Any

from forge.evalpool.judge.execute import messages
from forge.evalpool.judge.execute.messages import MAX_BLOB_BYTES, Message, PeerEnded
from forge.evalpool.judge.execute.steps import PROGRESS


def serve(sock_fd: int, progress_fd: int) -> None:
    """Sleeps in step 2 when it is to run, dies when it is to tune, else says its pid."""
    memory = mmap.mmap(progress_fd, mmap.PAGESIZE)
    with socket.socket(fileno=sock_fd) as sock:
        messages.send(sock, Message.READY, {"pid": os.getpid()})
        while True:
            try:
                asked = messages.receive(sock, max_blob_bytes=MAX_BLOB_BYTES)
            except PeerEnded:
                os._exit(0)
            if asked.kind is Message.RUN:
                PROGRESS.pack_into(memory, 0, 2)
                time.sleep(60)
            if asked.kind is Message.TUNE:
                os._exit(1)
            messages.send(sock, Message.DONE, {})


child: Any = types.ModuleType("forge.evalpool.judge.execute.gpu.child")
child.serve, child.CRASH_STATUS = serve, 70

if __name__ == "__main__":
    sys.modules[child.__name__] = child
    from forge.evalpool.judge.execute.gpu import nursery

    nursery.main()
