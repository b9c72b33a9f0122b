"""Compiler children without a zygote: forked by Python's fork server, without a sandbox."""

import multiprocessing
import os
import signal
import socket
import tempfile
from multiprocessing.process import BaseProcess

from forge.evalpool.judge.children.spawner import Ending, SandboxedChild

CONTEXT = multiprocessing.get_context("forkserver")


def run(sock: socket.socket) -> None:
    """Body of a child: in a folder of its own, silent."""
    from forge.evalpool.judge.compiler import child

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.dup2(os.open("/dev/null", os.O_RDWR), 1)
        child.main(sock)


class ForkServer:
    """Stands for `Spawner`."""

    def __init__(self, *, triton: str) -> None:
        CONTEXT.set_forkserver_preload(["forge.evalpool.judge.compiler.child"])
        self.versions = {"triton": triton}
        self.num_spawned = 0
        self._processes: dict[int, BaseProcess] = {}

    def spawn(self, *, role: str) -> SandboxedChild:
        assert role == "compiler"
        self.num_spawned += 1
        ours, theirs = socket.socketpair()
        process = CONTEXT.Process(target=run, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        assert process.pid is not None
        self._processes[process.pid] = process
        return SandboxedChild(sock=ours, pid=process.pid, pid_here=process.pid)

    def end(self, child: SandboxedChild) -> int:
        child.sock.close()
        process = self._processes.pop(child.pid)
        process.kill()
        process.join()
        return _status(process)

    def ended(self, child: SandboxedChild) -> Ending:
        child.sock.close()
        process = self._processes.pop(child.pid)
        process.join(10)
        return Ending(status=_status(process), was_running=False, is_out_of_memory=False)


def _status(process: BaseProcess) -> int:
    code = process.exitcode
    assert code is not None
    return -code if code < 0 else code << 8


def kill_all(server: ForkServer) -> None:
    """Kills the children that live."""
    for pid in list(server._processes):
        os.kill(pid, signal.SIGKILL)
