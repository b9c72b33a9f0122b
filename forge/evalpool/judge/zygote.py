"""The zygote: a sandboxed process that has imported torch and triton and only forks children.

Spawned by the judge (`python -m forge.evalpool.judge.zygote FD CONFIG`). Promise: it has run no
torch op, started no thread, and holds nothing worth stealing: no seed, no reference, no candidate.
A child is forked in a pid namespace of its own, enters its sandbox (`sandbox.py`) and says HELLO;
only then does the judge look at it and send it work.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge import frames, gpu_files, linux, root, sandbox
from forge.evalpool.judge.frames import Kind
from forge.evalpool.judge.sandbox import ChildLimits, Isolation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

IDLE_S = 1e9
IMPORT_ENVIRONMENT = {
    "TRITON_DEFAULT_FP_FUSION": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


@dataclass(slots=True, kw_only=True)
class Zygote:
    """What a fork needs to know."""

    sock: socket.socket
    isolation: Isolation
    own_pid_namespace: int | None
    mapped_bytes: int
    run_candidate: Callable[[socket.socket, str], None]
    """Serves the judge as a runner, with this file for the candidate's source."""
    environment: Mapping[str, str]
    """Of a child."""
    is_gpu: bool
    scratch: str
    """Parent of candidates' folders where there is no mount namespace."""

    def serve(self) -> None:
        """Forks and reaps on request, until the judge hangs up."""
        while True:
            request = frames.receive(
                self.sock,
                deadline=time.monotonic() + IDLE_S,
                expected=(Kind.SPAWN, Kind.REAP),
                takes_fds=True,
            )
            if request.kind is Kind.SPAWN:
                pid = self._spawn(request)
                frames.send(self.sock, Kind.SPAWNED, {"pid": pid})
            else:
                frames.send(self.sock, Kind.REAPED, {"status": self._reap(request.body["pid"])})

    def _spawn(self, request: frames.Frame) -> int:
        fd = request.fds[0]
        if self.own_pid_namespace is not None:
            linux.unshare(linux.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            sock = socket.socket(fileno=fd)  # held to the end: closing it says that we are gone
            try:
                self.sock.close()
                self._be_child(request.body, sock)
            except frames.PeerGone:
                os._exit(0)  # the judge is done with it
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(1)
        if self.own_pid_namespace is not None:
            linux.setns(self.own_pid_namespace, kind=linux.CLONE_NEWPID)
        os.close(fd)
        return pid

    def _reap(self, pid: int) -> int:
        """Kills a child, with everything in its namespace or group, and returns its wait status."""
        kill = os.killpg if self.own_pid_namespace is None else os.kill
        try:
            kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            os.kill(pid, signal.SIGKILL)  # not yet a group of its own
        return os.waitpid(pid, 0)[1]

    def _be_child(self, body: dict[str, Any], sock: socket.socket) -> None:
        if self.own_pid_namespace is not None:
            os.close(self.own_pid_namespace)
        gc.disable()
        limits = ChildLimits(uid=body["uid"], memory_bytes=body["memory_bytes"])
        sandbox.enter_child_sandbox(
            limits,
            isolation=self.isolation,
            mapped_bytes=self.mapped_bytes,
            environment=self.environment,
            is_gpu=self.is_gpu,
        )
        role = body["role"]
        if role in ("runner", "examiner"):
            _silence()
        frames.send(sock, Kind.HELLO, {})
        if role == "oracle":
            from forge.evalpool.judge import oracle

            oracle.main(sock)
            return
        if role == "examiner":
            from forge.evalpool.judge import examine

            examine.main(sock)
            return
        from forge.evalpool.judge import runner

        file = self._candidate_file(runner.FILE)
        _forget_forge()
        sock.settimeout(None)
        self.run_candidate(sock, file)

    def _candidate_file(self, default: str) -> str:
        if self.isolation is Isolation.NAMESPACES:
            return default
        return f"{tempfile.mkdtemp(dir=self.scratch)}/candidate.py"


def main() -> None:
    """Becomes the launcher; its child becomes the zygote."""
    fd, config = int(sys.argv[1]), json.loads(sys.argv[2])
    judge_pid = config["judge_pid"]
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != judge_pid:
        return
    isolation = Isolation(config["isolation"])
    is_gpu = config["device"] != "cpu"
    files = gpu_files.find_gpu_files(minor=config["gpu_minor"]) if is_gpu else None
    plan = root.plan_root(files)
    sock = socket.socket(fileno=fd)
    if isolation is Isolation.NAMESPACES:
        with _telling(sock):
            sandbox.enter_zygote_namespaces()
    pid = os.fork()
    if pid:
        sock.close()
        _, status = os.waitpid(pid, 0)
        sys.exit(os.waitstatus_to_exitcode(status) & 0xFF)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _be_zygote(sock, isolation=isolation, plan=plan, folder=config["folder"], is_gpu=is_gpu)


def _be_zygote(
    sock: socket.socket, *, isolation: Isolation, plan: root.RootPlan, folder: str, is_gpu: bool
) -> None:
    os.environ.update(IMPORT_ENVIRONMENT)
    environment = dict(sandbox.CHILD_ENVIRONMENT)
    if is_gpu:
        del environment["TRITON_INTERPRET"]
        environment |= gpu_files.child_environment()
        run_candidate = _import_for_gpu()
    else:
        os.environ["TRITON_INTERPRET"] = "1"
        run_candidate = _import_for_cpu()
    namespace = None
    if isolation is Isolation.NAMESPACES:
        with _telling(sock):
            sandbox.enter_root(plan, at=folder)
        sys.path[:] = root.sandbox_sys_path(plan)
        sys.path_importer_cache.clear()
        namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    gc.collect()
    gc.freeze()  # children write no reference counts of the collector into shared pages
    zygote = Zygote(
        sock=sock,
        isolation=isolation,
        own_pid_namespace=namespace,
        mapped_bytes=sandbox.mapped_bytes(),
        run_candidate=run_candidate,
        environment=environment,
        is_gpu=is_gpu,
        scratch=folder,
    )
    num_threads = len(os.listdir("/proc/self/task"))
    if num_threads != 1:
        raise RuntimeError(f"the zygote has {num_threads} threads; a fork would copy only one")
    import torch
    import triton

    frames.send(sock, Kind.READY, {"torch": torch.__version__, "triton": triton.__version__})
    try:
        zygote.serve()
    except frames.PeerGone:
        return


@contextmanager
def _telling(sock: socket.socket) -> Iterator[None]:
    """Within, the judge is told which step into the sandbox the machine refused."""
    try:
        yield
    except OSError as error:
        frames.send(sock, Kind.FAILED, {"message": str(error)})
        raise


def _import_for_cpu() -> Callable[[socket.socket, str], None]:
    """Everything a child will use, so that no child pays for an import."""
    import torch

    torch.set_num_threads(1)
    from forge.evalpool.judge import bounds, examine, oracle, runner, warmup
    from forge.evalpool.judge import compile as compiling

    assert oracle and examine
    bounds.install()
    compiler = compiling.Compiler(compiling.Personalities())
    warmup.warm_up(compiler)

    def run_candidate(sock: socket.socket, file: str) -> None:
        runner.main(sock, compiler=compiler, refused=compiling.Refused, file=file)

    return run_candidate


def _import_for_gpu() -> Callable[[socket.socket, str], None]:
    """The same with real kernels. Makes no context: a child forked after that could not use it."""
    import torch
    from triton.backends import backends
    from triton.runtime import driver

    torch.set_num_threads(1)
    from forge.evalpool.judge import examine, gpu_session, oracle

    assert oracle and examine
    if not torch.version.hip:
        # Compiled and loaded once here, not in every child (0.5 s).
        with tempfile.TemporaryDirectory() as cache:
            os.environ["TRITON_CACHE_DIR"] = cache
            driver.set_active(backends["nvidia"].driver())

    def run_candidate(sock: socket.socket, file: str) -> None:
        gpu_session.main(sock, file=file)

    return run_candidate


def _silence() -> None:
    """A candidate's prints go nowhere: results travel in frames and memory."""
    fd = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(fd, number)
    os.close(fd)


def _forget_forge() -> None:
    """`import forge` must not find what the zygote imported; nor is its source visible."""
    for name in [name for name in sys.modules if name == "forge" or name.startswith("forge.")]:
        del sys.modules[name]
    sys.modules["__main__"] = type(sys)("__main__")


if __name__ == "__main__":
    os.chdir("/")
    Path("/proc/self/oom_score_adj").write_text("500")
    main()
